"""The site builds without network, has every public name and every command, and asks no host for anything."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import fedscape
from fedscape.cli import app

ROOT = Path(__file__).parents[2]
GALLERY = runpy.run_path(str(ROOT / "tools" / "gallery.py"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("site")
    call = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", target]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return target


def test_every_public_name_is_in_the_reference(site):
    page = (site / "reference.html").read_text()
    missing = [n for n in fedscape.__all__ if f'id="{n.lower()}"' not in page and f'id="fedscape{n}"' not in page]
    assert all(inspect.ismodule(getattr(fedscape, name)) for name in missing), missing


def test_every_command_is_among_the_options(site):
    page = (site / "options.html").read_text()
    for name in get_command(app).commands:
        assert f"fedscape {name}" in page


def test_what_the_server_sees_names_what_clustered_learning_reveals(site):
    page = (site / "what-the-server-sees.html").read_text()
    row = re.search(r'<tr>\s*<td><a href="#clustered">.*?</tr>', page, re.DOTALL)
    assert row is not None
    assert "<td><code>update</code></td>" in row.group(0)


def test_no_page_asks_another_host(site):
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe)[^>]+>", page.read_text()):
            assert not re.search(r'(src|href)="(https?:)?//', tag), f"{page.name}: {tag}"


def test_every_page_of_docs_can_be_reached(site):
    menu = (site / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        link = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert f'href="{link}"' in menu, f"{link} is not in the menu of mkdocs.yml"


@pytest.mark.parametrize("path", GALLERY["SCRIPTS"], ids=lambda path: path.stem)
def test_every_script_of_the_gallery_was_executed_and_shows_its_figures(site, path):
    page = (site / "gallery" / f"{path.stem}.html").read_text()
    shown = [cell.text.splitlines()[-1] == "figure" for cell in GALLERY["cells"](path.read_text()) if cell.code]
    figures = re.findall(r'<img alt="([^"]+)" src="([^"]+)"', page)
    assert len(figures) == sum(shown) > 0
    for described, name in figures:
        assert len(described.split()) > 4
        assert (site / "gallery" / name).stat().st_size > 5_000


@pytest.mark.parametrize("path", GALLERY["SCRIPTS"], ids=lambda path: path.stem)
def test_notebooks_are_the_scripts_of_the_gallery(path):
    written = (GALLERY["NOTEBOOKS"] / f"{path.stem}.ipynb").read_text()
    assert written == GALLERY["notebook"](path), "run: python tools/gallery.py"


def test_the_site_can_be_searched_from_disk(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.locator("input.md-search__input").click()
    page.keyboard.type("deadline")
    hit = page.locator("a.md-search-result__link").first
    hit.wait_for()
    assert hit.get_attribute("href")
    page.close()
