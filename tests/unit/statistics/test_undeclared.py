"""Names and scales that nobody declared: near the truth, all of it in the ledger, and of use to other fits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from fedscape import (
    DataError,
    Federation,
    Gaussian,
    Histogram,
    Ledger,
    MixtureOfDirichletMultinomials,
    Moments,
    PrivacyError,
)  # fmt: skip
from fedscape.privacy.mechanisms import Privacy
from fedscape.statistics.undeclared import Discovery, Undeclared

RNG = np.random.default_rng(0)
CLIENTS, EACH = 2_000, 5
ROWS = CLIENTS * EACH
COLUMNS = {
    "age": RNG.normal(45, 12, ROWS),
    "year": RNG.integers(1990, 2021, ROWS).astype(float),
    "pay": RNG.lognormal(10, 1, ROWS),
    "tiny": RNG.normal(0, 1e-3, ROWS),
    "tree": RNG.choice(["ash", "oak", "yew"], ROWS, p=[0.6, 0.3, 0.1]),
    "code": RNG.choice([0, 2, 10], ROWS),
}
COLUMNS["pay"][7], COLUMNS["tree"][7] = 1e12, "elm"  # what one client alone has must not show
FED = Federation.from_arrays(COLUMNS, clients=np.repeat(np.arange(CLIENTS), EACH))
NUMBERS = ("age", "year", "pay", "tiny")


@pytest.fixture(autouse=True, scope="module")
def same_noise() -> Iterator[None]:
    """Noise as in every run of these tests."""
    numbers = count()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Privacy, "new_secret", lambda self: hashlib.sha256(str(next(numbers)).encode()).digest())
        yield


@pytest.fixture(scope="module")
def searched() -> tuple[Discovery, Ledger]:
    ledger = Ledger(epsilon=4.0, delta=1e-6)
    return Undeclared(("tree", "code"), NUMBERS).find(FED, epsilon=2.0, delta=5e-7, ledger=ledger), ledger


def test_names_are_those_of_enough_clients(searched):
    found, _ = searched
    assert found.names == {"tree": ("ash", "oak", "yew"), "code": ("0", "2", "10")}
    assert found.classes("tree") == ("ash", "oak", "yew")


@pytest.mark.parametrize("name", NUMBERS)
def test_scales_are_near_quartiles_of_the_rows_whatever_their_size(name, searched):
    low, centre, scale, high = (float(part[0]) for part in searched[0].scales[name])
    first, middle, third = np.quantile(COLUMNS[name], [0.25, 0.5, 0.75])
    spread = (third - first) / 1.349
    assert abs(centre - middle) < 0.4 * spread
    assert 0.6 * spread < scale < 1.6 * spread
    assert low < first < third < high < middle + 10 * spread


def test_every_look_is_a_release_within_the_budget(searched):
    found, ledger = searched
    (spent,) = ledger.spent().values()
    assert 0 < spent <= 2.0
    releases = [line for line in ledger.entries() if line["kind"] == "release"]
    assert 0 < len(releases) <= found.releases == 24 + 8 + 8


def test_found_names_and_bounds_serve_other_private_fits(searched):
    found, ledger = searched
    fed = FED.declare("tree", found.names["tree"])
    privacy = Gaussian(clip=float(EACH), multiplier=20.0)
    histogram = Histogram(3, column="tree").fit(fed, privacy=privacy, ledger=ledger)
    assert np.abs(histogram.shares_ - [0.6, 0.3, 0.1]).max() < 0.15
    mixture = MixtureOfDirichletMultinomials(1, n_init=1, rounds=2)
    mixture.fit(fed, column="tree", privacy=Gaussian(clip=1.0, multiplier=40.0), ledger=ledger, progress=False)
    low, high = found.ranges()["age"]
    Moments(column="age", bound=max(abs(low), abs(high))).fit(fed, privacy=privacy, ledger=ledger)
    assert len({line["run"] for line in ledger.entries() if line["kind"] == "release"}) >= 7


def test_a_file_has_all_of_it(searched):
    again = Discovery.from_json(searched[0].to_json())
    assert again.line() == searched[0].line()
    assert again.names == searched[0].names


def test_too_few_clients_are_told_so_and_nothing_is_guessed():
    few = FED.take(slice(0, 30))
    ledger = Ledger(delta=1e-6)
    with pytest.raises(PrivacyError, match=r"noise may move ranks of the numbers by \d+%, so no scale is found"):
        Undeclared((), ("age",)).find(few, epsilon=1.0, delta=1e-6, ledger=ledger)
    found = Undeclared(("tree",)).find(few, epsilon=1.0, delta=1e-6, ledger=ledger)
    with pytest.raises(DataError, match=r"no class of 'tree' is found that \d+ clients have, as many as noise needs"):
        found.classes("tree")


def test_columns_of_arrays_gaps_and_whole_numbers_kept_as_floats():
    x = RNG.normal(100, 3, (ROWS, 2))
    x[::7, 0] = np.nan
    y = np.where(np.arange(ROWS) % 11 == 0, np.nan, RNG.integers(1, 3, ROWS))
    fed = Federation({"x": x, "y": y}, FED.offsets)
    found = Undeclared(("y",), ("x",)).find(fed, epsilon=4.0, delta=1e-6, ledger=Ledger(delta=1e-6))
    assert found.names["y"] == ("1", "2")
    assert np.abs(found.scales["x"].centre - 100).max() < 3
    assert found.ranges() == {}


def test_the_greatest_numbers_there_are_leave_no_warning():
    """A warning would say that some client has one: warnings are errors in this suite."""
    x = np.random.default_rng(0).normal(50, 10, 2000)
    x[::200] = 1.7e308
    fed = Federation({"x": x}, np.arange(0, 2001, 2))
    low, high = Undeclared(numbers=("x",)).find(fed, epsilon=50.0, delta=1e-6, ledger=Ledger()).ranges()["x"]
    assert 0 < low < 50 < high < 1e3
