"""The pages of the papers name what exists: code, tests, files; and their numbers are those of the results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import fedscape

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
BENCHMARKS = ROOT / "benchmarks"
STATES = ("done", "partly", "missing")
#: Sections whose tables hold only numbers of the result files that they name.
SECTION = "As printed, and what the correction is worth"
HELD = {
    "fedhlcr": (SECTION, "Nonlinear classes, the paper's future work"),
    "fedtem": (SECTION, "Ablations of the printed method"),
    "fedgmm": (SECTION,),
    "mdm": (SECTION, "Training on simulated clients: all nine settings"),
    "sketch": (SECTION,),
}


def known_words() -> set[str]:
    """Every identifier of the package, the benchmarks and the tests."""
    files = [*(ROOT / "src").rglob("*.py"), *BENCHMARKS.glob("*.py"), *(ROOT / "tests").rglob("*.py")]
    return {word for file in files for word in re.findall(r"[A-Za-z_]\w+", file.read_text())}


WORDS = known_words()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_in_code_type_exist(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", prose):
        if code.startswith(("python ", "pytest ", "fedscape ", "...", "--")):
            continue
        for name in re.findall(r"\b[A-Za-z_]\w{3,}\b", re.sub(r'"[^"]*"|[\w/.-]+\.(?:json|svg|png|md|py)\b', "", code)):
            assert name in WORDS or (ROOT / name).exists(), f"{page.name}: {name} in `{code}`"


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((BENCHMARKS / "pages").glob("*.md")), ROOT / "README.md"], ids=lambda page: page.stem
)
def test_files_of_results_are_in_the_repository(page):
    for file in re.findall(r"(?<![\w/])(?:benchmarks/)?results/([\w.*]+\.\w+)", page.read_text()):
        if file != "NAME.json":
            assert (BENCHMARKS / "results" / file).is_file(), f"{page.name} names results/{file}"


def test_results_say_how_they_were_made_and_name_no_folder_of_a_machine():
    files = sorted((BENCHMARKS / "results").glob("*.json"))
    assert files
    for file in files:
        content = json.loads(file.read_text())
        assert content["name"] == file.stem
        assert content["rows"]
        if content.get("made_again", True):
            assert content["command"].startswith("benchmarks/")
        assert "/tmp" not in file.read_text()
        assert "/work" not in file.read_text()


def numbers(text: str) -> list[str]:
    """Numbers with a point, without their sign."""
    return re.findall(r"(?<![\w.])\d+\.\d+(?:e\+\d+)?(?![\w.])", text)


@pytest.mark.parametrize(("page", "title"), [(page, title) for page, titles in HELD.items() for title in titles])
def test_numbers_of_these_sections_are_in_the_results(page, title):
    text = (ROOT / "docs" / "papers" / f"{page}.md").read_text()
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    files = re.findall(r"benchmarks/results/(\w+\.json)", section)
    content = " ".join((BENCHMARKS / "results" / file).read_text() for file in files)
    seen = set(numbers(content)) | {str(value) for value in (0.1, 0.2, 0.3, 0.5, 0.7, 0.75, 0.95)}  # settings
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) >= 5
    assert files
    for number in (n for row in rows for n in numbers(re.sub(r"`[^`]*`", "", row))):
        assert number in seen, f"{page}: {number} is in none of {files}"


def test_every_page_of_a_paper_has_sections_that_are_held():
    assert set(HELD) == {page.stem for page in PAGES} - {"index", "coverage"}


def coverage_rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "papers" / "coverage.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if len(row) == 4 and row[1] in (*STATES, "n/a")]


def test_the_counts_of_the_coverage_page_are_those_of_its_rows():
    text = (ROOT / "docs" / "papers" / "coverage.md").read_text()
    rows = coverage_rows()
    done, partly, missing = (sum(row[1] == state for row in rows) for state in STATES)
    smaller = sum(row[1] == "done" and row[3].startswith("smaller") for row in rows)
    assert f"| all | {done + partly + missing} | {done} | {smaller} | {partly} | {missing} |" in text
    assert done + partly + missing == 199
    papers = re.findall(
        r"^\| (?!all|paper|---)[^|]+ \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE
    )
    assert np.sum(np.array(papers, dtype=int), axis=0).tolist() == [199, done, smaller, partly, missing]


def test_what_is_missing_or_partly_there_says_why_and_paths_exist():
    for item, state, where, why in coverage_rows():
        assert state in ("done", "n/a") or len(why) > 2, f"{item} is {state} without a word"
        for path in re.findall(r"`([\w/]+\.(?:py|json|svg|png))", where):
            folder = ROOT if path.startswith(("benchmarks/", "tests/", "docs/")) else Path(fedscape.__file__).parent
            assert (folder / path).is_file(), f"{item}: {path}"
        for test in re.findall(r"`(test_\w+)`", where):
            assert test in WORDS, f"{item}: {test}"
