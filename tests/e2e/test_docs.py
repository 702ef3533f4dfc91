"""Every code block of README and docs runs; every command line in them works."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from shell import fedscape, python
from typer.main import get_command

from fedscape.cli import app

ROOT = Path(__file__).parents[2]
MADE = {"what-the-server-sees.md", "reference.md", "options.md"}  # by tools/site.py
TOOL = runpy.run_path(str(ROOT / "tools" / "printed.py"))
PAGES = TOOL["PAGES"]


def runs(block: str) -> list:
    """The code or commands of each page, and the output that the page shows for them, if any."""
    return [
        pytest.param(found["code"], found["printed"], id=f"{page.stem}-{number}")
        for page in PAGES
        for number, found in enumerate(TOOL[block].finditer(page.read_text()))
    ]


@pytest.mark.parametrize(("code", "printed"), runs("BLOCK"))
def test_python_in_the_docs_runs_and_prints_what_the_page_says(code, printed, tmp_path):
    done = python(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert printed is None or TOOL["fits"](printed, done.stdout), f"run: python tools/printed.py\n{done.stdout}"


def test_output_that_differs_is_seen():
    assert TOOL["fits"]("a 0.5\nb ...\n", "a  0.5\nb 7\n")
    assert not TOOL["fits"]("a 0.5\n", "a 0.6\n")
    assert not TOOL["fits"]("a 0.5\n", "a 0.5\nb\n")


def test_output_of_commands_is_theirs_and_files_go_to_a_folder():
    page = "```bash\nmake study\nfedscape describe '/tmp/a b'  # mine\n```\n\n```text\nrows 3\n```\n"
    (found,) = TOOL["SHELL"].finditer(page)
    assert TOOL["commands"](found["code"], "/x") == [["describe", "/x/a b"]]
    assert found["printed"] == "rows 3\n"
    assert not TOOL["BLOCK"].findall(page)


@pytest.mark.parametrize(("code", "printed"), runs("SHELL"))
def test_command_lines_in_the_docs_run_and_print_what_the_page_says(code, printed, tmp_path):
    said = ""
    for arguments in TOOL["commands"](code, tmp_path):
        done = fedscape(*arguments, folder=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)
        said += done.stdout
    assert printed is None or TOOL["fits"](printed, said), f"run: python tools/printed.py\n{said}"


def test_links_point_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link and link not in MADE:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_command_line_in_the_readme_exists():
    known = get_command(app).commands
    for page in PAGES:
        for line in re.findall(r"`fedscape ([a-z]+)", page.read_text()):
            assert line in known, f"{page.name} speaks of fedscape {line}"


def test_tests_and_scripts_that_pages_name_exist():
    known = {
        name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    for page in PAGES:
        text = page.read_text()
        for name in re.findall(r"`(test_\w+)`", text):
            assert name in known, f"{page.name} names {name}"
        for file in re.findall(r"\b((?:tests|benchmarks)/[\w/]+\.py)", text):
            assert (ROOT / file).exists(), f"{page.name} names {file}"
