"""Quantiles by sums, against NumPy on pooled rows and against the bound they state."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, Federation, Gaussian, Ledger, Local, PrivacyError, Quantiles
from fedscape.statistics.quantiles import count_cells, count_cells_twin, counts_between, floats, ordered, quantiles_of

SHARES = [0.0, 0.01, 0.1, 0.5, 0.9, 0.999, 1.0]


def heavy(n: int = 4_000) -> Federation:
    """Rows of every size and sign, whole numbers, and gaps."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.lognormal(0, 4, n), -rng.lognormal(0, 3, n), rng.integers(-3, 4, n), rng.normal(0, 1, n)])
    x[rng.random(x.shape) < 0.05] = np.nan
    return Federation({"x": x}, _ends(n, 60))


def _ends(n: int, clients: int) -> np.ndarray:
    return np.linspace(0, n, clients + 1).astype(int)


def test_without_ranges_the_answer_is_exact():
    fed = heavy()
    np.testing.assert_array_equal(Quantiles(SHARES).fit(fed).quantiles_, quantiles_of(fed["x"], SHARES))


def test_any_split_into_clients_gives_the_same():
    fed = heavy()
    one = Federation({"x": fed["x"]}, [0, fed.n_rows])
    np.testing.assert_array_equal(Quantiles(SHARES).fit(fed).quantiles_, Quantiles(SHARES).fit(one).quantiles_)


@pytest.mark.parametrize("cells", [2, 7, None])
def test_with_ranges_the_answer_is_within_the_resolution(cells):
    fed = heavy()
    quantiles = Quantiles(SHARES, ranges=(-50.0, 50.0), resolution=1e-4, cells=cells).fit(fed)
    assert len(quantiles.history_) == quantiles.n_rounds()
    exact = quantiles_of(np.clip(fed["x"], -50, 50), SHARES)
    assert np.abs(quantiles.quantiles_ - exact).max() <= 1e-4


def test_each_feature_may_have_its_range_and_columns_go_together():
    fed = heavy()
    apart = fed.with_column("a", fed["x"][:, 0]).with_column("b", fed["x"][:, 1:])
    ranges = [(0.0, 9.0), (-9.0, 0.0), (-3.0, 3.0), (-5.0, 5.0)]
    together = Quantiles(SHARES, ranges=ranges).fit(fed).quantiles_
    np.testing.assert_array_equal(Quantiles(SHARES, ranges=ranges, column=("a", "b")).fit(apart).quantiles_, together)
    low, high = np.array(ranges).T
    assert np.abs(together - quantiles_of(np.clip(fed["x"], low, high), SHARES)).max() < 18 * 2.0**-20
    with pytest.raises(DataError, match="2 ranges, but 4 features"):
        Quantiles(SHARES, ranges=ranges[:2]).fit(fed)


def test_a_relative_resolution_takes_fewer_rounds():
    fed = heavy()
    near = Quantiles(SHARES, resolution=2.0**-10).fit(fed)
    exact = quantiles_of(fed["x"], SHARES)
    assert (np.abs(near.quantiles_ - exact) <= 2.0**-10 * np.abs(exact)).all()
    assert len(near.history_) < len(Quantiles(SHARES).fit(fed).history_)


def test_many_quantiles_of_few_values():
    fed = Federation({"x": [3, 3, 3, 5, 5, 9]}, [0, 2, 6])
    shares = np.linspace(0, 1, 50)
    quantiles = Quantiles(shares.tolist()).fit(fed).quantiles_
    np.testing.assert_array_equal(quantiles, quantiles_of(fed["x"], shares))


def test_floats_in_their_order():
    values = np.array([-np.inf, -1e300, -1.0, -5e-324, -0.0, 0.0, 5e-324, 1.0, np.inf])
    assert (np.diff(ordered(values)) != 0).all()
    assert (ordered(values)[1:] > ordered(values)[:-1]).all()
    np.testing.assert_array_equal(floats(ordered(values)), values)


def test_the_kernel_counts_as_its_plain_twin():
    rng = np.random.default_rng(1)
    x, owner = rng.normal(size=(200, 3)).round(1), rng.integers(0, 4, 200)
    x[::9] = np.nan
    cuts = np.sort(rng.normal(size=(3, 6)).round(1), axis=1)
    fast, plain = np.zeros((4, 3, 7), dtype=np.int64), np.zeros((4, 3, 7), dtype=np.int64)
    count_cells(x, owner, cuts, fast)
    count_cells_twin(x, owner, cuts, plain)
    np.testing.assert_array_equal(fast, plain)
    x[:3], cuts[:, -1] = np.inf, np.inf
    together = np.zeros((1, 3, 7), dtype=np.int64)
    count_cells_twin(x, np.zeros(200, dtype=np.int64), cuts, together)
    np.testing.assert_array_equal(counts_between(x, cuts), together[0])


def test_private_answers_are_within_the_stated_error():
    """The bound is for all cuts of all rounds: nineteen fits in twenty stay within it."""
    rng = np.random.default_rng(2)
    x = rng.uniform(0, 1, 2_000)
    fed, shares = Federation({"x": x}, _ends(2_000, 100)), [0.1, 0.5, 0.9]
    errors, bounds = [], []
    for seed in range(60):
        privacy = Gaussian(clip=1.0, multiplier=5.0, unit="row", noise_seed=seed)
        quantiles = Quantiles(shares, ranges=(0, 1)).fit(fed, privacy=privacy)
        errors.append(np.abs((x[:, None] <= quantiles.quantiles_).mean(axis=0) - shares).max())
        bounds.append(quantiles.rank_error_ + 2 * 2.0**-10)
    assert np.mean(np.array(errors) > bounds) <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / 60)
    assert np.median(errors) > np.median(bounds) / 20  # nor is the bound empty


def test_every_round_is_in_the_ledger():
    ledger, quantiles = Ledger(), Quantiles([0.5], ranges=(0, 1))
    fed = Federation({"x": np.linspace(0, 1, 50)}, _ends(50, 10))
    quantiles.fit(fed, privacy=Gaussian(clip=1.0, multiplier=1.0), ledger=ledger)
    assert sum(line["kind"] == "release" for line in ledger.entries()) == len(quantiles.history_)


def test_what_is_refused():
    fed = Federation({"x": [1.0, 2.0], "y": ["a", "b"]}, [0, 2])
    with pytest.raises(PrivacyError, match="need ranges"):
        Quantiles([0.5]).fit(fed, privacy=Gaussian(clip=1.0, multiplier=1.0))
    with pytest.raises(DataError, match="shares from 0 to 1"):
        Quantiles([1.5]).fit(fed)
    with pytest.raises(DataError, match="pairs of a least and a greatest"):
        Quantiles([0.5], ranges=(1, 1)).fit(fed)
    with pytest.raises(DataError, match="must hold numbers"):
        Quantiles([0.5], column="y").fit(Local(fed))


def test_a_draw_of_rows_has_no_bound_for_one_row():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    drawn, all_rows = (Quantiles([0.5], ranges=(-3, 3), cells=4, share=share) for share in (0.5, 1.0))
    one, more = (Federation({"x": values}, [0, len(values)]) for values in (x, np.insert(x, 0, 0.0)))
    state = drawn.start(0)
    change = [
        np.abs(q.step(state, more, None)[0]["counts"] - q.step(state, one, None)[0]["counts"]).sum()
        for q in (drawn, all_rows)
    ]
    assert change[0] > 3  # the row before them moves the draws of all others
    assert change[1] == 1
    assert drawn.row_bound(state, 1, one) is None
    assert all_rows.row_bound(state, 1, one) == 1
    with pytest.raises(PrivacyError, match="does not bound what one row can change"):
        drawn.fit(one, privacy=Gaussian(clip=1.0, multiplier=1.0, unit="row"))


def test_of_missing_values_alone_nothing_is_known():
    fed = Federation({"x": np.array([[np.nan, 1.0], [np.nan, 2.0]])}, [0, 1, 2])
    assert np.array_equal(Quantiles([0.5]).fit(fed).quantiles_, [[np.nan, 1.0]], equal_nan=True)
    assert np.isnan(Quantiles([0.5], ranges=(0, 9)).fit(fed).quantiles_[0, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranges": (-1e308, 1e308)}, "ranges must lie within 1e300"),
        ({"ranges": (0, 1), "resolution": -1.0}, "resolution must be at least 0"),
        ({"ranges": (0, 1), "resolution": np.nan}, "resolution must be at least 0"),
        ({"column": "none"}, "holds no number a row"),
    ],
)
def test_a_search_that_cannot_end_is_refused(options, message):
    fed = Federation({"x": np.arange(4.0), "none": np.zeros((4, 0))}, [0, 2, 4])
    with pytest.raises(DataError, match=message):
        Quantiles([0.5], **options).fit(fed)
    with pytest.raises(DataError, match="probabilities must be a list of shares"):
        Quantiles(["half"]).fit(fed)
