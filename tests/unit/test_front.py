"""The front door: README is short and says what the reports say; the reports open without a network."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
REPORTS = {path.stem: path for path in sorted((ROOT / "docs" / "reports").glob("*.html"))}
TOOL = runpy.run_path(str(ROOT / "tools" / "sentences.py"))


def test_readme_is_a_screen_of_short_sentences():
    screen, links = README.split("\n**Next:**\n")
    assert len(screen.splitlines()) <= 66
    assert len(links.splitlines()) <= 6
    long = [s for s in TOOL["sentences"](README) if TOOL["words"](s) > 25]
    assert not long


def test_the_picture_of_readme_suits_light_and_dark_pages():
    named = re.findall(r'<(?:source media="([^"]+)" srcset|img src)="docs/images/front([a-z-]*).png"', README)
    narrow, dark = "(max-width: 600px)", "(prefers-color-scheme: dark)"
    assert named == [(f"{narrow} and {dark}", "-narrow-dark"), (narrow, "-narrow"), (dark, "-dark"), ("", "")]
    sizes = {}
    for _, name in named:
        header = (ROOT / "docs" / "images" / f"front{name}.png").read_bytes()[:24]
        sizes[name] = tuple(int.from_bytes(header[at : at + 4]) for at in (16, 20))
    assert sizes["-dark"] == sizes[""] > sizes["-narrow"] == sizes["-narrow-dark"]


def test_readme_shows_what_the_study_of_the_handwriting_printed():
    (block,) = re.findall(r"```text\n(.*?)\n```", README, re.DOTALL)
    *lines, last = block.splitlines()
    assert lines == (ROOT / "docs" / "reports" / "handwriting.txt").read_text().splitlines()
    assert re.fullmatch(r"study/report\.html: the report, after \d+ s", last)


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_numbers_of_a_surprise_are_in_its_report(name):
    row = next(line for line in README.splitlines() if f"docs/reports/{name}.html" in line)
    surprise = row.partition(".html)")[2]
    text = re.sub(r"<[^>]+>", " ", REPORTS[name].read_text())
    numbers = re.findall(r"\d[\d,.]*\d%?|\d%?", surprise)
    assert surprise.strip()
    assert [number for number in numbers if number not in text] == []
    whole = re.findall(r"[+-]?[\d.]+(?:%| points) \[[^]]*\]", surprise)
    assert whole
    assert [estimate for estimate in whole if estimate not in text] == []  # a number alone is in many a place


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_a_report_is_below_a_megabyte_and_loads_nothing(name):
    page = REPORTS[name].read_text()
    assert len(page.encode()) < 2**20
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"']?(?:https?:)?//", page)


def test_there_are_four_reports_and_readme_names_each():
    assert sorted(REPORTS) == ["census", "handwriting", "hospitals", "shop"]
    assert set(re.findall(r"docs/reports/(\w+)\.html", README)) == set(REPORTS)
