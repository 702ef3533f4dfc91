"""The report in a real browser, opened from disk: no error, no request, and what can be clicked works."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fedscape import Federation
from fedscape.studies import study

LABELS = ["<script>boom()</script>", "=1+1", "plain", "a, b", 'c "d"']


AXE = Path(os.environ.get("AXE") or Path(__file__).parent / "browser" / "node_modules" / "axe-core" / "axe.min.js")


@pytest.fixture(scope="module")
def shown():
    """A study of 30 dated clients that names them."""
    rng = np.random.default_rng(0)
    kind = np.arange(30) % 2
    y = np.concatenate([rng.choice(5, 40, p=[[0.4, 0.3, 0.1, 0.1, 0.1], [0.05, 0.05, 0.2, 0.3, 0.4]][k]) for k in kind])
    x = rng.normal(size=(1200, 4)) + y[:, None]
    when = np.datetime64("2024-01-01") + rng.integers(0, 300, 1200).astype("timedelta64[D]")
    columns = {"x": x, "y": y, "when": when}
    fed = Federation(columns, np.arange(0, 1201, 40), [f"ward {i}" for i in range(30)], names={"y": LABELS})
    return fed, study(fed, rounds=2, seeds=1, show_clients=True, progress=False)


@pytest.fixture(scope="module")
def shown_file(shown, tmp_path_factory):
    return shown[1].save(tmp_path_factory.mktemp("shown")) / "report.html"


@pytest.fixture(scope="module")
def shared(shown):
    """The same clients in a study to be shared, with the other one as its reference."""
    fed, reference = shown
    return study(fed, rounds=2, seeds=1, against=reference, progress=False)


@pytest.fixture(scope="module")
def page_file(shared, tmp_path_factory):
    return shared.save(tmp_path_factory.mktemp("study")) / "report.html"


@pytest.fixture
def opened(browser, page_file):
    """The page, with everything it said and asked for."""
    context = browser.new_context(
        accept_downloads=True, viewport={"width": 1180, "height": 900}, reduced_motion="reduce"
    )
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
    assert opened.locator("script").count() == 3
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


def test_every_link_of_a_finding_leads_to_something_that_is_there(opened):
    links = opened.locator(".finding a")
    assert links.count() == opened.locator(".finding").count() >= 8
    for link in links.all():
        link.click()
        target = opened.locator(link.get_attribute("href"))
        assert target.count() == 1
        assert target.is_visible()


# -- picking clients ---------------------------------------------------------------------------------------------------


def numbers_in(page, selector: str) -> set[int]:
    return set(page.locator(selector).evaluate_all("points => points.map(p => Number(p.dataset.i))"))


def height_of(page, bars: str) -> float:
    """The height of all these bars of the histogram together: it goes with the number of clients."""
    heights = page.locator(f"svg.sizes {bars}").evaluate_all(
        "bars => bars.map(bar => Number(bar.getAttribute('height')))"
    )
    return sum(heights)


def test_dragging_over_the_map_filters_the_page(opened, shared):
    points = shared.result["measure"]["map"]["features"]["points"]
    frame = opened.locator("#map-features svg")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    opened.mouse.move(box["x"] + 2, box["y"] + 2)
    opened.mouse.down()
    opened.mouse.move(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
    assert opened.locator("svg .area").count() == 1
    opened.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
    opened.mouse.up()
    heights = [p[1] for p in points]
    middle = (min(heights) + max(heights)) / 2
    above = {i for i, y in enumerate(heights) if y > middle}
    assert 0 < len(above) < 30
    assert numbers_in(opened, "#map-features .point.in") == above
    assert numbers_in(opened, "#map-labels .point.in") == above
    kinds = [shared.result["measure"]["map"]["kind"][i] for i in above]
    status = opened.get_by_role("status").inner_text()
    assert status.startswith(f"{len(above)} of 30 clients: {kinds.count('A')} of kind A")
    assert "is hidden" in status  # accuracies of single clients are not in a page to be shared
    assert not opened.locator(".ifjudged").is_visible()
    assert height_of(opened, ".part") == pytest.approx(len(above) / 30 * height_of(opened, ".bar"), abs=1)
    opened.keyboard.press("Escape")
    assert opened.locator(".point.in").count() == 0
    assert opened.locator("svg.sizes .part").count() == 0
    assert not opened.locator("#chosen").is_visible()


def test_the_map_is_a_listbox_for_the_keyboard_and_a_screen_reader(opened):
    listbox = opened.get_by_role("listbox", name="Map of clients by features")
    assert listbox.get_by_role("option").count() == 30
    assert listbox.locator("[tabindex='0']").count() == 1  # one stop of the tab key, not thirty
    listbox.locator("[tabindex='0']").focus()
    assert opened.locator("#tip").is_visible()
    places = set()
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "Home", "End"):
        opened.keyboard.press(key)
        places.add(opened.evaluate("document.activeElement.dataset.i"))
    assert len(places) > 2
    name = opened.evaluate("document.activeElement.getAttribute('aria-label')")
    assert re.fullmatch(r"client \d+, kind [A-F], 32 to 63 rows", name)
    opened.keyboard.press("Space")
    assert listbox.get_by_role("option", name=name, selected=True).count() == 1
    assert opened.get_by_role("status").inner_text().startswith("1 of 30 clients")
    opened.get_by_role("button", name="Show all").click()
    assert listbox.get_by_role("option", selected=True).count() == 0


def test_a_kind_can_be_drilled_down_into(opened, shared):
    opened.get_by_role("button", name="kind B", exact=True).click()
    assert opened.locator("#kind-B").is_visible()
    assert not opened.locator("#kind-A").is_visible()
    assert opened.locator("#by-kind .row:not(.away)").count() == 1
    assert "Kind B" in opened.locator("#by-kind .row:not(.away)").inner_text()
    assert opened.locator("path.curve[data-kind=A]").get_attribute("class").endswith("away")
    assert opened.locator(".ifjudged").is_visible()
    marks = opened.locator("#accuracy .dot.mine")
    served = next(k for k in shared.result["learn"]["by_kind"] if k["kind"] == "kind B")
    assert marks.count() == len(served["methods"]) == len(shared.result["learn"]["true"])
    tip = opened.locator("#accuracy .row[data-method=fedavg] .dot.mine").get_attribute("data-tip")
    assert tip == f"clients picked: {100 * served['methods']['fedavg']['value']:.1f}%"
    opened.get_by_role("button", name="Show only clients of kind B").click()  # pressed: everything comes back
    assert opened.locator("#by-kind .row:not(.away)").count() == 2
    assert opened.locator(".dot.mine").count() == 0


def test_where_clients_are_shown_their_rows_and_accuracies_follow_the_map(browser, shown, shown_file):
    page = browser.new_page()
    page.goto(shown_file.as_uri())
    result = shown[1].result
    for n in (0, 7):
        page.locator("#map-features .point").nth(n).focus()
        page.keyboard.press("Enter")
    picked = {result["measure"]["map"]["client"][i] for i in numbers_in(page, "#map-features .point.in")}
    rows = page.locator("table[data-name=clients] tbody tr:not(.away) td:first-child").all_inner_texts()
    assert set(rows) == picked
    assert len(picked) == 2
    mean = np.mean([row["fedavg"] for row in result["clients"] if row["client"] in picked])
    tip = page.locator("#accuracy .row[data-method=fedavg] .dot.mine").get_attribute("data-tip")
    assert tip == f"clients picked: {100 * mean:.1f}%"
    assert height_of(page, ".part") == pytest.approx(2 / 30 * height_of(page, ".bar"), abs=1)
    page.close()


def test_on_a_phone_a_tap_picks(browser, page_file):
    context = browser.new_context(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.goto(page_file.as_uri())
    page.locator("#map-features .point").nth(3).tap(force=True)
    assert page.locator("#map-features .point.in").count() == 1
    bar = page.locator("#chosen").bounding_box()
    assert bar["x"] >= 0
    assert bar["x"] + bar["width"] <= 390
    page.get_by_role("button", name="Show all").tap()
    assert page.locator(".point.in").count() == 0
    context.close()


# -- figures to keep ---------------------------------------------------------------------------------------------------


def saved(page, button) -> bytes:
    with page.expect_download() as waiting:
        button.click()
    return Path(waiting.value.path()).read_bytes()


def test_every_figure_is_saved_as_an_svg_that_stands_alone(opened):
    command = opened.locator("#computed dd code").first.inner_text()
    first = opened.locator("#rows-per-client [data-as=svg]")
    for card in opened.locator(".card:has(> figure)").all():
        text = card.evaluate("card => picture(card).text")  # a browser allows few downloads one after the other
        if card.get_attribute("id") == "rows-per-client":
            assert saved(opened, first).decode() == text
        root = ElementTree.fromstring(text)
        name = card.locator("h3").inner_text()
        assert root.find("{*}title").text == name
        assert root.find("{*}desc").text == command
        words = " ".join(node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text"))
        assert name.split()[0] in words
        assert "var(" not in text
        assert not re.search(r"https?://(?!www\.w3\.org)|href|foreignObject", text)
        assert len(root.findall(".//{*}rect") + root.findall(".//{*}path") + root.findall(".//{*}line")) > 1


def test_a_figure_is_saved_as_a_png_with_something_in_it(opened):
    from PIL import Image

    for anchor in ("map", "accuracy", "rows-per-client"):
        picture = Image.open(io.BytesIO(saved(opened, opened.locator(f"#{anchor} [data-as=png]"))))
        assert picture.format == "PNG"
        assert picture.width > 600
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 20


def test_every_figure_says_the_command_that_made_it(opened):
    command = opened.locator("#computed dd code").first.inner_text()
    first = opened.locator("#accuracy details")
    assert not first.locator("code").first.is_visible()
    first.locator("summary").click()
    assert first.locator("code").all_inner_texts() == [command, "learn.true"]


# -- accessibility -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_has_nothing_to_say(browser, page_file, shown_file, width, scheme):
    if not AXE.is_file() and "AXE" not in os.environ:
        pytest.skip("axe-core is not installed: 'npm ci --prefix tests/e2e/browser', or set AXE to its axe.min.js")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    for file in (page_file, shown_file) if (width, scheme) == (1280, "light") else (page_file,):
        page.goto(file.as_uri())
        page.evaluate(AXE.read_text())
        for pick in (False, True):
            if pick:
                page.locator(".pick").first.click()
                page.locator("#accuracy summary").click()
            violations = page.evaluate("axe.run(document).then(done => done.violations)")
            listed = [(rule["id"], [node["html"][:120] for node in rule["nodes"][:3]]) for rule in violations]
            assert listed == [], json.dumps(listed, indent=1)
    context.close()


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
