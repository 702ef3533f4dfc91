"""Pages of results: rendered from their files, each with a command that exists, no number typed where a file has it."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PAGES = sorted((BENCHMARKS / "pages").glob("*.md"))
#: Tables older than result files: their numbers were taken over from the page, with its date and commit, and their
#: command was not run again. Run it, and its result has no `made_again`; then lower this number. Never raise it.
NOT_MADE_AGAIN = 70


#: Tables of numbers in docs/ that no file of results has: rules and settings.
RULES = {"docs/secure-sums.md": {"parties"}, "docs/study.md": {"stage"}, "docs/temporal.md": {"array"}}


@pytest.fixture
def render(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("render", "table", "history", "plots"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("render")
    for name in ("render", "table", "history", "plots"):
        sys.modules.pop(name, None)


def tables(text: str) -> list[str]:
    """The last line before each table."""
    lines = [line for line in text.splitlines() if line]
    return [lines[i - 1] for i, line in enumerate(lines) if line.startswith("|") and not lines[i - 1].startswith("|")]


def test_what_is_committed_is_what_the_results_make(render):
    stale = [path.name for path, text in render.rendered().items() if not path.is_file() or path.read_text() != text]
    assert not stale, f"{stale} are not what results/ says: run make results"


def test_plots_that_no_page_asks_for_are_gone(render):
    made = {path for path in render.rendered() if path.suffix == ".svg"}
    assert made == set((BENCHMARKS / "pages" / "plots").glob("*.svg"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_a_question_with_a_command_that_exists(page):
    text = page.read_text()
    assert re.match(r"# [^\n]+\?\n", text), "the title is the question"
    scripts = re.findall(r"\b((?:benchmarks|tools|tests|examples)/[\w/]+\.py)", text)
    assert scripts or "fedscape study" in text or "make " in text, "name the command"
    for script in scripts:
        assert (ROOT / script).is_file(), script


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_table_comes_from_a_file(page):
    typed = [line for line in tables(page.read_text()) if not line.startswith("<!-- results/")]
    assert not typed, "print the table by table.report and put the mark of its file before it"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_table_of_measurements_in_a_guide_comes_from_a_file(page):
    name = page.relative_to(ROOT).as_posix()
    typed = set()
    for before, table in re.findall(r"(.*)\n\n((?:\|.*\n)+)", page.read_text()):
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]
        cells = [cell for row in rows for cell in row[1:] if cell]
        measured = [cell for cell in cells if re.match(r"[-+*]*[\d.]", cell) and "`" not in cell and len(cell) < 40]
        if 5 * len(measured) > 2 * len(cells) and not before.startswith("<!-- table "):
            typed.add(head[0])
    assert typed <= RULES.get(name, set()), "use a mark: see benchmarks/render.py"


def test_a_guide_words_a_table_and_a_wrong_mark_is_refused(render, monkeypatch, tmp_path):
    rows = [{"m": "a", "deal": d, "best": v, "pm": p} for d, v, p in (("x", "1.26", "0.5"), ("y", 2, ""))]
    monkeypatch.setattr(sys.modules["table"], "RESULTS", tmp_path)
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    (tmp_path / "some.json").write_text(json.dumps({"rows": rows}))
    cells = "deal=x => in x = {best|.1f} ± {pm}; deal=y => y = {best} ± {pm}"
    mark = f'<!-- table some head="method" rows="m=a => A" columns="{cells}" -->'
    assert render.WORDED.sub(render.worded, f"{mark}\n\n| old |\n\nText.") == (
        f"{mark}\n\n| method | in x | y |\n| --- | --- | --- |\n| A | 1.3 ± 0.5 | 2 |\n\nText."
    )
    for wrong in (mark.replace("m=a", "m=b"), mark.replace("deal=x => ", ""), mark.replace("{best}", "{bets}")):
        with pytest.raises(SystemExit, match=r"some\.json"):
            render.WORDED.sub(render.worded, f"{wrong}\n\n| old |\n")


def test_results_that_were_not_made_again_say_when_they_were_made_and_become_fewer(render):
    on_pages = {name for page in PAGES for name, _ in render.MARKED.findall(page.read_text())}
    kept = {name for name in on_pages if not render.load(name).get("made_again", True)}
    for name in kept:
        about = render.load(name)
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"]), name
        assert re.fullmatch(r"[0-9a-f]{7}", about["commit"]), name
        assert about["command"]
        assert about["rows"]
    assert len(kept) == NOT_MADE_AGAIN, "lower the number where a table was made again"


def test_twelve_numbers_of_the_front_page_come_from_files(render):
    rows = [line for line in (BENCHMARKS / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert len(rows) == 12
    for row in rows:
        _, ours, beside = row.strip("| ").split(" | ")
        assert render.VALUE.search(ours)
        typed = render.VALUE.sub("", ours + beside)
        assert not re.search(r"\d", typed.replace("R2", "")), f"typed: {typed}"


@pytest.mark.parametrize("where", ["what=nothing", "threads=1"])
def test_a_value_that_fits_no_row_or_several_is_refused(render, where):
    with pytest.raises(SystemExit, match=r"results/mdm_speed.json has \d+ rows with .*; a value needs one"):
        render.value("mdm_speed", where, "us per client")


def test_a_page_takes_its_table_and_plot_from_the_file(render, monkeypatch, tmp_path):
    rows = [{"what": "fedscape", "s": 1.5, "note": "x"}, {"what": "a <rival>", "s": "3.0 ± 0.5"}]
    content = {"name": "n", "command": "benchmarks/n.py", "versions": {"python": "3.11"}, "rows": rows, "note": ""}
    (tmp_path / "n.json").write_text(json.dumps(content | {"date": "2026-01-02", "commit": "abc", "machine": "2 x X"}))
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    files = {}
    mark = '<!-- results/n.json columns="what; s" bars="s" by="what" -->'
    text = render.page(f"## Is it fast?\n\n{mark}\n| stale |\nIt is.\n", files)
    assert text.startswith(f"# Is it fast?\n\n{mark}\n\n| what | s |\n| --- | --- |\n| fedscape | 1.5 |\n")
    assert "![s](plots/n.svg)\n\nIt is.\n\n<!-- made -->" in text
    assert "`python benchmarks/n.py`; 2026-01-02 at `abc`; 2 x X; python 3.11." in text
    assert render.page(text, files) == text
    (svg,) = files.values()
    assert 'class="ours"' in svg
    assert "a &lt;rival&gt;" in svg


def test_what_did_not_work_is_listed(render):
    pages = {"core-a": "# Is a?\n\n**Did not work:** a was slower.\n", "b": "# Is b?\n"}
    text = render.front("<!-- failures -->\n\n<!-- pages core- -->\n\n<!-- pages -->\n", pages)
    assert "- a was slower. ([Is a?](pages/core-a.md))" in text
    assert "<!-- pages core- -->\n\n- [Is a?](pages/core-a.md)\n" in text
    assert "<!-- pages -->\n\n- [Is b?](pages/b.md)\n" in text


def test_history_has_one_line_for_each_commit_and_size(render):
    for file in (BENCHMARKS / "results" / "history").glob("*.jsonl"):
        lines = render.history.lines(file.stem)
        assert lines
        keys = [(line["commit"], line["quick"], line["date"]) for line in lines]
        assert len(set(keys)) == len(keys)
        for line in lines:
            assert line["value"] > 0
            assert line["column"] == render.history.KEPT[file.stem][1]
            assert {"date", "commit", "machine"} <= set(line)


def test_results_that_are_older_than_dates_are_listed_only_while_they_are(render):
    for name in json.loads(render.UNDATED.read_text()):
        assert "date" not in render.load(name), f"{name} has a date now: run render.py --date"


def test_a_report_says_date_commit_and_machine(render, monkeypatch, tmp_path, capsys):
    table = sys.modules["table"]
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmarks/x.py", "--quick"])
    table.report("x", [{"a": 1}])
    assert "| 1 |" in capsys.readouterr().out
    about = json.loads((tmp_path / "quick" / "x.json").read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", about["date"])
    assert re.match(r"\d+ x ", about["machine"])
    assert about["commit"]
