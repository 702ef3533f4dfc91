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
    assert tags.tags.count("script") == 3  # the tables, what the map filters by, and the code
    assert "img" not in tags.tags
    assert not tags.handlers
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<i>evil" not in page


def test_the_tables_in_the_page_are_those_of_the_result(made):
    match = re.search(r'<script type="application/json" id="tables">(.*?)</script>', made.html(), re.DOTALL)
    embedded = json.loads(match[1])
    for name, rows in json.loads(json.dumps(made.tables())).items():
        columns, *lines = embedded.pop(name)
        assert [dict(zip(columns, line, strict=True)) for line in lines] == [
            {column: row.get(column) for column in columns} for row in rows
        ]
    assert embedded == {}


def test_the_page_needs_nothing_from_elsewhere(made):
    page = made.html()
    assert all(link.startswith("#") for link in read(page).links)
    assert not re.findall(r"https?:|//[a-z]|url\(|@import", page.replace("http://www.w3.org/2000/svg", ""))
    assert "default-src &#x27;none&#x27;" in page
    assert len(page.encode()) < 1e6


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


# -- what every figure has ---------------------------------------------------------------------------------------------


def test_every_figure_can_be_kept_and_says_what_made_it(made):
    page = made.html()
    figures = page.count("<figure")
    assert page.count('data-as="svg"') == page.count('data-as="png"') == figures
    assert page.count("Its numbers: <code>") == page.count(">Command</summary>") == figures
    assert "<!--command-->" not in page
    for path in set(re.findall(r"Its numbers: <code>(.*?)</code>", page)):
        part = made.result
        for key in path.split("."):
            part = part[key]
        assert part


def test_findings_are_ranked_and_each_links_to_its_evidence(made):
    from fedscape.report.findings import LEVELS, ranked

    leak = {"kind": "leak", "column": "x", "text": "'x' says the label"}
    odd = {"kind": "constant", "column": "z", "text": "'z' has one value"}
    result = {**made.result, "findings": [odd, leak]}
    findings = ranked(result)
    levels = [list(LEVELS).index(finding.level) for finding in findings]
    assert levels == sorted(levels)
    assert (findings[0].level, findings[0].text) == ("mend", "'x' says the label")
    assert findings[1].question == "Which method?"
    assert [f.answer for f in findings if f.level == "data"] == ["1 further remark", "No model is sent"]  # Local
    page = render(result, {})
    for finding in findings:
        assert page.count(f'id="{finding.anchor}"') == 1, finding
    shown = re.findall(r'<li class="finding (\w+)">', page)
    assert shown == [finding.level for finding in findings]


def test_an_answer_that_nobody_gains_is_not_called_shown(made):
    from fedscape.report.findings import ranked

    def level(answer: str) -> str:
        item = {
            "question": "Who gains by joining?",
            "answer": answer,
            "text": "",
            "value": 0,
            "low": None,
            "high": None,
        }
        return ranked({**made.result, "advise": [item]})[0].level

    assert level("not shown for any of the 2 sites") == "open"
    assert level("site 1 gains; not shown for site 2") == "shown"


# -- a reference -------------------------------------------------------------------------------------------------------

#: Figures of numbers, and the mark of the reference in each.
REFERENCE = {
    "rows-per-client": 'class="outline"',
    "categories": '<button type="button">reference</button>',
    "rows-by-time": 'class="ghost"',
    "categories-by-week": 'class="reference" data-tip',
    "apart": 'class="rhombus"',
    "how-uneven-sizes-are": 'class="rhombus"',
    "map": 'class="reference big"',
    "kinds": 'class="rhombus"',
    "how-many-kinds": 'class="rhombus"',
    "fidelity": 'class="rhombus"',
    "accuracy": 'class="rhombus"',
    "gains": 'class="rhombus"',
    "by-kind": 'class="rhombus"',
    "cohorts": 'class="outline"',
}


def cards(page: str) -> dict[str, str]:
    """The cards of a page by their anchors."""
    parts = re.split(r'<div class="card(?: wide)?" id="([^"]+)"><figure', page)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def dated():
    """Two years of the same clients, the second shown against the first."""
    rng = np.random.default_rng(3)
    years = []
    for year, tilt in ((2021, 0.0), (2022, 0.25)):
        kind = np.arange(24) % 2
        shares = np.where(kind[:, None] == 0, [0.6 - tilt, 0.2, 0.2 + tilt], [0.1, 0.2, 0.7])
        y = np.concatenate([rng.choice(3, 40, p=p) for p in shares])
        x = rng.normal(size=(960, 3)) + y[:, None]
        when = np.datetime64(f"{year}-01-01") + rng.integers(0, 365, 960).astype("timedelta64[D]")
        fed = Federation({"x": x, "y": y, "when": when}, np.arange(0, 961, 40), names={"y": ["a", "b", "c"]})
        how = {"rounds": 2, "seeds": 1, "show_clients": True, "source": str(year), "progress": False}
        years.append(study(fed, against=years[0] if years else None, **how))
    return years


def test_a_reference_is_in_every_figure(dated):
    first, second = (cards(each.html()) for each in dated)
    tables = {"columns", "privacy", "the-same-in-numbers", "methods", "costs", "clients"}
    over_time = {"clients-with-rows-by-week-and-kind"}  # the reference has other dates, and other clients
    assert set(REFERENCE) == set(second) - tables - over_time
    for name, mark in REFERENCE.items():
        assert mark in second[name], name
        assert mark not in first[name], name
    assert "2021" in second["accuracy"]
    assert "2021" not in first["accuracy"]
    assert "changed" in dated[1].html()
    assert Study(dated[1].result).html() == dated[1].html()


def test_a_population_is_a_reference_of_kinds_and_shares(dated, tmp_path):
    from fedscape.mixtures import MixtureOfDirichletMultinomials
    from fedscape.studies.against import read_reference, with_reference

    counts = Federation({"y": np.tile([[30, 5, 5], [5, 5, 30]], (10, 1))}, np.arange(21), names={"y": ["a", "b", "c"]})
    MixtureOfDirichletMultinomials(2, column="y", seed=0).fit(counts, progress=False).save(tmp_path / "p.json")
    page = cards(with_reference(dated[0], read_reference(tmp_path / "p.json")).html())
    assert 'class="rhombus"' in page["kinds"]
    assert 'class="reference big"' in page["map"]
    assert 'class="rhombus"' not in page["accuracy"]


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_a_shared_page_says_what_it_hides_and_a_shown_one_that_it_does_not(made, dated):
    from fedscape.report.sharing import hidden

    assert any("ids of 24 clients" in line for line in hidden(made.result))
    assert any("accuracy of each of 24 clients" in line for line in hidden(made.result))
    assert "What this page hides" in made.html()
    assert hidden(dated[0].result) == []
    assert "Do not share it" in dated[0].html()
    assert "axes" not in made.result["measure"]["map"]["labels"]
    assert "axes" in dated[0].result["measure"]["map"]["labels"]


def test_a_page_of_sites_does_not_claim_to_hide_their_accuracies():
    from fedscape.report.sharing import hidden

    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    fed = Federation({"x": rng.normal(size=(400, 2)) + y[:, None], "y": y}, np.arange(0, 401, 50))
    done = study(fed, rounds=1, seeds=1, progress=False)
    assert done.result["learn"]["joining"]["rows"]
    assert not any("accuracy of each" in line for line in hidden(done.result))
    assert "no accuracy of a single one" not in done.html()
    assert "each site&#x27;s accuracy is shown" in done.html().replace("'", "&#x27;")


def test_a_page_of_many_clients_stays_below_a_megabyte(dated):
    result, drawn = dated[1].result, 600  # as many as a map has
    row, points = result["clients"][0], result["measure"]["map"]
    every = [{**row, "client": f"customer {i:06d}"} for i in range(7000)]
    larger = {name: (points[name] * drawn)[:drawn] for name in ("kind", "size")}
    larger["client"] = [each["client"] for each in every[:drawn]]
    for way in ("labels", "features"):
        larger[way] = {**points[way], "points": (points[way]["points"] * drawn)[:drawn]}
    many = Study({**result, "clients": every, "measure": {**result["measure"], "map": larger}})
    page = many.html()
    assert len(page.encode()) < 1e6
    assert "customer 004999" in page
    assert "customer 005000" not in page


# -- colours -----------------------------------------------------------------------------------------------------------


def test_texts_have_enough_contrast_in_light_and_dark():
    from importlib.resources import files

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    style = files("fedscape.report").joinpath("style.css").read_text()
    themes = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    assert len(themes) == 2
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", theme.lower()))
        for text in ("ink", "soft", "accent", "good", "bad"):
            for ground in ("card", "ground"):
                light, dark = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)
