"""Sentence lengths of pages, or of the docstrings of modules: median, 95th percentile and longest, in words.

`python tools/sentences.py [PAGES, MODULES or FOLDERS] [--above 25]`; `--above` prints the sentences with more words.
"""

from __future__ import annotations

import argparse
import ast
import math
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]


def sentences(text: str) -> list[str]:
    """Split the prose of a Markdown page into sentences; code blocks, tables and headings are no prose."""
    text = re.sub(r"^( *)```.*?^ *```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *(\||#|<).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^ *([-*]|\d+\.) +", "\n\n", text, flags=re.MULTILINE)
    split = []
    for paragraph in re.split(r"\n\s*\n", text):
        prose = re.sub(r"`[^`]*`", "code", " ".join(paragraph.split()))  # a span of code is one word
        prose = re.sub(r"\]\([^)]*\)", "]", prose)
        split += [s for s in re.split(r"(?<=[.!?])[)\"*]*\s+(?=[\[(\"*]*[A-Z0-9]|code)|:$", prose) if words(s)]
    return split


def docstrings(source: str) -> str:
    """Join the docstrings of a module as paragraphs, without doctests, section lines and names of parameters."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    texts = [text.split("\n>>> ")[0] for node in nodes if (text := ast.get_docstring(node))]
    return "\n\n".join(re.sub(r"^(-+|[\w, ]+)$(?=\n( {4}|-))|^-+$", "", text, flags=re.MULTILINE) for text in texts)


def words(sentence: str) -> int:
    """Count the words of a sentence; signs between words are none."""
    return len(re.findall(r"[^\W_][^\s/]*", sentence))


def percentile(lengths: list[int], share: float) -> int:
    """Take the smallest length that at least this share of the sentences does not exceed."""
    return sorted(lengths)[max(0, math.ceil(share * len(lengths)) - 1)] if lengths else 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Sentence lengths of pages and docstrings.")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    parser.add_argument("--above", type=int, help="print the sentences with more words than this")
    chosen = parser.parse_args()
    total: list[int] = []
    print("page | sentences | median | 95% | longest\n--- | --- | --- | --- | ---")
    folders = {p: sorted([*p.rglob("*.md"), *p.rglob("*.py")]) for p in chosen.pages if p.is_dir()}
    for page in [page for named in chosen.pages for page in folders.get(named, [named])]:
        text = page.read_text()
        split = sentences(docstrings(text) if page.suffix == ".py" else text)
        lengths = [words(s) for s in split]
        total += lengths
        print(page.name, len(lengths), *(percentile(lengths, p) for p in (0.5, 0.95, 1.0)), sep=" | ")
        for sentence, length in zip(split, lengths, strict=True):
            if chosen.above is not None and length > chosen.above:
                print(f"    {length}: {sentence}")
    print("all", len(total), *(percentile(total, p) for p in (0.5, 0.95, 1.0)), sep=" | ")


if __name__ == "__main__":
    main()
