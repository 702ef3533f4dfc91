"""The study on the command line: a report from any input it can use, one line for any it cannot."""

from __future__ import annotations

import html
import json
import re
import shlex

import numpy as np
import pytest
from shell import fedscape, ok, refused, started

from fedscape import Federation, datasets
from fedscape.cli.studied import summary


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two studies of count vectors, as the command writes them."""
    base = tmp_path_factory.mktemp("studies")
    fed = datasets.load("acs-race")
    for name, part in (("a", slice(0, 24)), ("b", slice(1200, 1224))):
        fed.take(part).save(base / f"data-{name}")
        ok("study", base / f"data-{name}", "--out", base / name, "--quiet")
    return base


def test_a_study_writes_report_result_and_tables(folders):
    found = {str(path.relative_to(folders / "a")) for path in (folders / "a").rglob("*") if path.is_file()}
    tables = {f"tables/{name}.parquet" for name in ("categories", "kinds", "advice", "fidelity")}
    assert found == {"result.json", "report.html", "seconds.json", *tables}
    assert json.loads((folders / "a" / "result.json").read_text())["about"]["source"] == "data-a"


def test_the_command_prints_advice_and_where_the_report_is(folders):
    said = started("study", folders / "data-a", "--out", folders / "a", "--quiet", "--seed", 0, "--force")
    assert "Do clients differ? yes" in said
    advised = json.loads((folders / "a" / "result.json").read_text())["advise"]
    first, *lines, last = said.splitlines()[-len(advised) - 2 :]
    assert first.startswith("data-a: y, 24 clients, ")
    assert [line.split("  ")[0] for line in lines] == [item["question"] for item in advised]
    assert re.fullmatch(r".+/report\.html: the report, after \d+ s", last)
    assert json.loads(ok("study", folders / "data-a", "--out", folders / "a", "--json", "--force"))["format"] == 2


def test_the_summary_shows_the_interval_of_an_estimate_and_cuts_long_answers():
    questions = {
        "Which method?": (
            "Local, tied with " + "FedAvg, " * 9,
            "Local: accuracy 54.4% [49.9%, 59.0%] on rows held out.",
        ),
        "Is federation worth it?": ("not shown", "Not shown: FedEM has +0.4 points [-3.6, +4.5] over sites alone."),
        "Who gains by joining?": ("nobody", "site 1 +1.6 points [-9.9, +13.1]; site 2 +0.5 points [-7.9, +8.9]."),
    }
    result = {
        "about": {"source": "heart.csv", "column": "target"},
        "describe": {"clients": 4, "rows": 1920},
        "advise": [{"question": q, "answer": answer, "text": text} for q, (answer, text) in questions.items()],
    }
    assert summary(result) == [
        "heart.csv: target, 4 clients, 1,920 rows; intervals of 95%",
        "Which method?            Local, tied with FedAvg, FedAvg, ...  54.4% [49.9%, 59.0%]",
        "Is federation worth it?  not shown                             +0.4 points [-3.6, +4.5]",
        "Who gains by joining?    nobody",
    ]


def test_another_study_is_not_written_over(folders):
    before = (folders / "a" / "result.json").read_bytes()
    said = refused(2, "study", folders / "data-b", "--out", folders / "a")
    assert "holds a study: pass --force" in said
    assert (folders / "a" / "result.json").read_bytes() == before


def test_the_command_that_a_report_prints_makes_the_report_again(tmp_path):
    rng = np.random.default_rng(1)
    lines = ["the who,a b,c,label"]
    lines += [f"p{i // 12},{rng.normal():.3f},{rng.normal():.3f},{rng.integers(0, 2)}" for i in range(96)]
    (tmp_path / "my data.csv").write_text("\n".join(lines) + "\n")
    ok(
        *("study", tmp_path / "my data.csv", "--client", "the who", "--features", "a b,c", "--rounds", 1),
        *("--seeds", 1, "--seed", 4, "--show-clients", "--out", tmp_path / "first", "--quiet"),
    )
    page = (tmp_path / "first" / "report.html").read_text()
    command = html.unescape(re.search(r"<dt>Command</dt><dd><code>(.*?)</code>", page)[1])
    words = shlex.split(command)
    assert words[:5] == ["fedscape", "study", "my data.csv", "--features", "a b,c"]
    done = fedscape(*words[1:], "--quiet", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "study" / "result.json").read_bytes() == (tmp_path / "first" / "result.json").read_bytes()


def test_a_second_private_study_is_counted_in_the_ledger_beside_the_data(folders, tmp_path):
    folders.joinpath("data-b").rename(tmp_path / "data")
    call = ("study", tmp_path / "data", "--epsilon", 1, "--rounds", 1, "--seeds", 1)
    done = fedscape(*call, "--out", tmp_path / "one")
    assert done.returncode == 0, done.stderr
    ledger = tmp_path / ".fedscape" / "ledger.jsonl"
    assert f"recorded in {ledger}, which has a budget of 1" in done.stderr
    about = json.loads(ok("privacy", "show", ledger, "--json"))
    releases = about["releases"]
    assert releases == 5  # four to find the clip, and the count
    assert 0.85 < about["totals"][0]["spent"] <= 1
    said = refused(1, *call, "--out", tmp_path / "two", "--quiet")
    assert "beyond the budget of 1" in said
    assert "--ledger" in said
    assert not (tmp_path / "two").exists()
    assert json.loads(ok("privacy", "show", ledger, "--json"))["releases"] == releases
    ok(*call, "--out", tmp_path / "two", "--ledger", tmp_path / "own.jsonl", "--quiet")
    (tmp_path / "data").rename(folders / "data-b")
    assert "--ledger needs --epsilon" in refused(2, "study", "acs-race", "--ledger", tmp_path / "own.jsonl")


def test_a_report_is_rendered_again_to_the_same_bytes(folders):
    before = (folders / "a" / "report.html").read_bytes()
    (folders / "a" / "report.html").unlink()
    started("report", folders / "a")
    assert (folders / "a" / "report.html").read_bytes() == before
    assert "no study in" in refused(2, "report", folders / "data-a")


def test_a_reference_is_drawn_beside_a_study(folders, tmp_path):
    ok("study", folders / "data-a", "--against", folders / "b", "--out", tmp_path / "both", "--quiet")
    page = (tmp_path / "both" / "report.html").read_text()
    assert "reference: data-b" in page
    assert "--against b" in page  # no path of this machine
    assert str(tmp_path) not in page
    before = (folders / "a" / "report.html").read_bytes()
    ok("report", folders / "a", "--against", folders / "b")
    assert "reference: data-b" in (folders / "a" / "report.html").read_text()
    ok("report", folders / "a")
    assert (folders / "a" / "report.html").read_bytes() == before
    assert "no study or population" in refused(2, "report", folders / "a", "--against", tmp_path / "nowhere")


def test_the_command_of_a_report_keeps_options_that_say_no(tmp_path):
    rows = "\n".join(f"s{i % 6},{i % 2},{i % 5}" for i in range(120))
    (tmp_path / "d.csv").write_text(f"client,label,x\n{rows}\n")
    ok("study", tmp_path / "d.csv", "--devices", "--rounds", 1, "--seeds", 1, "--out", tmp_path / "s", "--quiet")
    command = json.loads((tmp_path / "s" / "result.json").read_text())["about"]["command"]
    assert "--devices" in command
    assert "--share" not in command


def test_two_studies_are_compared(folders):
    assert "drift" in started("compare", folders / "a", folders / "b")
    same = json.loads(ok("compare", folders / "a", folders / "a", "--json"))
    assert same["drift"]["value"] == 0
    assert same["drift"]["p"] > 0.9
    (folders / "torn").mkdir()
    (folders / "torn" / "result.json").write_text("{")
    assert "is not the result of a study" in refused(2, "compare", folders / "a", folders / "torn")


def test_a_method_is_explained():
    assert "client by client" in started("explain", "clustered")
    assert json.loads(ok("explain", "histogram", "--json"))["reveals"] == []
    assert "not 'fedmagic'" in refused(2, "explain", "fedmagic")


def test_a_folder_of_something_else_is_not_written_into(folders, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    assert "holds no study" in refused(2, "study", folders / "data-a", "--out", tmp_path / "mine")
    (tmp_path / "file").write_text("x")
    assert "holds no study" in refused(2, "study", folders / "data-a", "--out", tmp_path / "file")


def test_csv_with_gaps_and_texts_is_studied_to_the_end(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["who,age,town,remark,label"]
    for i in range(240):
        age = "" if i % 17 == 0 else str(rng.integers(20, 80))
        label = "" if i % 31 == 0 else ["yes", "no", "<script>"][rng.integers(0, 3)]
        lines.append(f"p{i // 20},{age},{'ab'[i % 2]},text number {i},{label}")
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    said = ok(
        "study", tmp_path / "d.csv", "--client", "who", "--rounds", 2, "--seeds", 1, "--out", tmp_path / "s", "--quiet"
    )
    assert "rows have no 'label'" in said
    assert "'remark'" in said
    page = (tmp_path / "s" / "report.html").read_text()
    assert "&lt;script&gt;" in page
    assert "p3" not in json.dumps(json.loads((tmp_path / "s" / "result.json").read_text()))


BAD = {
    "one client": ({"y": [0, 1]}, [0, 2], "needs at least two"),
    "no rows": ({"y": np.empty(0, dtype=np.int64)}, [0, 0, 0], "none of the clients has any"),
    "one value": ({"y": [3, 3, 3]}, [0, 1, 3], "is '3' in all rows"),
    "nothing to look at": ({"id": np.arange(1000, 1040)}, [0, 20, 40], "nothing to study"),
    "labels that are all missing": ({"y": [np.nan, np.nan]}, [0, 1, 2], "no value in any row"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_studied_gives_one_line(case, tmp_path):
    columns, offsets, message = BAD[case]
    Federation(columns, offsets).save(tmp_path / "data")
    said = refused(2, "study", tmp_path / "data", "--quiet", "--out", tmp_path / "s")
    assert message in said
    assert said.count("\n") == 1
    assert said.startswith("fedscape: ")


def _many_categories(number, *, n_clients=60, seed=5):
    """Two kinds of clients that prefer other halves of the categories, most of them rare."""
    draw = np.random.default_rng(seed)
    popular = 1 / np.arange(1, number + 1)
    alphas = [200 * p / p.sum() for p in (popular * (1 + 9 * (np.arange(number) % 2 == k)) for k in (0, 1))]
    rows = [draw.choice(number, 120, p=draw.dirichlet(alphas[i % 2])) for i in range(n_clients)]
    words = np.array([f"word {j:04d}" for j in range(number)])
    return Federation.from_arrays(
        {"y": words[np.concatenate(rows)]}, clients=np.repeat(np.arange(n_clients), [len(r) for r in rows])
    )


@pytest.mark.parametrize("case", ["acs-mini", 150, 400])
def test_fit_and_study_find_the_same_kinds(case, tmp_path):
    """Also where a study puts rare categories together: what it says is then the sums of what fit found."""
    fed = datasets.load(case).select(["race"]) if case == "acs-mini" else _many_categories(case)
    fed.save(tmp_path / "d")
    column = next(iter(fed.columns))
    fitted = json.loads(ok("fit", tmp_path / "d", "--column", column, "--quiet", "--json"))
    how = ("--rounds", 1, "--seeds", 1, "--quiet", "--json", "--out", tmp_path / "s")
    reported = json.loads(ok("study", tmp_path / "d", "--column", column, *how))["model"]
    assert "(all other)" in reported["names"]
    assert [row["score"] for row in reported["candidates"]] == [row["score"] for row in fitted["candidates"]]
    assert case == "acs-mini" or len(fitted["components"]) == 2
    assert len(reported["components"]) == len(fitted["components"])
    components = sorted(fitted["components"], key=lambda row: -row["weight"])
    for kind, component in zip(reported["components"], components, strict=True):
        assert kind["scale"] == pytest.approx(component["scale"], rel=1e-3)
        assert kind["share"]["value"] == pytest.approx(component["weight"], abs=0.01)
        assert kind["size"] == pytest.approx(component["mean_size"], rel=1e-3)
        assert sum(kind["means"]) == pytest.approx(1, abs=1e-3)
        for text in component["most"].split(", "):  # the most frequent are never merged
            name, _, share = text.rpartition(" ")
            if name in reported["names"]:
                mean = kind["means"][reported["names"].index(name)]
                assert mean == pytest.approx(float(share.rstrip("%")) / 100, abs=1e-3)


def test_kinds_of_clients_with_one_row_each_are_not_named(tmp_path):
    lines = "".join(f"p{i},{i % 5}.5,{'uvw'[i % 3]}\n" for i in range(90))
    (tmp_path / "single.csv").write_text("who,a,y\n" + lines)
    about = json.loads(ok("study", tmp_path / "single.csv", "--client", "who", "--json", "--out", tmp_path / "s"))
    assert len(about["model"]["components"]) == 1
    assert about["model"]["components"][0]["words"].startswith("All clients, one row each: their kinds cannot be told")
    answers = {item["question"]: item["answer"] for item in about["advise"]}
    assert answers["How many kinds of clients?"] == "not known"
    assert "one row says nothing about a client's kind" in ok("fit", tmp_path / "single.csv", "--client", "who")
