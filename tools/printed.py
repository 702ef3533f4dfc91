"""What the code of the docs prints: `python tools/printed.py [PAGES]` runs it and rewrites the text block after it.

A block of text that directly follows a block of Python, or of commands (`bash`), is its output. The tests compare the
two; `...` stands for anything. This script leaves a block alone whose output fits already, and so keeps its `...`.
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)
SHELL = re.compile(BLOCK.pattern.replace("python", "bash"), re.DOTALL)


def fits(expected: str, printed: str) -> bool:
    """Whether code printed what the page says."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, printed, flags)


def commands(code: str, folder: str | Path) -> list[list[str]]:
    """The arguments of each `fedscape` of a block; what it writes to /tmp goes to the folder."""
    lines = [line.split("#")[0].strip().replace("/tmp/", f"{folder}/") for line in code.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("fedscape ")]


def again(found: re.Match[str]) -> str:
    """A block and what it prints now; a block that shows nothing is left alone."""
    if found["printed"] is None:
        return found[0]
    python = [sys.executable, "-W", "ignore"]
    with tempfile.TemporaryDirectory() as folder:
        if found.re is BLOCK:
            calls = [[*python, "-c", found["code"]]]
        else:
            calls = [[*python, "-m", "fedscape", *arguments] for arguments in commands(found["code"], folder)]
        printed = ""
        for call in calls:
            printed += subprocess.run(call, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout
    if fits(found["printed"], printed):
        return found[0]
    stripped = "".join(f"{line.rstrip()}\n" for line in printed.replace(f"{folder}/", "/tmp/").splitlines())
    return found[0].replace(f"```text\n{found['printed']}", f"```text\n{stripped}")


def main() -> None:
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        page.write_text(SHELL.sub(again, BLOCK.sub(again, page.read_text())))


if __name__ == "__main__":
    main()
