"""Render results/NAME.json as the Markdown table of this folder's README: `python benchmarks/render.py NAME ...`.

`--check` says which of the tables that README marks with "<!-- results/NAME.json -->" are not those of their file, and
exits with 1; `--write` puts them right.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from table import RESULTS, markdown

README = Path(__file__).with_name("README.md")
MARKED = re.compile(r"<!-- results/([\w]+)\.json -->\n\n(?:\|.*\n)*")


def rendered(name: str) -> str:
    """The table of a file, with its mark."""
    content = json.loads((RESULTS / f"{name}.json").read_text())
    return f"<!-- results/{name}.json -->\n\n{markdown(content['rows'])}\n"


def renewed(text: str) -> str:
    """The README with every marked table as its file has it."""
    return MARKED.sub(lambda found: rendered(found.group(1)), text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", "--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    for name in args.names:
        print(rendered(name))
    text = README.read_text()
    if args.write:
        README.write_text(renewed(text))
    if args.check and renewed(text) != text:
        raise SystemExit("README.md is not what results/ says: python benchmarks/render.py --write")


if __name__ == "__main__":
    main()
