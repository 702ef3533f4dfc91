"""Compare a tag with the version everywhere it stands, and print the notes: `python tools/release.py v0.1.0`.

The notes are the section of CHANGELOG.md with this version. Without a tag only the places are compared.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Files that repeat the version of pyproject.toml, and how.
REPEATED = {
    "CITATION.cff": r"^version: (\S+)$",
    "packaging/conda/meta.yaml": r'^{% set version = "(\S+)" %}$',
    "src/fedscape/__init__.py": r'^    __version__ = "(\S+)\+source"$',
}


def version() -> str:
    """The version of pyproject.toml; stops where a file has another one."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for path, pattern in REPEATED.items():
        found = re.search(pattern, (ROOT / path).read_text("utf-8"), re.MULTILINE)
        if found is None or found.group(1) != wanted:
            raise SystemExit(f"{path} has version {found and found.group(1)}, pyproject.toml has {wanted}")
    return str(wanted)


def notes(of: str) -> str:
    """The section of the changelog of a version, without its title."""
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.search(rf"^## {re.escape(of)}\b.*?\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section '## {of}'")
    return found.group(1).strip() + "\n"


def main() -> None:
    known = version()
    if len(sys.argv) > 1:
        if sys.argv[1] != f"v{known}":
            raise SystemExit(f"the tag {sys.argv[1]} is not v{known}")
        print(notes(known), end="")


if __name__ == "__main__":
    main()
