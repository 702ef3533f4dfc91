"""The report: one file, nothing of it from elsewhere, no text in it is markup, the same bytes each time."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from fedscape import DataError, Federation
from fedscape.report import plot_kinds, plot_map, plot_methods, plot_skew, render, summary
from fedscape.studies import Study, study

EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "=HYPERLINK(1)",
    "a & b",
    "</style><b>",
    "\u2028x",
]


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(0)
    y = rng.integers(0, len(EVIL), 600)
    x = rng.normal(size=(600, 3)) + y[:, None]
    fed = Federation({"x": x, "y": y}, np.arange(0, 601, 25), names={"y": EVIL})
    return study(fed, rounds=2, seeds=1, source="<i>evil</i>.csv", progress=False)


class Tags(HTMLParser):
    """All tags and attributes of a page, and what stands in its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.links, self.handlers, self.scripts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action", "data", "poster")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)


def read(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def test_no_label_becomes_markup(made):
    page = made.html()
    tags = read(page)
    assert tags.tags.count("script") == 2  # the tables and the code
    assert "img" not in tags.tags
    assert not tags.handlers
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<i>evil" not in page


def test_the_tables_in_the_page_are_those_of_the_result(made):
    found = re.search(r'<script type="application/json" id="tables">(.*?)</script>', made.html(), re.DOTALL)
    assert json.loads(found[1]) == json.loads(json.dumps(made.tables()))


def test_the_page_needs_nothing_from_elsewhere(made):
    page = made.html()
    assert all(link.startswith("#") for link in read(page).links)
    assert not re.findall(r"https?:|//[a-z]|url\(|@import", page.replace("application/json", ""))
    assert "default-src &#x27;none&#x27;" in page
    assert len(page.encode()) < 6e6


def test_every_figure_has_a_reading(made):
    page = made.html()
    assert page.count("<figure") >= 10
    assert page.count("<figure") == page.count("<figcaption>")
    for text in re.findall(r"<figcaption>(.*?)</figcaption>", page, re.DOTALL):
        assert len(text) > 10


def test_the_same_result_gives_the_same_bytes_also_from_its_file(made, tmp_path):
    made.save(tmp_path / "s")
    assert (tmp_path / "s" / "report.html").read_text() == made.html()
    assert Study.load(tmp_path / "s").html() == made.html()


@pytest.fixture(scope="module")
def labels_only():
    """Pages of a study without a tournament, clients hidden and shown."""
    fed = Federation({"y": [0, 1] * 24}, np.arange(0, 49, 4), [f"ward {i}" for i in range(12)])
    return tuple(study(fed, show_clients=s, progress=False).html() for s in (False, True))


def test_clients_are_named_only_where_asked(made, labels_only):
    assert "Every client" not in made.html()
    hidden, shown = labels_only
    assert "ward" not in hidden
    assert "ward 7" in shown
    assert "not meant to be shared" in shown


def test_sections_that_are_not_there_leave_no_hole(labels_only):
    page = labels_only[0]
    assert 'id="learn"' not in page
    assert 'href="#learn"' not in page
    assert "None" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL).replace("None is surely", "")


def test_what_was_spent_is_said(made):
    entry = {"unit": "client", "relation": "add-remove", "place": "central", "epsilon": 2.0, "delta": 1e-5}
    model = {**made.result["model"], "census": {"error": 0.1, "spent": [entry]}}
    page = render({**made.result, "model": model}, {})
    assert "One private count was made: epsilon" in page
    assert "empty: nothing was released" not in page


def test_a_report_prints_the_command_or_the_call_that_makes_it_again(made):
    from fedscape.report.page import _command

    asked = {"features": ["a b", "c"], "epsilon": None, "budget": None, "rounds": 3, "seeds": 1, "sites": None}
    about = {"source": "my data.csv", "column": "the label", "labels": True, "seed": 4, "show_clients": False}
    call = "fedscape.study(federation, column='the label', features=['a b', 'c'], rounds=3, seeds=1, seed=4)"
    assert _command({"about": about | {"asked": asked}}) == call
    assert "column" not in _command({"about": about | {"labels": False, "asked": asked}})
    assert _command({"about": about | {"asked": asked, "command": "fedscape study"}}) == "fedscape study"
    assert "rounds=2, seeds=1, seed=0)" in made.html()


def test_a_notebook_shows_the_advice(made):
    shown = made._repr_html_()
    assert shown == summary(made.result)
    assert "Which method?" in shown
    assert render(made.result, {}) != shown


def test_plots_return_a_figure_and_the_rows_they_show(made, tmp_path):
    for number, (figure, rows) in enumerate(
        (plot_methods(made.result), plot_skew(made.result), plot_kinds(made.result), plot_map(made.result, "labels"))
    ):
        figure.savefig(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 2000
        assert rows
    assert {row["clients"] for row in plot_methods(made.result)[1]} == {"true", "simulated"}
    assert len(plot_map(made.result)[1]) == 24
    with pytest.raises(DataError, match="there is no kind 'Z'"):
        plot_kinds(made.result, "Z")
    with pytest.raises(DataError, match="there is no map by 'colour'"):
        plot_map(made.result, "colour")
    with pytest.raises(DataError, match="no tournament"):
        plot_methods({})
