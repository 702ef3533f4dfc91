"""What a private fit looks at before its releases: classes, clients, rows of a client. None of it may be exact."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, Gaussian, Histogram, MixtureOfDirichletMultinomials, PrivacyError
from fedscape.cli.check import _by_population
from fedscape.personal import Profiles
from fedscape.tabular import BoostedTrees

RANGES = {"x": (-3.0, 3.0)}
NOISY = Gaussian(clip=10.0, multiplier=1.0)


def people(n=12, label=0):
    """Clients of eight rows; the very last label is a secret."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 8 * n)
    y[-1] = label
    return Federation({"x": rng.normal(size=(8 * n, 2)), "y": y}, np.arange(0, 8 * n + 1, 8))


def declared(fed):
    return Federation(fed.columns, fed.offsets, names={"y": ("no", "yes")})


def test_the_largest_label_is_not_how_many_trees_a_private_fit_grows():
    trees = BoostedTrees(n_trees=1, depth=1, bins=4, ranges=RANGES)
    with pytest.raises(PrivacyError, match="classes of 'y' follow from the rows"):
        trees.fit(people(label=7), privacy=NOISY)
    trees.fit(declared(people()), privacy=NOISY)
    BoostedTrees(loss="logistic", n_trees=1, depth=1, bins=4, ranges=RANGES).fit(people(), privacy=NOISY)


def profiles(**how):
    return Profiles(2, directions=2, bound=10.0, **how)


def test_the_largest_label_is_not_how_long_a_private_description_is():
    with pytest.raises(PrivacyError, match="classes of 'y' follow from the rows"):
        profiles(target="y").fit(people(label=7), privacy=NOISY)
    assert profiles(target="y").fit(declared(people()), privacy=NOISY).n_classes_ == 2


def test_a_label_that_was_not_declared_fails_no_private_profile():
    for label in (0, -1, 7):
        fed = declared(people())
        y = np.array(fed["y"])
        y[-1] = label
        profiles(target="y").fit(Federation({"x": fed["x"], "y": y}, fed.offsets, names=fed.names), privacy=NOISY)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e300])
def test_no_value_makes_a_private_profile_fail_or_warn(value):
    fed = people()
    x = np.array(fed["x"])
    x[-1, 0] = value
    profiles().fit(Federation({"x": x, "y": fed["y"]}, fed.offsets), privacy=NOISY)


def test_one_row_moves_a_whole_description_so_rows_are_no_unit_of_profiles():
    """Every row is taken from the mean of its client's: one row more moves all of them, and k-means sees one row."""
    with pytest.raises(PrivacyError, match="unit='client'"):
        profiles().fit(people(), privacy=Gaussian(clip=1e3, multiplier=1.0, unit="row"))


def test_private_profiles_do_not_tell_how_many_clients_there_are(monkeypatch):
    """Neither the number that is kept, nor an error, nor a release that is left out where none is kept out."""
    private, fits = Gaussian(clip=10.0, multiplier=1e3), []
    fit = Histogram.fit
    monkeypatch.setattr(Histogram, "fit", lambda self, *args, **how: fits.append(0) or fit(self, *args, **how))
    for n in (1, 2, 3):
        profiles().fit(people(n), privacy=private)
    assert len(fits) == 3
    for n in (12, 16, 20):
        said = profiles().fit(people(n), privacy=private)
        exact = profiles().fit(people(n))
        assert said.n_clients_ != exact.n_clients_
        assert exact.n_clients_ > 2


def test_a_private_check_does_not_tell_which_codes_there_are(tmp_path):
    """Codes without a gap were taken as they are and others refused: whether anybody has the last one but one."""
    rng = np.random.default_rng(1)
    counts = rng.multinomial(20, rng.dirichlet([2.0, 3.0, 1.0], 60))
    population = MixtureOfDirichletMultinomials(1, sizes=None, rounds=3).fit(counts, progress=False)
    population.save(tmp_path / "population.json")
    for codes in ([0, 2], [0, 1, 2], [0, 1, 2, 9]):
        fed = Federation({"y": rng.choice(codes, 600)}, np.arange(0, 601, 10))
        about = _by_population(
            fed, tmp_path / "population.json", "y", 1.0, 50.0, "here", tmp_path / f"{len(codes)}.jsonl", True, 0
        )
        assert (about["clients"], about["rows"]) == (None, None)
        assert len(about["tests"]) == 5
