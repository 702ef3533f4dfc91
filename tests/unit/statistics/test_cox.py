"""Cox by sums against statsmodels and lifelines on the pooled rows, and against the likelihood itself."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

import fedscape as fs
from fedscape import CoxRegression, DataError, Federation, Gaussian, Ledger, PrivacyError
from fedscape.statistics.survival import intervals, multiples

#: statsmodels 0.15.0, PHReg(t, x, status=e, ties=ties, strata=site).fit(method="newton", tol=1e-14) on the rows of
#: `patients`: coefficients, standard errors, log-likelihood. lifelines 0.30.3 gives the same without strata (Efron).
REFERENCE = {
    ("efron", None): (
        [0.5246805977441773, -0.343532981933001, 0.7557640501378551],
        [0.0861897282624169, 0.0739833296041248, 0.15513636757007557],
        -812.1643208484105,
    ),
    ("efron", "clients"): (
        [0.5746737500376191, -0.3486795196389129, 0.8220176084891461],
        [0.08994371073498572, 0.07563877703294232, 0.16351245610544046],
        -488.93558532040777,
    ),
    ("breslow", None): (
        [0.5027993924505041, -0.3326011663729296, 0.7341104645270816],
        [0.08577830093007831, 0.07386042025622173, 0.15526458278448588],
        -820.035541522754,
    ),
    ("breslow", "clients"): (
        [0.5487537934433616, -0.3352086414007331, 0.7951689375854678],
        [0.08956144927643786, 0.07553167658352998, 0.16340410111267945],
        -497.5255595884354,
    ),
}


def patients() -> Federation:
    rng = np.random.default_rng(11)
    n = 240
    site = rng.integers(0, 6, n)
    x = rng.normal(size=(n, 3))
    x[:, 2] = rng.integers(0, 2, n)
    risk = 0.5 * x[:, 0] - 0.3 * x[:, 1] + 0.8 * x[:, 2] + 0.1 * site
    t, c = np.ceil(30 * rng.exponential(np.exp(-risk))), rng.integers(1, 60, n)
    columns = {"x": x, "time": np.minimum(t, c), "event": (t <= c).astype(int)}
    return Federation.from_arrays(columns, clients=site)


@pytest.mark.parametrize(("ties", "strata"), list(REFERENCE))
def test_it_is_the_regression_of_the_pooled_rows(ties, strata):
    cox = CoxRegression(ties=ties, strata=strata).fit(patients())
    coefficients, errors, value = REFERENCE[ties, strata]
    np.testing.assert_allclose(cox.coefficients_, coefficients, atol=1e-8)
    np.testing.assert_allclose(cox.standard_errors_, errors, atol=1e-8)
    np.testing.assert_allclose(cox.log_likelihood_, value, atol=1e-8)
    assert cox.n_events_ == 180


def test_without_ties_it_maximises_the_partial_likelihood_written_out():
    rng = np.random.default_rng(3)
    x, t, e = rng.normal(size=(60, 2)), rng.permutation(60) + 0.0, rng.integers(0, 2, 60)

    def loss(beta):
        return -sum(x[i] @ beta - np.log(np.exp(x[t >= t[i]] @ beta).sum()) for i in np.flatnonzero(e))

    oracle = minimize(loss, np.zeros(2), tol=1e-12).x
    fed = Federation({"x": x, "time": t, "event": e}, [0, 7, 7, 40, 60])
    for ties in ("efron", "breslow"):
        np.testing.assert_allclose(CoxRegression(ties=ties).fit(fed).coefficients_, oracle, atol=1e-5)


def test_a_coarse_grid_is_the_regression_of_times_cut_down_to_it():
    fed, grid = patients(), np.arange(1, 61, 7)
    cut = fed.with_column("time", grid[np.searchsorted(grid, fed["time"], side="right") - 1])
    coarse, exact = CoxRegression(times=grid).fit(fed), CoxRegression().fit(cut)
    np.testing.assert_allclose(coarse.coefficients_, exact.coefficients_, atol=1e-9)


def test_the_baseline_is_breslows_cumulative_hazard():
    fed = patients()
    cox = CoxRegression().fit(fed)
    risk = np.exp(fed["x"] @ cox.coefficients_)
    t, e = fed["time"], fed["event"]
    oracle = sum(((t == u) & (e == 1)).sum() / risk[t >= u].sum() for u in np.unique(t[e == 1]))
    np.testing.assert_allclose(cox.baseline_[-1], oracle, rtol=1e-8)


def test_collinear_columns_leave_the_risk_of_every_row_as_it_is():
    fed = patients()
    double = fed.with_column("x", np.column_stack([fed["x"], fed["x"][:, 0] - fed["x"][:, 2]]))
    one, two = CoxRegression().fit(fed), CoxRegression().fit(double)
    centred = [cox.predict(data["x"]) - cox.predict(data["x"]).mean() for cox, data in ((one, fed), (two, double))]
    np.testing.assert_allclose(*centred, atol=1e-7)


def test_the_concordance_is_that_of_lifelines_within_clients():
    fed = patients()
    cox = CoxRegression().fit(fed)
    cox.coefficients_ = np.array([0.5, -0.3, 0.8])
    together = Federation({name: fed[name] for name in ("x", "time", "event")}, [0, fed.n_rows])
    assert cox.score(together) == pytest.approx(0.6807378657712267, abs=1e-12)  # lifelines.utils.concordance_index
    each = [cox.score(fed.take([i])) for i in range(len(fed))]
    assert cox.score(fed) == pytest.approx(np.mean(each), abs=1e-12)


def test_heterogeneity_is_no_more_than_chance_where_sites_are_alike_and_more_where_not():
    rng = np.random.default_rng(5)

    def sites(slopes):
        n = 80
        x = rng.normal(size=(len(slopes) * n, 2))
        t = rng.exponential(np.exp(-np.repeat(slopes, n) * x[:, 0])) * 50
        e = (t < 100).astype(int)
        columns = {"x": x, "time": np.minimum(np.ceil(t), 100), "event": e}
        return Federation(columns, np.arange(0, len(x) + 1, n))

    p = [CoxRegression(strata="clients").fit(sites([0.7] * 6)).heterogeneity_.p for _ in range(60)]
    assert abs(np.mean(np.array(p) < 0.2) - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 60)
    apart = CoxRegression().fit(sites([0.0, 0.2, 0.6, 1.0, 1.4, -0.5])).heterogeneity(sites([0.0, 0.5, 1.0, 1.5]))
    assert apart.p < 1e-6
    assert apart.share > 0.5


def test_a_site_sends_no_time_with_strata():
    fed = patients()
    cox = CoxRegression(strata="clients")
    sent, _ = cox.step(cox.start(0), fed, fs.Key(0))
    assert {n: v.shape[1:] for n, v in sent.items()} == {
        "log_likelihood": (), "score": (3,), "information": (3, 3), "events": (), "q": (), "freedom": (),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"event": [0, 0]}, "must hold an event, a 1, for some row; it holds none"),
        ({"event": [0, 2]}, "column 'event' must hold 0 or 1, one a row, but row 1 holds 2.0"),
        ({"time": [-1.0, 2.0]}, "column 'time' must hold times of at least 0, one a row, but row 0 holds -1.0"),
        ({"time": [1.0, 1e9]}, "use a larger resolution, or give times="),
    ],
)
def test_bad_columns_are_refused(columns, message):
    fed = Federation({"x": [[0.0], [1.0]], "time": [1.0, 2.0], "event": [1, 1], **columns}, [0, 1, 2])
    with pytest.raises(DataError, match=message):
        CoxRegression().fit(fed)


def test_times_that_are_not_whole_numbers_need_a_width_of_the_grid():
    """0.57 is 57 times 0.01, though a division of floating point numbers says less."""
    fed = patients()
    hundredths = fed.with_column("time", fed["time"] / 100)
    with pytest.raises(DataError, match=r"events of the column 'time' are not at a whole number: give the width"):
        CoxRegression().fit(hundredths)
    want, got = CoxRegression().fit(fed), CoxRegression(resolution=0.01).fit(hundredths)
    np.testing.assert_allclose(got.coefficients_, want.coefficients_, rtol=1e-10)
    assert got.log_likelihood_ == pytest.approx(want.log_likelihood_, abs=1e-9)
    assert len(got.times_) == len(want.times_)
    coarse = CoxRegression(resolution=0.5).fit(hundredths)  # asked for, so not refused
    assert len(coarse.times_) < len(want.times_)


@pytest.mark.parametrize("start", [0.0, 1.7e9, 2.0**52])
def test_a_shift_of_the_clock_changes_nothing(start):
    """Unix seconds: a billionth of the time is more than a second of the grid."""
    fed, grid = patients(), np.arange(1, 61)
    later = fed.with_column("time", fed["time"] + start)
    want, got = CoxRegression(times=grid).fit(fed), CoxRegression(times=start + grid).fit(later)
    np.testing.assert_allclose(got.coefficients_, want.coefficients_, rtol=1e-12)
    np.testing.assert_allclose(got.baseline_, want.baseline_, rtol=1e-12)
    assert got.log_likelihood_ == pytest.approx(want.log_likelihood_, rel=1e-12)


@pytest.mark.parametrize("gap", [1.0, 2.0**-20])  # of four ulps at 1.7e9
def test_a_time_of_the_grid_is_in_its_own_interval(gap):
    grid = 1.7e9 + gap * np.arange(4)
    assert intervals(grid, grid).tolist() == [0, 1, 2, 3]
    assert intervals(grid + gap / 4, grid).tolist() == [0, 1, 2, 3]


def test_a_time_is_the_next_of_the_grid_where_rounding_alone_divides_them():
    assert intervals(0.01 * np.arange(100), np.arange(100) / 100).tolist() == list(range(100))
    below = np.array([10 - 1e-7, 10 - 1e-10, 1 - 1e-8, 1 - 1e-10, np.nextafter(1, 0)])
    assert intervals(below, np.array([1.0, 10.0, 11.0])).tolist() == [0, 1, -1, 0, 0]
    assert intervals(np.array([1.7e9 - 1, 1.7e9]), np.array([1.7e9])).tolist() == [-1, 0]
    times = np.array([1.7e9, 1.7e9 + 0.25, np.nextafter(1.7e9, 0)])
    assert multiples(times, 1.0)[1].tolist() == [False, True, False]


@pytest.mark.parametrize("how", [{}, {"rounds": 3, "ridge": 1.0}])
def test_a_private_fit_cannot_look_for_its_grid(how):
    """It took the width 1 for granted, so that times in years all fell on the same few."""
    ledger = Ledger()
    blind = Federation({"nothing": np.zeros(2)}, [0, 1, 2])  # a row that is looked at would be refused otherwise
    with pytest.raises(
        PrivacyError, match=r"^a private fit needs resolution= or times=: when events happen is a secret$"
    ):
        CoxRegression(**how).fit(blind, privacy=Gaussian(clip=1.0, multiplier=1.0), ledger=ledger)
    assert not ledger.spent()


def test_an_event_before_the_grid_is_refused():
    with pytest.raises(DataError, match="begin the grid earlier"):
        CoxRegression(times=[5.0, 9.0]).fit(patients())


def test_features_that_order_the_events_are_refused_and_named_and_a_ridge_makes_them_finite():
    rng = np.random.default_rng(0)
    x = np.stack([rng.normal(size=20), np.linspace(-1, 1, 20)], axis=1)
    fed = Federation({"x": x, "time": np.arange(20, 0, -1), "event": np.ones(20, int)}, [0, 10, 20])
    with pytest.raises(DataError, match=r"grow without end, most that of feature 1 \(.* so far\): give ridge="):
        CoxRegression().fit(fed)
    assert np.abs(CoxRegression(ridge=1.0).fit(fed).coefficients_).max() < 20
    strong = fed.with_column("time", np.maximum(1, np.arange(20, 0, -1) + rng.integers(-6, 7, 20)))
    assert CoxRegression().fit(strong).coefficients_[1] > 1  # a strong effect is none of these


def test_without_pairs_to_compare_there_is_no_concordance():
    fed = Federation({"x": np.arange(6.0)[:, None] % 4, "time": np.full(6, 5), "event": np.ones(6, int)}, [0, 3, 6])
    assert np.isnan(CoxRegression().fit(fed).score(fed))
