"""Pages in plain words: each begins with the question it answers and a result, and no sentence is long."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "sentences.py"))
LONGEST = 35  # words; write at most 25
PAGES = {p.relative_to(ROOT).as_posix(): p for p in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]}
RESULTS = {p.relative_to(ROOT).as_posix(): p for p in sorted((ROOT / "benchmarks").rglob("*.md"))}
PROSE = {name: page.read_text().split("\n<!-- made -->")[0] for name, page in (PAGES | RESULTS).items()}

#: Turns of phrase that engineers do not use, and what they say instead.
IDIOMS = {
    r"\bso that one who\b": "if you",
    r"\bin vain\b": "padding, wasted",
    r"\bfound out\b": "detected",
    r"\b(made|written|drawn|forms?|formed) anew\b": "rebuilt, rewritten, redrawn",
    r"\bin one piece\b": "contiguous",
    r"\bnothing but\b": "only",
    r"\bbeyond measure\b": "name the limit",
    r"\b(?<!be_)foretold\b(?!_)": "predictable",
    r"\bwhose a row is\b": "the client of each row",
    r"\bwithout a word\b": "silently",
    r"\bnext to uniform\b": "nearly uniform",
    r"\bto be told\b": "significant, detectable",
    r"\bhold together\b": "simultaneous intervals",
    r"\bfor people\b": "as tables",
    r"\bmade-up clients\b": "synthetic clients",
    r"\bproblems to mend\b": "problems",
    r"\bit is no matter of\b": "not the cause",
    r"\bWho (overrides|wants|has|reaches)\b(?! to)": "if you, anyone who",
}


@pytest.mark.parametrize("name", sorted(PROSE))
def test_sentences_of_a_page_are_short(name):
    long = [s for s in TOOL["sentences"](PROSE[name]) if TOOL["words"](s) > LONGEST]
    assert not long, f"{name}: split what has more than {LONGEST} words: {long}"


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_begins_with_the_question_it_answers(name):
    title, first = [part for part in PAGES[name].read_text().split("\n\n") if part][:2]
    assert title.startswith("# ")
    assert re.match(r"\*\*[^*]+\?\*\*\s", " ".join(first.split())), (
        f"{name} begins with {first[:80]!r}; ask the question"
    )


@pytest.mark.parametrize("name", sorted(set(PAGES) - {"CONTRIBUTING.md", "docs/papers/coverage.md"}))
def test_a_page_shows_a_picture_or_a_result_near_its_top(name):
    top = "\n".join(PAGES[name].read_text().splitlines()[:50])
    shown = re.search(r"^(```text|!\[|<picture>|<!-- table )", top, re.MULTILINE)
    assert shown, "begin with a figure, a table of results, or code and what it prints (tools/printed.py)"


@pytest.mark.parametrize("name", sorted(PROSE))
def test_a_page_uses_the_words_of_the_field(name):
    text = " ".join(PROSE[name].split())
    for idiom, better in IDIOMS.items():
        hit = re.search(idiom, text)
        assert hit is None, f"{name}: {hit and hit.group()!r}; write: {better}"


def test_the_tool_splits_prose_and_skips_code_tables_and_headings():
    page = (
        "# A title. It is no sentence\n\nOne two. `rounds` runs it (see\n[here](a.md)). Is 0.5 half? Yes.\n\n"
        "```python\nx = 1. + 2.\n```\n\n| a | b. C |\n| --- | --- |\n\n- first item\n- second one\n  goes on\n"
    )
    split = TOOL["sentences"](page)
    expected = ["One two.", "code runs it (see [here]).", "Is 0.5 half?", "Yes.", "first item", "second one goes on"]
    assert split == expected
    assert [TOOL["words"](s) for s in split] == [2, 5, 3, 1, 2, 4]
    assert [TOOL["percentile"]([4, 1, 3, 2], share) for share in (0.5, 0.95, 1.0)] == [2, 4, 4]


def test_the_tool_reads_docstrings_without_parameters_and_doctests():
    module = '"""One two.\n\nParameters\n----------\na, b\n    Three four five.\n\n>>> 1 + 1\n2\n"""\n'
    assert TOOL["sentences"](TOOL["docstrings"](module)) == ["One two.", "Three four five."]
