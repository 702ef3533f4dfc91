"""A server, or an operator's app, that asks for what a node's owner does not allow."""

from __future__ import annotations

import stat

import numpy as np
import pytest
from asking import Asker

from fedscape import DataError, Federation, Gaussian, Histogram, Laplace, Ledger, Moments
from fedscape.core.computation import stable_name
from fedscape.engines.flower import Terms
from fedscape.engines.flower import terms as owner_terms
from fedscape.engines.flower.booking import groups_of, spent_in_all
from fedscape.privacy.accounting import epsilon_of
from fedscape.sketches import DistributionSketch
from fedscape.sketches.distribution import ClientSketches


def federation():
    return Federation({"y": np.array([0, 1, 2]), "salary": np.array([1, 2, 3])}, [0, 3], ids=["a"])


def node(folder, terms=None, **how):
    return Asker(federation(), folder, terms=terms, **how)


LOCAL = Gaussian(clip=1.0, multiplier=50.0, place="local")
ROWS = Laplace(clip=1.0, epsilon=0.1, unit="row", place="local")
SKETCH = ClientSketches(DistributionSketch(rows=2, bits=1, column="y"))

REFUSED = {
    "epsilon": (Terms(epsilon=0.001), Histogram(3), LOCAL, "beyond the budget"),
    "total_epsilon": (Terms(total_epsilon=0.001), Histogram(3), LOCAL, "beyond the budget"),
    "unnoised": (Terms(unnoised=0), Histogram(3), None, "one more answer without noise"),
    "places": (Terms(places=("local",)), Histogram(3), Gaussian(clip=1.0, multiplier=9.0), "noise at a place"),
    "units": (Terms(units=("client",)), Histogram(3), ROWS, "for the unit 'row', which the owner does not accept"),
    "relations": (Terms(relations=("add-remove",)), Histogram(3), LOCAL, "for the relation 'replace-one', which the"),
    "columns": (Terms(columns=("y",)), Histogram(9, column="salary"), LOCAL, "on the column 'salary', which the owner"),
    "computations": (Terms(computations=("moments",)), Histogram(3), LOCAL, "a computation that the owner does not"),
    "nested": (Terms(computations=("client-sketches",)), SKETCH, LOCAL, "a computation that the owner does not allow"),
    "reveals": (Terms(), SKETCH, LOCAL, "shows client by client what the owner does not"),
    "numbers": (Terms(numbers=200), Histogram(250), LOCAL, "larger than the owner allows"),
    "largest": (Terms(largest=0.5), Histogram(3), LOCAL, "beyond the owner's range"),
}


@pytest.mark.parametrize("where", ["the file", "the app"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_term_forbids_is_refused_and_logged(name, where, tmp_path):
    terms, work, privacy, text = REFUSED[name]
    if where == "the file":
        owner_terms.write_terms(tmp_path, terms)
    asked = node(tmp_path, None if where == "the file" else terms)
    state = {"counts": np.ones(3)} if name == "largest" else None
    assert text in asked.ask(work, state=state, privacy=privacy)[1]["refused"]
    line = asked.log[-1]
    assert line["outcome"] == "refused"
    assert line["terms"] == ("terms.toml" if where == "the file" else "app")
    assert stable_name(type(work)) in line["asked"]
    assert "salary" in line["asked"] or name != "columns"
    assert line["why"]
    assert not (tmp_path / "ledger.jsonl").exists() or asked.releases == 0


@pytest.mark.parametrize("name", REFUSED)
def test_and_what_it_allows_is_answered(name, tmp_path):
    """So that none of the refusals above is of something else."""
    _, work, privacy, _ = REFUSED[name]
    asked = node(tmp_path, Terms(reveals=("counts",)))
    assert "refused" not in asked.ask(work, privacy=privacy)[1]
    assert asked.log[-1]["outcome"] == "answered"


def test_the_ledger_names_computation_and_column_of_what_left(tmp_path):
    asked = node(tmp_path)
    asked.ask(Histogram(4, column="salary"), privacy=LOCAL)
    asked.ask(Histogram(4, column="salary"))
    lines = Ledger(tmp_path / "ledger.jsonl").entries()
    said = "histogram(column='salary', n_categories=4) on salary"
    assert [line["entry"]["asked"] for line in lines if line["kind"] == "reserve"] == [said]
    assert [line["note"] for line in lines if line["kind"] == "note"] == [
        f"no noise: protected only by the server: {said}"
    ]
    assert [line["columns"] for line in asked.log] == [["salary"]] * 2


def test_a_column_that_is_not_allowed_is_not_there_for_any_computation(tmp_path):
    """Also for one that takes what columns there are, without naming them."""

    seen = []

    class Curious(Histogram):
        def step(self, state, clients, key):
            seen.append(list(clients.columns))
            return super().step(state, clients, key)

        total = None

    Curious.total = Histogram.total
    Curious.__qualname__ = "Curious"
    asked = node(tmp_path, Terms(columns=("y",)), computations=(Curious(3),))
    assert "total/counts" in asked.ask(Curious(3), privacy=LOCAL)[0]
    assert seen
    assert all(columns == ["y"] for columns in seen)


# -- one budget over all groups ----------------------------------------------------------------------------------------


def test_one_budget_holds_over_units_relations_and_runs(tmp_path):
    """A server that asks for clients and rows in turn spends each group's budget; one budget over all holds it."""
    groups = [ROWS, Laplace(clip=1.0, epsilon=0.05, unit="row", relation="replace-one", place="local")]
    groups.append(Laplace(clip=1.0, epsilon=0.05, place="local"))
    answered = {}
    for name, terms in {"each": Terms(epsilon=0.2), "all": Terms(epsilon=0.2, total_epsilon=0.2)}.items():
        asked = node(tmp_path / name, terms)
        replies = [asked.ask(Histogram(3), run=f"{i:032x}", privacy=groups[i % 3])[1] for i in range(12)]
        answered[name] = sum("refused" not in reply for reply in replies)
        ledger = Ledger(tmp_path / name / "ledger.jsonl")
        total = spent_in_all(terms, groups_of(ledger))
        assert total == pytest.approx({"each": 0.6, "all": 0.2}[name], rel=1e-3)
    assert answered == {"each": 6, "all": 2}


def test_each_group_gets_its_share_of_delta():
    entry = {"relation": "add-remove", "place": "local", "mechanism": "gaussian", "multiplier": 3.0}
    entry["sampling"] = {"kind": "all"}
    groups = {(unit, "add-remove", "local"): [({**entry, "unit": unit}, 2)] for unit in ("client", "row")}
    members = [({**entry, "unit": "client"}, 2)]
    assert spent_in_all(Terms(delta=1e-6), groups) == pytest.approx(2 * epsilon_of(members, 5e-7))
    assert spent_in_all(Terms(delta=1e-6), {}) == 0


def test_an_owner_may_change_a_budget(tmp_path):
    owner_terms.write_terms(tmp_path, Terms(epsilon=0.15))
    asked = node(tmp_path)
    assert ["refused" in asked.ask(Histogram(3), privacy=ROWS)[1] for _ in range(2)] == [False, True]
    assert "beyond the owner's epsilon = 0.15" in asked.log[-1]["why"]
    owner_terms.write_terms(tmp_path, Terms(epsilon=0.25))
    assert ["refused" in asked.ask(Histogram(3), privacy=ROWS)[1] for _ in range(2)] == [False, True]


# -- the file ----------------------------------------------------------------------------------------------------------


def test_an_app_can_only_be_stricter_than_the_owners_file(tmp_path):
    owner_terms.write_terms(tmp_path, Terms(unnoised=0, places=("local",), columns=("y",)))
    loose = node(tmp_path, Terms())
    assert "without noise" in loose.ask(Histogram(3))[1]["refused"]
    assert "on the column 'salary'" in loose.ask(Histogram(9, column="salary"), privacy=LOCAL)[1]["refused"]
    assert "total/counts" in loose.ask(Histogram(3), privacy=LOCAL)[0]
    strict = node(tmp_path, Terms(computations=("moments",)))
    strict.number = 9
    assert "a computation that the owner does not allow" in strict.ask(Histogram(3), privacy=LOCAL)[1]["refused"]


def test_each_field_of_two_terms_is_the_stricter_one():
    one = Terms(epsilon=1.0, delta=1e-6, unnoised=3, parts=5, numbers=10, largest=2.0, units=("client",))
    two = Terms(total_epsilon=2.0, delta=1e-7, unnoised=1, parts=9, numbers=20, largest=1.0, computations=("moments",))
    for a, b in ((one, two), (two, one)):
        both = owner_terms.stricter(a, b)
        wanted = Terms(epsilon=1.0, total_epsilon=2.0, delta=1e-7, unnoised=1, parts=5, numbers=10, largest=1.0)
        assert (both.epsilon, both.total_epsilon, both.delta, both.unnoised) == (1.0, 2.0, 1e-7, 1)
        assert (both.parts, both.numbers, both.largest) == (wanted.parts, wanted.numbers, wanted.largest)
        assert (both.units, both.computations) == (("client",), ("moments",))
    many, few = Terms(computations=("histogram", "moments")), Terms(computations=("histogram",))
    assert (
        owner_terms.stricter(many, few).computations == owner_terms.stricter(few, many).computations == ("histogram",)
    )
    assert owner_terms.stricter(Terms(reveals=("a", "b")), Terms(reveals=("b",))).reveals == ("b",)


def test_the_file_says_all_that_terms_say_and_is_the_owners_alone(tmp_path):
    terms = Terms(
        epsilon=0.1 + 0.2,
        delta=1e-9,
        total_epsilon=4.0,
        unnoised=7,
        places=("local", "central"),
        units=("row",),
        relations=("replace-one",),
        parts=3,
        columns=('a "quoted" name', "Ärger\n\x7f", "x\\y"),
        computations=(),
        reveals=("counts",),
        numbers=12,
        largest=1e300,
    )
    path = owner_terms.write_terms(tmp_path / "new", terms)
    assert owner_terms.read_terms(tmp_path / "new") == terms
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    owner_terms.write_terms(tmp_path / "new", Terms())
    assert owner_terms.read_terms(tmp_path / "new") == Terms()
    assert owner_terms.read_terms(tmp_path) is None


DAMAGED = {
    "epsilon = ": "is no TOML",
    "epsilom = 1.0": "there is no term 'epsilom'; terms are epsilon, delta,",
    'epsilon = "1"': "epsilon must be a positive number, not '1'",
    "epsilon = true": "epsilon must be a positive number, not True",
    "epsilon = inf": "epsilon must be a positive number, not inf",
    "total_epsilon = nan": "total_epsilon must be a positive number, not nan",
    "delta = 1.0": "delta must be from 0 to below 1, not 1.0",
    "unnoised = -1": "unnoised must be a whole number of at least 0, not -1",
    "unnoised = 0.5": "unnoised must be a whole number of at least 0, not 0.5",
    "parts = 0": "parts must be a whole number of at least 1, not 0",
    'places = "local"': "places must be a list of texts, not 'local'",
    'places = ["here"]': "places must be among ('central', 'distributed', 'local'), not ('here',)",
    'units = ["house"]': "units must be among ('client', 'row'), not ('house',)",
    "columns = [1]": "columns must be a list of texts, not (1,)",
    "\xff": "is no TOML",
}


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_refuses_everything_and_the_log_says_why(text, tmp_path):
    (tmp_path / "terms.toml").write_bytes(text.encode("latin-1"))
    asked = node(tmp_path, Terms())
    for privacy in (None, LOCAL):
        assert asked.ask(Histogram(3), privacy=privacy)[1]["refused"] == (
            "refused: it is for a node whose terms cannot be read"
        )
    assert DAMAGED[text] in asked.log[-1]["terms"]
    with pytest.raises(DataError) as error:
        owner_terms.read_terms(tmp_path)
    assert "\n" not in str(error.value)


def test_a_message_that_is_too_large_is_refused_as_itself(tmp_path):
    """Not as an answer to another request, which a server takes for damage and asks for again."""
    assert "larger than the owner allows" in node(tmp_path, Terms(numbers=4)).ask(Histogram(9))[1]["refused"]


def test_a_node_may_demand_the_file(tmp_path):
    asked = node(tmp_path, Terms(), config={"terms": "required"})
    assert "for a node that has no terms.toml yet" in asked.ask(Histogram(3))[1]["refused"]
    owner_terms.write_terms(tmp_path, Terms())
    assert "total/counts" in asked.ask(Histogram(3))[0]


def test_columns_of_moments_are_named_too(tmp_path):
    asked = node(tmp_path, Terms(columns=("y",)))
    assert "on the column 'salary'" in asked.ask(Moments(column="salary"), privacy=LOCAL)[1]["refused"]
