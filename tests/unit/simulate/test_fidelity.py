"""How alike two populations are: right on known laws, calibrated where the model is true, sure where it is not."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import threadpoolctl
from scipy import stats

from fedscape import (
    DataError,
    Federation,
    Gaussian,
    Laplace,
    Ledger,
    Local,
    MixtureOfDirichletMultinomials,
    PrivacyError,
    datasets,
)
from fedscape.errors import TooFewClients
from fedscape.simulate import (
    Labels,
    Measure,
    SelfScore,
    SelfScores,
    SignCodes,
    classifier,
    compare_training,
    fidelity,
    self_score,
    training_fidelity,
)
from fedscape.simulate.classifier import _area, _Logistic, classify
from fedscape.simulate.fidelity import _distance_laws, _energy, _laws, _matched, _pools, wasserstein
from fedscape.simulate.self_score import _log_dirichlet_multinomial, _rank, _size_rank
from fedscape.simulate.training import _halves, kendall

ALPHA = np.array([[6.0, 2.0, 1.0, 1.0], [1.0, 1.0, 3.0, 9.0]])


def drawn(n: int, seed: int, alpha: np.ndarray = ALPHA) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shares = np.stack([rng.dirichlet(alpha[k]) for k in rng.integers(0, len(alpha), n)])
    return rng.multinomial(rng.integers(20, 60, n), shares)


def clients_of(counts: np.ndarray) -> Federation:
    return Federation({"y": counts}, np.arange(len(counts) + 1))


@pytest.fixture(scope="module")
def model() -> MixtureOfDirichletMultinomials:
    return MixtureOfDirichletMultinomials(2, sizes="histogram").fit(drawn(4000, 0), progress=False)


# -- the classifier ----------------------------------------------------------------------------------------------------


def test_the_area_under_the_curve_is_that_of_scikit_learn():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 40) / 9, rng.integers(0, 7, 60) / 9
    assert _area(a, b)[0] == pytest.approx(roc_auc_score(np.repeat([1, 0], [40, 60]), np.concatenate((a, b))))


def test_the_variance_of_the_area_is_that_of_many_repetitions():
    rng = np.random.default_rng(1)
    many = np.array([_area(rng.normal(0.7, 1, 80), rng.normal(0, 1, 50)) for _ in range(2000)])
    assert many[:, 1].mean() == pytest.approx(many[:, 0].var(), rel=0.15)


def test_the_logistic_regression_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, 5))
    y = (x[:, 0] + rng.normal(size=300) > 0.5).astype(float)
    known = LogisticRegression(C=1 / 7, class_weight="balanced", tol=1e-10, max_iter=1000).fit(x, y)
    assert _Logistic(x, y, 7.0)(x) == pytest.approx(known.predict_proba(x)[:, 1], abs=5e-3)


def test_a_classifier_does_not_tell_equal_laws_apart_more_often_than_chance():
    p = [classify(drawn(150, 2 * s), drawn(150, 2 * s + 1), seed=s).p for s in range(30)]
    assert (np.array(p) < 0.05).sum() <= 8  # five standard errors above 1.5
    assert 0.2 < np.mean(p) < 0.8


def test_a_classifier_uses_one_thread_of_the_library_whatever_it_has(monkeypatch):
    seen, fit = set(), classifier._Logistic

    def watched(*given):
        seen.update(found["num_threads"] for found in threadpoolctl.threadpool_info() if found["user_api"] == "blas")
        return fit(*given)

    monkeypatch.setattr(classifier, "_Logistic", watched)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        classify(drawn(30, 0), drawn(30, 1))
    assert seen == {1}


def test_a_classifier_sees_a_difference_in_spread_alone():
    rng = np.random.default_rng(3)
    same_mean = rng.multinomial(40, ALPHA.mean(axis=0) / ALPHA.mean(axis=0).sum(), 300)
    wide = rng.multinomial(40, rng.dirichlet(5 * ALPHA.mean(axis=0) / ALPHA.mean(axis=0).sum(), 300))
    verdict = classify(wide, same_mean)
    assert verdict.auc > 0.85
    assert verdict.p < 1e-6


# -- two populations ---------------------------------------------------------------------------------------------------


def test_the_wasserstein_distance_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.normal(size=rng.integers(1, 30)), rng.integers(0, 3, rng.integers(1, 30)).astype(float)
        assert wasserstein(a, b) == pytest.approx(stats.wasserstein_distance(a, b))


def test_like_populations_are_found_alike_and_others_with_the_size_of_the_misfit():
    same = fidelity(drawn(400, 1), drawn(500, 2), draws=99)
    for measure in (same.auc, same.distance, same.size, same.pool):
        assert measure.p > 1e-3
        assert measure.low <= measure.value <= measure.high
    assert same.missing < 0.05
    pool = drawn(500, 2).sum(axis=0)
    rng = np.random.default_rng(0)
    iid = fidelity(drawn(400, 1), rng.multinomial(rng.integers(40, 120, 500), pool / pool.sum()), draws=99)
    assert iid.auc.low > 0.95
    assert iid.distance.value > 5 * iid.distance.alike
    assert iid.size.value == pytest.approx(1.0, abs=0.1)  # twice as long
    assert iid.size.p == pytest.approx(0.01)
    assert iid.pool.p > 1e-3
    assert iid.missing > 0.9
    assert len(iid.missing_ids) == round(400 * iid.missing)


def test_two_draws_of_one_law_are_rejected_as_often_as_said_and_their_intervals_hold_it():
    """Sixty clients each: pools differ by chance, which a permutation that keeps them took for a difference of laws."""
    names, n = ("misfit", "sketch", "distance", "size", "pool"), 80
    wrong, missed = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for s in range(n):
        a, b = drawn(60, 2 * s).astype(np.int64), drawn(60, 2 * s + 1).astype(np.int64)
        rng = np.random.default_rng(s)
        shares = [(c / c.sum(axis=1, keepdims=True)) for c in (a, b)]
        found = {
            "misfit": _matched([(shares[0], shares[1], 1)], rng, 39),
            "sketch": _energy(shares[0], shares[1], rng, 39),
            "distance": _distance_laws(a, b, rng, 39),
            "size": _laws(a.sum(axis=1), b.sum(axis=1), rng, 39),
            "pool": _pools(a, b, rng, 39),
        }
        for name, measure in found.items():
            wrong[name] += measure.p <= 0.05
            missed[name] += name != "misfit" and not measure.low <= 0 <= measure.high
    most = n * (0.05 + 5 * np.sqrt(0.05 * 0.95 / n))
    assert all(count < most for count in wrong.values()), wrong
    assert all(count < most for count in missed.values()), missed


def test_the_misfit_orders_populations_by_how_far_their_clients_are_off():
    rng = np.random.default_rng(0)
    true = drawn(200, 1)
    pool = true.sum(axis=0) / true.sum()
    kinds = {
        "copies": true,
        "same": drawn(200, 2),
        "100": rng.multinomial(40, rng.dirichlet(100 * pool, 200)),
        "iid": rng.multinomial(40, pool, 200),
        "0.1": rng.multinomial(40, rng.dirichlet(0.1 * pool, 200)),
    }
    found = {name: fidelity(true, sim, draws=20).misfit for name, sim in kinds.items()}
    values = [about.value for about in found.values()]
    assert values == sorted(values)
    assert values[0] == 0
    assert found["same"].p > 0.05
    assert found["same"].value < 1.5 * found["same"].alike
    for name in ("100", "iid", "0.1"):
        assert found[name].low > 1.2 * found[name].alike
        assert found[name].low <= found[name].value <= found[name].high <= 1


def test_the_misfit_is_the_least_cost_over_all_matchings():
    from itertools import permutations

    rng = np.random.default_rng(1)
    a, b = rng.dirichlet([1, 1, 1], 5), rng.dirichlet([3, 1, 1], 5)
    cost = np.abs(a[:, None] - b).sum(axis=2) / 2
    brute = min(np.mean([cost[i, j] for i, j in enumerate(order)]) for order in permutations(range(5)))
    assert _matched([(a, b, 1)], np.random.default_rng(0), 2).value == pytest.approx(brute, abs=1e-12)


def test_the_distance_of_sketches_is_the_energy_distance_of_scipy_where_clients_are_points_on_a_line():
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(40, 1)), rng.normal(1.0, 1.0, size=(50, 1))
    found = _energy(a, b, np.random.default_rng(0), 2)
    biased = stats.energy_distance(a[:, 0], b[:, 0]) ** 2  # Szekely's V-statistic: the diagonal counts
    own = [np.abs(x - x.T).sum() / len(x) ** 2 * (1 / (len(x) - 1)) for x in (a, b)]
    assert found.value == pytest.approx(biased - sum(own), abs=1e-9)


def test_clients_that_are_not_represented_are_named():
    counts = np.concatenate((drawn(380, 1), np.tile([0, 0, 40, 0], (20, 1))))
    fed = Federation({"y": counts}, np.arange(401), ids=[f"c{i:03d}" for i in range(400)])
    found = fidelity(fed, drawn(400, 2), draws=20)
    odd = {f"c{i:03d}" for i in range(380, 400)}
    assert len(odd & set(found.missing_ids)) >= 15
    assert len(set(found.missing_ids) - odd) <= 12
    assert "not represented" in str(found)
    json.dumps(found.table())


def test_intervals_hold_the_true_distance_of_sizes():
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(40):
        found = _laws(rng.poisson(50, 200), rng.poisson(60, 200), rng, 100)
        held += found.low <= 10 <= found.high
    assert held >= 31  # five standard errors below 38


def test_sketches_of_any_shape_are_compared_without_bias():
    rng = np.random.default_rng(0)
    values = []
    for s in range(12):
        a, b = rng.normal(size=(60, 2, 3)), rng.normal(size=(70, 2, 3))
        values.append(fidelity(drawn(60, s), drawn(70, s), sketches=(a, b), draws=1).sketch.value)
    assert abs(np.mean(values)) < 5 * np.std(values) / np.sqrt(12)
    apart = fidelity(
        drawn(60, 1), drawn(70, 2), sketches=(rng.normal(size=(60, 4)), rng.normal(2, 1, (70, 4))), draws=99
    )
    assert apart.sketch.low > 0
    assert apart.sketch.p == pytest.approx(0.01)


def test_columns_of_any_kind_are_compared():
    fed = datasets.load("femnist-mini")
    assert fidelity(fed, fed, column=[Labels("y", 62), SignCodes(2)], draws=5).size.value == 0
    assert fidelity(fed, fed, draws=5).pool.value == 0


def test_bad_populations_are_refused():
    for true, other, message in [
        (drawn(10, 0), drawn(50, 0), "needs 20 clients of each, got 10 and 50"),
        (np.zeros((30, 2)), drawn(50, 0), "counts must be whole numbers"),
        (np.full((30, 2), -1), drawn(50, 0), "counts must be whole numbers"),
        (np.zeros((30, 2), int), np.zeros((30, 2), int), "no client has a row"),
    ]:
        with pytest.raises(DataError, match=message):
            fidelity(true, other)
    with pytest.raises(DataError, match="one row for each client"):
        fidelity(drawn(30, 0), drawn(30, 1), sketches=(np.zeros((30, 2)), np.zeros((29, 2))))


def test_a_category_that_one_population_never_saw_is_normal():
    assert fidelity(drawn(50, 0)[:, :3], drawn(50, 0), draws=5).pool.value > 0


@pytest.mark.parametrize("sizes", [(30, 1000), (2000, 30)])
def test_equal_laws_lack_and_invent_no_client_however_many_there_are(sizes):
    for seed in range(3):
        found = fidelity(drawn(sizes[0], seed), drawn(sizes[1], 100 + seed), draws=10, seed=seed)
        assert found.missing <= 0.1
        assert found.invented <= 0.1
        assert found.clients == sizes


def test_clients_of_the_larger_population_that_are_not_represented_keep_their_ids():
    counts = np.concatenate((drawn(300, 1), np.tile([0, 40, 0, 0], (100, 1))))
    true = Federation({"y": counts}, np.arange(401), ids=[f"c{i}" for i in range(400)])
    found = fidelity(true, drawn(150, 2), draws=10)
    assert found.missing == pytest.approx(0.25, abs=0.1)
    assert {int(who[1:]) >= 300 for who in found.missing_ids} == {True}


def test_categories_are_matched_by_name_where_both_have_names():
    counts, back = drawn(200, 1), [3, 1, 0, 2]
    names = ("a", "b", "c", "d")
    true = Federation({"y": counts}, np.arange(201), names={"y": names})
    other = Federation({"y": counts[:, back]}, np.arange(201), names={"y": [names[j] for j in back]})
    assert fidelity(true, other, draws=10).pool.value == 0
    assert fidelity(true, counts, draws=10).pool.value == 0  # one side without names: by number
    assert fidelity(true, counts[:, back], draws=10).pool.value > 0.1
    rows = [np.repeat(np.arange(4), c) for c in counts]
    ends = np.concatenate(([0], np.cumsum(counts.sum(axis=1))))
    flat = np.concatenate(rows)
    true = Federation({"y": flat}, ends, names={"y": names})
    other = Federation({"y": np.argsort(back)[flat]}, ends, names={"y": [names[j] for j in back]})
    assert fidelity(true, other, column=Labels("y"), draws=10).pool.value == 0
    strangers = Federation({"y": flat}, ends, names={"y": ("e", "f", "g", "h")})
    with pytest.raises(DataError, match="share no category: one has"):
        fidelity(true, strangers)


def test_clients_without_rows_cannot_be_compared():
    nobody = Federation({"y": np.empty(0, dtype=np.int64)}, [0] * 31)
    for true, other in ((nobody, nobody), (drawn(30, 0), nobody), (np.zeros((30, 4), int), drawn(30, 0))):
        with pytest.raises(DataError, match="no client has a row in this column"):
            fidelity(true, other)


def test_a_measure_reads_as_a_sentence():
    assert str(Measure(0.5, 0.4, 0.6, 0.5, 1e-9)).endswith("p < 0.0001")


# -- clients score themselves ------------------------------------------------------------------------------------------


def test_log_likelihoods_are_those_of_scipy():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (20, 4))
    ours = _log_dirichlet_multinomial(counts, ALPHA)
    for k in range(2):
        for i in range(20):
            law = stats.dirichlet_multinomial(ALPHA[k], int(counts[i].sum()))
            assert ours[i, k] == pytest.approx(law.logpmf(counts[i]))
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    limit = _log_dirichlet_multinomial(counts, 1e10 * shares[None])[:, 0]
    assert limit == pytest.approx([float(stats.multinomial(c.sum(), shares).logpmf(c)) for c in counts], abs=1e-4)


def test_ranks_with_ties_are_uniform():
    rng = np.random.default_rng(0)
    u = _rank(rng.integers(0, 3, (5000, 10)).astype(float), rng.random(5000))
    assert stats.kstest(u, "uniform").pvalue > 1e-6


def test_size_scores_are_uniform_under_the_law_of_sizes(model):
    rng = np.random.default_rng(0)
    sizes = model.sample(5000, seed=1).sum(axis=1)
    state = SelfScores(model).start(0)
    assert stats.kstest(_size_rank(state, sizes, rng.random(5000)), "uniform").pvalue > 1e-6


def test_scores_are_uniform_when_the_model_is_the_truth(model):
    found = self_score(model, clients_of(model.sample(2000, seed=5)), draws=39)
    assert set(found.histograms) == {"likelihood", "distance", "support", "direction_1", "direction_2", "size"}
    for histogram in found.histograms.values():
        assert histogram.sum() == 2000
        assert stats.chisquare(histogram).pvalue > 1e-6
    assert found.p_all > 1e-5
    assert max(found.misfit.values()) < 0.06


def test_the_test_keeps_its_level_and_finds_false_models(model):
    rejected = {"truth": 0, "fitted": 0, "iid": 0, "one": 0, "sizes": 0}
    train = drawn(3000, 77)
    one = MixtureOfDirichletMultinomials(1, sizes="histogram").fit(train, progress=False)
    iid, longer = copy.copy(one), copy.copy(model)
    iid.concentrations_ = 1e10 * (train.sum(axis=0) / train.sum())[None]
    longer.size_laws_ = MixtureOfDirichletMultinomials(2).fit(2 * train, progress=False).size_laws_
    for run in range(8):
        held = clients_of(model.sample(300, seed=100 + run))
        rejected["truth"] += self_score(model, held, draws=29, seed=run).p_all < 0.05
        fresh = clients_of(drawn(300, 200 + run))
        for name, tried in {"fitted": model, "iid": iid, "one": one, "sizes": longer}.items():
            rejected[name] += self_score(tried, fresh, draws=29, seed=run).p_all < 0.05
    assert rejected["truth"] <= 4  # five standard errors above 0.4
    assert rejected["fitted"] <= 4
    assert (rejected["iid"], rejected["one"], rejected["sizes"]) == (8, 8, 8)


def test_the_size_of_a_misfit_does_not_grow_with_the_number_of_clients():
    """Half of the clients score uniformly, half in the lower half: the distance is a quarter, and p falls."""
    rng = np.random.default_rng(0)
    values = {}
    for n in (400, 40_000):
        share = np.r_[np.full(10, 0.075), np.full(10, 0.025)]
        found = [SelfScore({"t": rng.multinomial(n, share)}, 0.0, np.ones((1, 20))) for _ in range(30)]
        values[n] = np.mean([f.misfit["t"] for f in found])
        assert sum(f.interval["t"][0] <= 0.25 <= f.interval["t"][1] for f in found) >= 22
        assert found[0].p["t"] < 1e-6
    assert values[400] == pytest.approx(0.25, abs=0.03)
    assert values[40_000] == pytest.approx(0.25, abs=0.003)


def test_p_values_are_uniform_with_and_without_noise():
    rng = np.random.default_rng(0)
    for noise in (0.0, 8.0):
        p = []
        for _ in range(2000):
            histogram = rng.multinomial(1000, np.full(20, 0.05)) + rng.normal(0, noise, 20)
            p.append(SelfScore({"t": histogram}, noise, np.ones((1, 20))).p["t"])
        assert stats.kstest(p, "uniform").pvalue > 1e-4


def test_a_private_score_is_one_release_and_still_sees_iid(model):
    ledger = Ledger()
    privacy = Gaussian(clip=np.sqrt(6.0), multiplier=3.0)
    iid = copy.copy(model)
    iid.concentrations_ = 1e10 * np.full((2, 4), 0.25)
    found = self_score(iid, clients_of(drawn(500, 3)), draws=29, privacy=privacy, ledger=ledger)
    assert found.noise == pytest.approx(3.0 * np.sqrt(6.0) / np.sqrt(0.9))
    assert found.p_all < 1e-6
    assert sum(line["kind"] == "release" for line in ledger.entries()) == 1
    assert found.misfit["likelihood"] > 0.3


@pytest.mark.parametrize(
    "privacy",
    [
        Gaussian(clip=2.45, multiplier=1.0),
        Gaussian(clip=2.45, multiplier=0.5, place="distributed"),
        Gaussian(clip=2.45, multiplier=0.05, place="local"),
        Laplace(clip=6.0, epsilon=10.0),
        Laplace(clip=6.0, epsilon=100.0, place="local"),
    ],
)
def test_the_noise_of_a_private_score_is_that_of_its_release(model, privacy):
    engine = Local(clients_of(drawn(300, 3)), min_clients=30)
    exact = self_score(model, engine, draws=9, bins=100)
    found = self_score(model, engine, draws=9, bins=100, privacy=privacy)
    noise = np.concatenate([found.histograms[n] - exact.histograms[n] for n in exact.histograms if n != "likelihood"])
    fourth = 5 if isinstance(privacy, Laplace) else 2
    assert abs(noise.var() / found.noise**2 - 1) < 5 * np.sqrt(fourth / noise.size)


def test_a_score_that_counts_nobody_or_clips_everybody_is_refused(model):
    fed = clients_of(drawn(30, 3))
    with pytest.raises(TooFewClients, match="nothing was scored: lower min_clients"):
        self_score(model, Local(fed, min_clients=31), draws=9)
    with pytest.raises(DataError, match="the histogram of size sums to 0: no client was scored"):
        SelfScore({"size": np.zeros(10)}, noise=0.0, components=np.zeros((1, 10)))
    with pytest.raises(PrivacyError, match=r"of norm 2.449, which clip=1 would shrink: use clip=2.45"):
        self_score(model, fed, privacy=Gaussian(clip=1.0, multiplier=1.0))
    with pytest.raises(PrivacyError, match=r"of norm 6, which clip=2.45 would shrink: use clip=6"):
        self_score(model, fed, privacy=Laplace(clip=2.45, epsilon=1.0))
    with pytest.raises(PrivacyError, match="use unit='client' and no scales"):
        self_score(model, fed, privacy=Gaussian(clip=2.45, multiplier=1.0, scales={"size": 2.0}))


def test_components_whose_clients_are_not_represented_are_named(model):
    counts = np.concatenate((drawn(300, 9), np.tile([0, 20, 0, 20], (100, 1))))
    found = self_score(model, clients_of(counts), draws=39)
    assert found.unlikely.max() > 0.2
    assert "not represented" in str(found)
    json.dumps(found.table())


def test_a_component_that_noise_hides_has_no_share_of_unlikely_clients():
    few, many = np.full(20, 0.1), np.full(20, 500.0)
    found = SelfScore({"likelihood": few + many}, noise=10.0, components=np.array([few * [40, *[-1] * 19], many]))
    assert np.isnan(found.unlikely[0])
    assert found.unlikely[1] == pytest.approx(0.05)
    assert found.table()["unlikely"][0] is None
    assert "component 0" not in str(found)


def test_what_a_client_sends_is_six_ones(model):
    from fedscape import Key

    scores = SelfScores(model, draws=9)
    sent, kept = scores.step(scores.prepare(scores.start(0)), clients_of(drawn(20, 1)), Key(0))
    assert not kept
    assert {int(v.reshape(20, -1).sum(axis=1).max()) for v in sent.values()} == {1}
    assert sum(v.reshape(20, -1).sum(axis=1) for v in sent.values()).tolist() == [6] * 20


def test_a_mixture_without_a_law_of_sizes_is_judged_by_its_histograms_alone():
    model = MixtureOfDirichletMultinomials(1, sizes=None).fit(drawn(200, 0), progress=False)
    assert "size" not in self_score(model, clients_of(drawn(50, 1)), draws=9).histograms
    with pytest.raises(DataError, match="bins must be at least 2"):
        SelfScores(model, bins=1)


# -- training ----------------------------------------------------------------------------------------------------------


def test_kendalls_tau_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 5, 9).astype(float), rng.normal(size=9)
        assert kendall(a, b) == pytest.approx(stats.kendalltau(a, b).statistic)
    assert kendall(np.ones(3), np.ones(3)) == 1.0


def test_halves_of_many_seeds_are_drawn_and_not_listed():
    assert len(_halves(8, 4)) == 70
    chosen = _halves(60, 30)  # ten to the 17 choices
    assert len(chosen) == 70
    assert all(len(set(c)) == 30 for c in chosen)
    assert {seed for c in chosen for seed in c} == set(range(60))
    true = np.random.default_rng(0).normal(0.7, 0.01, (4, 60))
    found = compare_training(true, {"same": true[:, :30]}, draws=2)["same"]
    assert found.difference < 0.01


def test_training_differences_stand_beside_the_noise_floor():
    rng = np.random.default_rng(0)
    truth = np.linspace(0.3, 0.8, 12)[:, None]
    true = truth + 0.01 * rng.normal(size=(12, 6))
    same = truth + 0.01 * rng.normal(size=(12, 3))
    found = compare_training(true, {"same": same, "higher": same + 0.05, "reversed": same[::-1]}, draws=40)
    assert found["same"].difference == pytest.approx(found["same"].floor, abs=0.006)
    assert found["same"].excess < 0.01
    assert found["higher"].excess == pytest.approx(0.05, abs=0.01)
    assert found["higher"].excess_interval[0] > 0.03
    assert found["higher"].tau > 0.9
    assert found["reversed"].tau < -0.9
    assert found["same"].tau_floor > 0.9
    for bad, message in [(true[:, :1], "at least 2 seeds"), (true * np.nan, "finite")]:
        with pytest.raises(DataError, match=message):
            compare_training(bad, {})
    with pytest.raises(DataError, match="'x' must be finite accuracies"):
        compare_training(true, {"x": same[:3]})


def test_training_on_true_and_simulated_clients_is_compared_over_settings():
    from fedscape.learning import LocalSGD, cross_entropy, grid, models
    from fedscape.simulate import FullyIID, clients

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 40)
    x = np.eye(3)[y] + 0.5 * rng.normal(size=(120, 3))
    true = Federation({"x": x, "y": y}, np.arange(0, 121, 10))  # one label each
    ways = [LocalSGD(models.linear(3, 3), cross_entropy, lr=1.0, epochs=e, batch_size=5) for e in (1, 2)]
    found = training_fidelity(
        ways,
        true,
        {"iid": lambda seed: clients(FullyIID(10), true, n_clients=12, seed=seed)},
        settings=grid(lr=[0.01, 0.1, 1.0]),
        test=true,
        n_rounds=3,
        seeds=2,
    )
    assert 0 <= found["iid"].difference <= 1
    assert found["iid"].floor >= 0


def test_features_are_compared_by_sketches_of_both_populations():

    def people(shift: float, seed: int) -> Federation:
        rng = np.random.default_rng(seed)
        centre = rng.normal(0, shift, (60, 1, 4))
        x = (centre + rng.normal(size=(60, 40, 4))).reshape(-1, 4)
        return Federation({"x": x, "y": rng.integers(0, 3, len(x))}, np.arange(0, len(x) + 1, 40))

    alike, other = people(1.0, 1), people(0.0, 2)
    found = fidelity(people(1.0, 0), alike, features="x", draws=40).sketch
    assert found.low < 0.02
    assert found.p > 0.01
    found = fidelity(people(1.0, 0), other, features="x", draws=40).sketch
    assert found.low > 0.1
    assert found.p < 0.05
    with pytest.raises(DataError, match="goes with two Federations"):
        fidelity(alike.counts("y"), other.counts("y"), features="x")
