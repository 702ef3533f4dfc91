"""What the code of the docs prints: `python tools/printed.py [PAGES]` runs it and rewrites the text block after it.

A block of text that directly follows a block of Python is its output. The tests compare the two; `...` stands for
anything. This script leaves a block alone whose output fits already, and so keeps its `...`.
"""

from __future__ import annotations

import doctest
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)


def fits(expected: str, printed: str) -> bool:
    """Whether code printed what the page says."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, printed, flags)


def again(found: re.Match[str]) -> str:
    """A block and what it prints now; a block that shows nothing is left alone."""
    if found["printed"] is None:
        return found[0]
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, "-W", "ignore", "-c", found["code"]]
        done = subprocess.run(call, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return found[0] if fits(found["printed"], done.stdout) else found[0].replace(found["printed"], done.stdout)


def main() -> None:
    for page in [Path(name) for name in sys.argv[1:]] or PAGES:
        page.write_text(BLOCK.sub(again, page.read_text()))


if __name__ == "__main__":
    main()
