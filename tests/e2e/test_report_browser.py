"""The report in a real browser, opened from disk: no error, no request, and what can be clicked works."""

from __future__ import annotations

import csv
import os
import shutil

import numpy as np
import pytest

from fedscape import Federation
from fedscape.studies import study

CHROMIUM = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]
LABELS = ["<script>boom()</script>", "=1+1", "plain", "a, b", 'c "d"']


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    rng = np.random.default_rng(0)
    kind = np.arange(30) % 2
    y = np.concatenate([rng.choice(5, 40, p=[[0.4, 0.3, 0.1, 0.1, 0.1], [0.05, 0.05, 0.2, 0.3, 0.4]][k]) for k in kind])
    x = rng.normal(size=(1200, 4)) + y[:, None]
    fed = Federation({"x": x, "y": y}, np.arange(0, 1201, 40), names={"y": LABELS})
    folder = tmp_path_factory.mktemp("study")
    study(fed, rounds=2, seeds=1, progress=False).save(folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.fail("no Chromium: 'apt-get install chromium', or set the variable CHROMIUM to the browser's path")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


@pytest.fixture
def opened(browser, page_file):
    """The page, with everything it said and asked for."""
    context = browser.new_context(accept_downloads=True, viewport={"width": 1180, "height": 900})
    page = context.new_page()
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(page_file.as_uri())
    yield page
    context.close()
    assert page.said == []
    assert all(url.startswith(("file:", "blob:")) for url in page.asked), page.asked


def test_it_opens_without_error_or_request_and_labels_are_text(opened, page_file):
    assert "a study of its clients" in opened.title()
    assert opened.asked == [page_file.as_uri()]
    assert opened.locator("script").count() == 2
    assert opened.get_by_text("<script>boom()</script>").count() > 0


def test_a_component_can_be_picked(opened):
    buttons = opened.locator(".tabs[aria-label='Kinds of clients'] button")
    assert buttons.count() >= 2
    assert opened.locator("#kind-A").is_visible()
    buttons.nth(1).click()
    assert opened.locator("#kind-B").is_visible()
    assert not opened.locator("#kind-A").is_visible()
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"


def test_the_map_can_be_changed_and_a_point_tells_what_it_is(opened):
    opened.get_by_role("button", name="by labels").click()
    assert opened.locator("#map-labels").is_visible()
    point = opened.locator("#map-labels .point").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    assert opened.locator("#tip").is_visible()
    assert "kind" in opened.locator("#tip").inner_text()
    assert "client " in opened.locator("#tip").inner_text()


def test_a_point_can_be_reached_by_keyboard(opened):
    opened.locator("#map-features .point").first.focus()
    assert opened.locator("#tip").is_visible()


def test_methods_can_be_sorted(opened):
    table = opened.locator("table[data-name=methods]")
    head = table.locator("th", has_text="worst tenth")

    def column(number: int) -> list[str]:
        return table.locator(f"tbody td:nth-child({number})").evaluate_all("cells => cells.map(c => c.dataset.v)")

    head.locator("button").click()
    falling = [float(v) for v in column(4)]
    assert falling == sorted(falling, reverse=True)
    head.locator("button").click()
    rising = [float(v) for v in column(4)]
    assert rising == sorted(rising)
    assert head.get_attribute("aria-sort") == "ascending"
    table.locator("th", has_text="method").locator("button").click()
    assert column(1) == sorted(column(1), key=str.lower)


def test_a_table_can_be_downloaded_and_no_cell_is_a_formula(opened, tmp_path):
    with opened.expect_download() as waiting:
        opened.locator("button.csv[data-table=categories]").click()
    assert waiting.value.suggested_filename == "categories.csv"
    waiting.value.save_as(tmp_path / "categories.csv")
    with open(tmp_path / "categories.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["category"] for row in rows} == {"<script>boom()</script>", "'=1+1", "plain", "a, b", 'c "d"'}
    assert sum(int(row["rows"]) for row in rows) == 1200


@pytest.mark.parametrize("width", [320, 390, 768, 1400])
def test_no_width_needs_scrolling_sideways(browser, page_file, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(page_file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_dark_is_dark_and_print_shows_every_component(browser, page_file):
    page = browser.new_page(color_scheme="dark")
    page.goto(page_file.as_uri())
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(v) for v in ground.removeprefix("rgb(").removesuffix(")").split(",")) < 60
    page.emulate_media(media="print")
    assert page.locator("#kind-A").is_visible()
    assert page.locator("#kind-B").is_visible()
    assert not page.locator("nav").is_visible()
    page.close()


def test_it_can_be_read_without_scripts(browser, page_file):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator("#kind-A").is_visible()
    assert page.locator("#kind-B").is_visible()
    assert not page.locator("button.csv").first.is_visible()
    context.close()
