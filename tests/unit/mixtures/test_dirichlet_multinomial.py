"""The mixture of Dirichlet-multinomials against SciPy, brute force and a dense reference; its edges and files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp, polygamma, psi
from scipy.stats import dirichlet_multinomial, multinomial

from fedscape import DataError, Federation, FixedSize, Key, Local, NotFittedError, rounds
from fedscape.core.rounds import frozen
from fedscape.errors import CheckpointError
from fedscape.mixtures import MixtureOfDirichletMultinomials, SizeLaws, choose_components
from fedscape.mixtures.dirichlet_multinomial import kernels as kernels
from fedscape.mixtures.dirichlet_multinomial import solvers as _dm_solvers
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.likelihood import COUNTS, TOTALS, Cells, Points, Tables, edges, rising
from fedscape.mixtures.dirichlet_multinomial.posterior import joint, shares_and_likelihood, tables_of
from fedscape.mixtures.dirichlet_multinomial.solvers import Tail, maximise
from fedscape.mixtures.dirichlet_multinomial.start import StartingPoints, Survey, matched

ALPHA = np.array([[0.3, 1.5, 0.7, 2.0], [6.0, 0.5, 3.0, 0.5], [0.05, 0.1, 0.2, 0.1]])
TAU = np.array([0.5, 0.3, 0.2])


def draw(n_clients, *, alpha=ALPHA, tau=TAU, sizes=None, seed=0):
    rng = np.random.default_rng(seed)
    component = rng.choice(len(tau), n_clients, p=tau)
    n = rng.integers(0, 60, n_clients) if sizes is None else np.broadcast_to(sizes, n_clients)
    p = np.array([rng.dirichlet(a) for a in alpha[component]])
    return rng.multinomial(n, p)


def fixed(alpha=ALPHA, tau=TAU, *, reach=128, laws=None):
    mixture = MixtureOfDirichletMultinomials(len(tau), sizes=None if laws is None else "bins")
    mixture.weights_, mixture.concentrations_ = np.array(tau), np.array(alpha)
    mixture.size_laws_, mixture.reach_ = laws, np.full(alpha.shape[1] + 1, reach)
    return mixture


def by_scipy(counts, alpha=ALPHA, tau=TAU):
    each = [[dirichlet_multinomial.logpmf(c, a, c.sum()) for a in alpha] for c in counts]
    return np.array(each) + np.log(tau)


def federation(counts):
    return Federation({"y": counts}, np.arange(len(counts) + 1))


# -- likelihood and shares ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reach", [128, 2])  # 2: nearly all counts lie above the tables
def test_scores_and_shares_agree_with_scipy(reach):
    counts, mixture = draw(60), fixed(reach=reach)
    each = by_scipy(counts)
    np.testing.assert_allclose(mixture.score_clients(counts), logsumexp(each, axis=1), rtol=1e-11, atol=1e-11)
    shares = np.exp(each - logsumexp(each, axis=1, keepdims=True))
    np.testing.assert_allclose(mixture.predict_proba(counts), shares, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(mixture.predict(counts), each.argmax(axis=1))
    assert mixture.score(counts) == pytest.approx(logsumexp(each, axis=1).mean(), rel=1e-12)


def test_the_law_of_sizes_multiplies_and_can_be_left_out():
    counts = draw(30)
    laws = SizeLaws(np.array([0, 10, 40, 2**31]), np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]]))
    each = by_scipy(counts)
    joined = each + laws.log_pmf(counts.sum(axis=1))
    mixture = fixed(laws=laws)
    np.testing.assert_allclose(mixture.score_clients(counts), logsumexp(joined, axis=1), rtol=1e-11)
    np.testing.assert_allclose(mixture.score_clients(counts, sizes=False), logsumexp(each, axis=1), rtol=1e-11)


def test_the_multinomial_limit_is_reached_without_loss_of_digits():
    mean = np.array([0.2, 0.5, 0.3])
    counts = np.random.default_rng(0).multinomial(300, mean, 20)
    mixture = fixed(mean[None] * 1e10, np.array([1.0]), reach=512)
    exact = multinomial.logpmf(counts, 300, mean)
    np.testing.assert_allclose(mixture.score_clients(counts), exact, atol=300**2 / 1e10)


def test_a_client_far_from_all_components_but_one_has_finite_shares():
    alpha = np.array([[1e4, 1e-3], [1e-3, 1e4]])
    shares = fixed(alpha, np.array([0.5, 0.5]), reach=512).predict_proba([[400, 0], [0, 400], [200, 200]])
    np.testing.assert_allclose(shares[:2], np.eye(2), atol=1e-12)
    np.testing.assert_allclose(shares[2], [0.5, 0.5], rtol=1e-6)


def test_an_empty_client_scores_zero_and_has_the_weights_as_shares():
    mixture = fixed()
    assert mixture.score_clients([[0, 0, 0, 0]]) == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(mixture.predict_proba([[0, 0, 0, 0]])[0], TAU)


@pytest.mark.parametrize("mean", [1e-8, 0.03, 1.0])
@pytest.mark.parametrize("dispersion", [1e-10, 1e-3, 0.7, 1e3])
@pytest.mark.parametrize("count", [0, 1, 16, 17, 5000])
def test_rising_sums_agree_with_adding_up(mean, dispersion, count):
    x = mean + dispersion * np.arange(count)
    for kind, terms in ((0, np.log(x)), (1, 1 / x), (2, 1 / x**2)):
        found = rising(np.array(mean), np.array(dispersion), np.array(count), kind)
        np.testing.assert_allclose(found, terms.sum(), rtol=3e-12, atol=1e-12)


# -- kernels and their twins -------------------------------------------------------------------------------------------


def parts(*, sparse):
    counts = draw(40, seed=5)
    counts[3, 1], counts[7, 2] = 700, 90
    clients = federation(counts)
    if sparse:
        rows = scipy.sparse.csr_array(counts)
        clients = Federation({"y": rows.indices, "times": rows.data}, rows.indptr.astype(np.int64))
    return counts, kernels.counts_of(clients, "y", "times" if sparse else None, 4)


@pytest.mark.parametrize("sparse", [False, True])
def test_kernels_agree_with_their_twins(sparse):
    _, counts = parts(sparse=sparse)
    rng = np.random.default_rng(0)
    shares = np.pad(rng.dirichlet(np.ones(3), 40), ((0, 0), (0, 1)))
    cells = Cells.covering(np.array([50, 900, 100, 3]), COUNTS)
    first, length = cells.first, cells.length
    if sparse:
        first, length = first[counts.category], length[counts.category]
    for owner in (np.arange(40), np.zeros(40, dtype=np.int64)):
        out = np.zeros((2, owner.max() + 1, cells.number + 4, 4))
        for one, work in zip(out, (kernels.add_ends, kernels.add_ends_twin), strict=True):
            work(counts.offsets, counts.number, shares, owner, first, length, counts.stride, edges(COUNTS), 64, one)
        np.testing.assert_allclose(out[0], out[1], atol=1e-13)
        tails = np.zeros((2, owner.max() + 1, cells.number, 3))
        kernels.tails_of(out[0], cells.first, cells.length, tails[0])
        kernels.tails_of_twin(out[0], cells.first, cells.length, tails[1])
        np.testing.assert_allclose(tails[0], tails[1], atol=1e-13)
        table = rng.normal(size=(cells.number + 4, 4))
        found = np.zeros((2, owner.max() + 1, 4, 3))
        for one, work in zip(found, (kernels.add_looked_up, kernels.add_looked_up_twin), strict=True):
            work(*counts[:3], shares, owner, first, length, counts.stride, table, one)
        np.testing.assert_allclose(found[0], found[1], atol=1e-12)
        bins = np.zeros((2, owner.max() + 1, 5, 3))
        kernels.add_shares(shares, owner, owner % 5, bins[0])
        kernels.add_shares_twin(shares, owner, owner % 5, bins[1])
        np.testing.assert_allclose(bins[0], bins[1], atol=1e-14)
    total = np.zeros((2, 40), dtype=np.int64)
    kernels.add_up_counts(counts.offsets, counts.number, total[0])
    kernels.add_up_counts_twin(counts.offsets, counts.number, total[1])
    np.testing.assert_array_equal(total[0], total[1])


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_tables_agree_with_their_twin(kind):
    mean, dispersion = np.array([[0.2, 0.8], [0.5, 0.5]]), np.array([0.3, 1e-9])
    first, cap = np.array([0, 6], dtype=np.int32), np.array([5, 9], dtype=np.int32)
    tables = np.zeros((2, 16, 4))
    kernels.fill_rising(mean, dispersion, first, cap, kind, tables[0])
    kernels.fill_rising_twin(mean, dispersion, first, cap, kind, tables[1, :, :2])
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-13)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_posterior_kernel_agrees_with_plain_numpy(sparse):
    _, counts = parts(sparse=sparse)
    work = TailCountEM((2, 1, 3), np.array([100, 800, 100, 100, 1000]))
    state, ends = work.start(0), np.array([0, 2, 3, 6])
    shares, likelihood = shares_and_likelihood(state, counts, ends, work.reach, work.size_edges)
    plain = joint(state, counts, tables_of(state, work.reach), work.size_edges)[:, :6]
    expected = kernels.posterior_twin(plain, ends)
    np.testing.assert_allclose(shares[:, :6], expected[0], atol=1e-12)
    np.testing.assert_allclose(likelihood, expected[1], rtol=1e-12)
    assert not shares[:, 6:].any()


@pytest.mark.parametrize("solver", ["exact", "newton", "fixed_point"])
def test_a_prepared_state_gives_the_same_sums_as_a_plain_one(solver):
    work, fed = TailCountEM.examples()[0]
    work = TailCountEM((2, 3), work.reach, solver=solver)
    state = work.start(0)
    plain, ready = (work.total(s, fed, Key(0)) for s in (state, work.prepare(state)))
    assert all(np.array_equal(plain[name], ready[name]) for name in plain)
    assert not any(name.startswith("table.") for name in work.update(state, {**plain, "clients": np.array(9)}, Key(0)))


def test_tables_never_outgrow_their_limit():
    many = Tables.build(np.full((2, 50), 0.02), np.ones(2), np.full(51, 2**30))
    assert many.rows.size + many.total.size < 2**23


# -- counts in, whatever their form ------------------------------------------------------------------------------------


def test_all_forms_of_the_same_counts_give_the_same_fit():
    counts = draw(80, sizes=12, seed=2)
    rows = np.repeat(np.tile(np.arange(4), 80), counts.ravel())
    offsets = np.concatenate(([0], np.cumsum(counts.sum(axis=1))))
    fits = [
        MixtureOfDirichletMultinomials(2, rounds=5).fit(data, column="y")
        for data in (federation(counts), Federation({"y": rows}, offsets), Local(federation(counts), threads=2))
    ]
    fits += [MixtureOfDirichletMultinomials(2, rounds=5).fit(data) for data in (counts, counts.astype(float).tolist())]
    fits += [MixtureOfDirichletMultinomials(2, rounds=5).fit(scipy.sparse.csr_array(counts))]
    for other in fits[1:]:
        np.testing.assert_allclose(other.concentrations_, fits[0].concentrations_, rtol=1e-7)
        assert other.log_likelihood_ == pytest.approx(fits[0].log_likelihood_, rel=1e-10)


def test_pairs_of_category_and_count_may_repeat_and_lie_in_any_order():
    clients = Federation({"y": [2, 0, 2, 1], "times": [1, 4, 2, 5]}, [0, 3, 4])
    counts = kernels.counts_of(clients, "y", "times", 3)
    assert counts.dense(3).tolist() == [[4, 0, 3], [0, 5, 0]]


def test_ten_thousand_categories_cost_by_the_non_zeros():
    rng = np.random.default_rng(0)
    rows = scipy.sparse.random_array(
        (50, 10_000), density=0.002, rng=rng, data_sampler=lambda size: rng.integers(1, 4, size)
    )
    mixture = MixtureOfDirichletMultinomials(2, rounds=2, n_init=1).fit(rows)
    counts = kernels.counts_of(mixture._source(rows).clients, "category", "count", 10_000)
    assert len(counts.number) == rows.nnz
    assert np.isfinite(mixture.score_clients(rows)).all()
    labels = np.sort(rng.integers(0, 10_000, 60))
    found = kernels.counts_of(Federation({"y": labels}, [0, 60]), "y", None, 10_000)
    assert len(found.number) == len(np.unique(labels))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([[1, -1], [0, 2]], "holds the count -1 in row 0"),
        ([[0.5, 1.0]], "must hold whole numbers; 0.5 in row 0"),
        ([1, 2, 3], r"counts must be whole numbers \[clients, categories\], not int64\[3\]"),
        (Federation({"y": np.zeros(0, dtype=int)}, [0, 0]), "column 'y' has no categories"),
    ],
)
def test_what_is_not_counts_is_refused_in_one_line(data, message):
    with pytest.raises(DataError, match=message) as error:
        MixtureOfDirichletMultinomials().fit(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_components": 0}, "n_components and rounds must be at least 1, got 0 and 30"),
        ({"solver": "adam"}, "solver must be 'exact', 'newton' or 'fixed_point', not 'adam'"),
        ({"init": "kmeans"}, "init must be 'spread' or 'random', not 'kmeans'"),
        ({"average": 0.4}, "average must be above 0.5 and at most 1"),
        ({"sizes": "normal"}, "sizes must be 'bins', 'histogram' or None, not 'normal'"),
    ],
)
def test_bad_parameters_are_refused(params, message):
    with pytest.raises(DataError, match=message):
        MixtureOfDirichletMultinomials(**params).fit([[1, 2], [3, 4]])


def test_results_before_fit_are_refused():
    for ask in (
        lambda m: m.score([[1]]),
        lambda m: m.sample(1),
        lambda m: m.save("x.json"),
        lambda m: m.predict([[1]]),
    ):
        with pytest.raises(NotFittedError, match="call fit"):
            ask(MixtureOfDirichletMultinomials())


def test_other_categories_than_the_fitted_are_refused():
    with pytest.raises(DataError, match="the data have 3 categories, the mixture was fitted to 4"):
        fixed().score([[1, 2, 3]])


# -- the M-step --------------------------------------------------------------------------------------------------------


def tail_of(counts, weights=None):
    data = kernels.counts_of(federation(counts), "y", None, counts.shape[1])
    weights = np.ones(len(counts)) if weights is None else weights
    shares = np.zeros((len(counts), 4))
    shares[:, 0] = weights
    together, nothing = np.zeros(len(counts), dtype=np.int64), np.zeros(len(counts), dtype=np.int32)
    total = kernels.Counts(np.arange(len(counts) + 1), nothing, data.total.astype(np.int32), data.total)
    cells = Cells.covering(counts.max(axis=0), COUNTS), Cells.covering(counts.sum(axis=1).max(keepdims=True), TOTALS)
    tails = [c.tails(d, shares, together, 1, 1)[0] for c, d in zip(cells, (data, total), strict=True)]
    points = [Points.of(c) for c in cells]
    return Tail(points[0], points[0].weights(tails[0]), points[1], points[1].weights(tails[1]))


def best_alpha(counts, start):
    n = counts.sum(axis=1)

    def loss(theta):
        a = np.exp(theta)
        value = (gammaln(a.sum()) - gammaln(a.sum() + n)).sum() + (gammaln(counts + a) - gammaln(a)).sum()
        slope = a * ((psi(a.sum()) - psi(a.sum() + n)).sum() + (psi(counts + a) - psi(a)).sum(axis=0))
        return -value, -slope

    return np.exp(minimize(loss, np.log(start), jac=True, method="BFGS", options={"gtol": 1e-7}).x)


@pytest.mark.parametrize("alpha", [[0.3, 1.5, 0.7, 2.0], [0.02, 0.05, 0.1, 0.03], [40.0, 10.0, 25.0, 60.0]])
def test_the_m_step_finds_the_maximum_that_scipy_finds(alpha):
    counts = draw(500, alpha=np.array([alpha]), tau=[1.0], sizes=np.random.default_rng(0).integers(1, 60, 500))
    mean, dispersion = maximise(tail_of(counts), np.full((4, 1), 0.25), np.array([0.5]))
    np.testing.assert_allclose((mean / dispersion)[:, 0], best_alpha(counts, np.array(alpha)), rtol=1e-4)


def test_wide_cells_move_the_maximum_by_far_less_than_its_standard_error():
    alpha = np.array([0.5, 4.0, 30.0, 2.0, 100.0])
    counts = draw(1000, alpha=alpha[None], tau=[1.0], sizes=np.random.default_rng(0).integers(300, 4000, 1000))
    mean, dispersion = maximise(tail_of(counts), np.full((5, 1), 0.2), np.array([0.5]))
    found, best = (mean / dispersion)[:, 0], best_alpha(counts, alpha)
    np.testing.assert_allclose(found, best, rtol=4e-3)  # a standard error is 2 to 4 percent here


def test_tail_counts_are_the_parts_of_cells_below_the_count():
    counts = np.array([[3, 0], [80, 1]])
    tail = kernels.counts_of(federation(counts), "y", None, 2)
    shares = np.array([[1.0, 0.0, 0, 0], [0.25, 0.0, 0, 0]])
    cells = Cells.covering(np.array([100, 2]), COUNTS)
    sent = cells.tails(tail, shares, np.arange(2), 2, 1)[..., 0]
    first = sent[:, : cells.length[0]]
    assert first[0, :4].tolist() == [1.0, 1.0, 1.0, 0.0]
    assert first[1, 63:67] == pytest.approx([0.25, 0.25, 0.25 * 8 / 9, 0.0])  # 64 to 72 full, 72 to 81 by 8 of 9
    assert sent[:, cells.length[0] :].tolist() == [[0.0, 0.0], [0.25, 0.0]]
    assert sent.min() >= 0
    assert sent.max() <= 1


def test_a_component_goes_to_the_multinomial_limit_and_comes_back():
    rng = np.random.default_rng(0)
    plain = rng.multinomial(50, [0.2, 0.5, 0.3], 400)
    mean, dispersion = maximise(tail_of(plain[:, [0, 1, 2]]), np.full((3, 1), 1 / 3), np.array([0.1]))
    under = maximise(tail_of(np.tile([[10, 25, 15]], (50, 1))), np.full((3, 1), 1 / 3), np.array([0.1]))
    assert under[1][0] == 1e-10  # less spread than the multinomial law: the limit is the best there is
    np.testing.assert_allclose(under[0][:, 0], [0.2, 0.5, 0.3], rtol=1e-9)
    spread = draw(400, alpha=np.array([[2.0, 5.0, 3.0]]), tau=[1.0], sizes=50)
    back = maximise(tail_of(spread), under[0], under[1])
    np.testing.assert_allclose((back[0] / back[1])[:, 0], best_alpha(spread, np.array([2.0, 5.0, 3.0])), rtol=1e-3)
    assert dispersion[0] < 0.02
    assert mean[1, 0] == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / 20_000))


def test_a_category_that_goes_to_the_floor_does_not_slow_the_others_down(monkeypatch):
    spread = draw(200, alpha=np.array([[2.0, 5.0, 3.0]]), tau=[1.0], sizes=50)
    counts = np.concatenate([np.column_stack([spread, np.zeros(200, int)]), np.tile([[0, 0, 0, 50]], (5, 1))])
    steps, climb = [], _dm_solvers.climb
    monkeypatch.setattr(_dm_solvers, "climb", lambda *given: steps.append(1) or climb(*given))
    weights = np.repeat([1.0, 1e-12], [200, 5])  # hardly anybody of this component has the last category
    mean, dispersion = maximise(tail_of(counts, weights), np.full((4, 1), 1 / 4), np.array([0.1]))
    assert len(steps) < 20
    alpha = (mean / dispersion)[:, 0]
    np.testing.assert_allclose(alpha[:3], best_alpha(spread, np.array([2.0, 5.0, 3.0])), rtol=1e-3)
    assert mean[3, 0] < 1.1e-8


def test_a_category_never_seen_keeps_a_tiny_share_and_scores_stay_finite():
    counts = draw(200, sizes=20)
    counts[:, 3] = 0
    mixture = MixtureOfDirichletMultinomials(2).fit(counts)
    share = mixture.concentrations_[:, 3] / mixture.concentrations_.sum(axis=1)
    assert (share > 0).all()
    assert (share < 1e-6).all()
    assert mixture.score([[0, 0, 0, 5]]) > -200


# -- EM ----------------------------------------------------------------------------------------------------------------


def dense_em_round(counts, tau, alpha):
    """Eq. (10) to (19) in plain NumPy, without a law of sizes."""
    n = counts.sum(axis=1)
    each = np.log(tau) + gammaln(alpha.sum(1)) - gammaln(alpha.sum(1) + n[:, None])
    each = each + (gammaln(counts[:, None] + alpha) - gammaln(alpha)).sum(axis=2)
    w = np.exp(each - logsumexp(each, axis=1, keepdims=True))
    u = (w[..., None] * (psi(counts[:, None] + alpha) - psi(alpha))).sum(axis=0)
    v = (w * (psi(n[:, None] + alpha.sum(1)) - psi(alpha.sum(1)))).sum(axis=0)
    return w, w.mean(axis=0), alpha * u / v[:, None]


def test_the_fixed_point_is_the_papers_algorithm():
    counts = draw(300, sizes=np.random.default_rng(1).integers(1, 50, 300))
    work = TailCountEM((3,), np.full(5, 64), sizes=None, solver="fixed_point")
    tau, alpha = np.full(3, 1 / 3), np.array([[1.0, 2.0, 1.0, 1.0], [3.0, 1.0, 2.0, 1.0], [0.2, 0.3, 0.2, 0.3]])
    state = work.begin(alpha / alpha.sum(1, keepdims=True), 1 / alpha.sum(1))
    for r in rounds(work, federation(counts), n_rounds=5, state=state):
        _, tau, alpha = dense_em_round(counts, tau, alpha)
        np.testing.assert_allclose(r.state["weights"], tau, rtol=1e-9)
        np.testing.assert_allclose(r.state["mean"] / r.state["dispersion"][:, None], alpha, rtol=1e-8)


def test_newtons_sums_are_digamma_and_trigamma_differences():
    counts = draw(50, sizes=np.random.default_rng(1).integers(0, 50, 50))
    work = TailCountEM((3,), np.full(5, 8), sizes=None, solver="newton")  # most counts lie above the tables
    state = frozen(work.begin(ALPHA / ALPHA.sum(1, keepdims=True), 1 / ALPHA.sum(1), weights=TAU))
    sent, _ = work.step(state, federation(counts), Key(0))
    w = dense_em_round(counts, TAU, ALPHA)[0]
    n, a0 = counts.sum(axis=1)[:, None], ALPHA.sum(1)
    first = w[..., None] * ALPHA * (psi(counts[:, None] + ALPHA) - psi(ALPHA))
    second = w[..., None] * ALPHA**2 * (polygamma(1, ALPHA) - polygamma(1, counts[:, None] + ALPHA))
    np.testing.assert_allclose(sent["first"].transpose(0, 2, 1), first, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(sent["second"].transpose(0, 2, 1), second, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(sent["first_total"], w * a0 * (psi(n + a0) - psi(a0)), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(
        sent["second_total"], w * a0**2 * (polygamma(1, a0) - polygamma(1, n + a0)), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("solver", ["exact", "newton", "fixed_point"])
def test_one_component_ends_at_the_maximum_likelihood(solver):
    counts = draw(300, alpha=ALPHA[:1], tau=[1.0], sizes=30)
    mixture = MixtureOfDirichletMultinomials(solver=solver, rounds=400, tol=1e-12).fit(counts)
    np.testing.assert_allclose(mixture.concentrations_[0], best_alpha(counts, ALPHA[0]), rtol=2e-3)
    if solver == "exact":
        assert mixture.n_rounds_ <= 3  # the first finds it, the next ones see that nothing is left to gain


def test_the_expected_gain_is_a_lower_bound_of_what_the_likelihood_gains():
    counts = federation(draw(200, seed=4))
    work = TailCountEM((2, 3), np.full(5, 64))
    before, gains = None, None
    for r in rounds(work, counts, n_rounds=6):
        if before is not None:
            assert (r.metrics["log_likelihood"] - before >= gains - 1e-9).all()
            assert (gains >= -1e-9).all()
        before, gains = r.metrics["log_likelihood"], r.state["gain"]


def test_models_side_by_side_are_the_models_alone():
    counts = federation(draw(100, seed=6))
    together = TailCountEM((2, 3), np.full(5, 64))
    state = together.start(3)
    alone = TailCountEM((3,), np.full(5, 64))
    start = alone.begin(state["mean"][2:], state["dispersion"][2:])
    both = [r.state for r in rounds(together, counts, n_rounds=4, state=state)][-1]
    one = [r.state for r in rounds(alone, counts, n_rounds=4, state=start)][-1]
    np.testing.assert_allclose(both["weights"][2:], one["weights"], rtol=1e-9)
    np.testing.assert_allclose(both["mean"][2:], one["mean"], rtol=1e-8)


def test_the_survey_covers_every_count():
    counts = draw(50, seed=8)
    state = next(rounds(Survey((2,), 4), federation(counts), n_rounds=1)).state
    largest = np.append(counts.max(axis=0), counts.sum(axis=1).max())
    assert (state["reach"] >= largest).all()
    assert (state["reach"] <= np.maximum(2 * largest, 1)).all()


def test_moments_recover_the_scale_in_spite_of_the_multinomial_noise():
    alpha = np.array([10.0, 5.0, 6.0, 4.0])
    counts = federation(draw(20_000, alpha=alpha[None], tau=[1.0], sizes=20))
    joined = next(rounds(StartingPoints((1,), 4), counts, n_rounds=1)).state
    mean, dispersion = matched(joined, np.full(4, 0.25))
    np.testing.assert_allclose(mean[0] / dispersion[0], alpha, rtol=0.05)  # uncorrected the scale would be 10.6, not 25


def test_moments_have_an_answer_where_there_is_nothing_to_match():
    def sums(counts, n=2):
        joined = next(rounds(StartingPoints((n,), 2, random=True), federation(np.array(counts)), n_rounds=1)).state
        return matched(joined, np.array([0.5, 0.5]))

    for counts in ([[5, 5]] * 20, [[1, 0]] * 20, [[1, 0]], [[3, 0]] * 20, [[0, 0]] * 5):
        mean, dispersion = sums(counts)
        assert np.isfinite(mean).all()
        assert (mean > 0).all()
        assert ((dispersion >= 1e-4) & (dispersion <= 1e3)).all()
    assert sums([[5, 5]] * 20)[1].tolist() == [1e-4, 1e-4]  # no variance: alpha_0 = 10,000
    assert sums([[1, 0], [0, 1]] * 20)[1].tolist() == [0.5, 0.5]  # one row each: alpha_0 = C


def test_random_starts_are_a_function_of_seed_round_and_client():
    counts = federation(draw(40, seed=1))
    work = StartingPoints((2, 3), 4, random=True)
    rows, _ = work.step(work.start(0), counts, Key(5, 0))
    back, _ = work.step(work.start(0), counts.take([7, 3]), Key(5, 0))
    np.testing.assert_array_equal(back["members"], rows["members"][[7, 3]])
    filled = counts["y"].sum(axis=1) > 0
    assert (rows["members"][:, :2].sum(axis=1) == filled).all()
    assert (rows["members"][:, 2:].sum(axis=1) == filled).all()


def test_cohorts_learn_by_running_averages():
    counts = draw(4000, sizes=40, seed=9)
    mixture = MixtureOfDirichletMultinomials(3, rounds=30, seed=1, sizes=None)
    mixture.fit(counts, sampler=FixedSize(400))
    assert mixture.n_rounds_ == 30
    fresh = draw(4000, sizes=40, seed=10)
    short = fixed().score(fresh) - mixture.score(fresh)
    assert short < 0.02  # 14 parameters; one cohort of 400 alone would fall 14 / 800 = 0.018 short on average


def test_same_seed_same_bytes_whatever_the_threads():
    counts = federation(draw(3000, seed=3))
    one, two = (MixtureOfDirichletMultinomials(2, rounds=4).fit(Local(counts, threads=t)) for t in (1, 2))
    assert one.concentrations_.tobytes() == two.concentrations_.tobytes()
    assert one.size_laws_.probabilities.tobytes() == two.size_laws_.probabilities.tobytes()


def test_a_fit_that_was_stopped_goes_on_to_the_same_bytes(tmp_path):
    counts = draw(200, seed=3)
    whole = MixtureOfDirichletMultinomials(2, rounds=6, tol=0.0).fit(counts)
    MixtureOfDirichletMultinomials(2, rounds=3, tol=0.0).fit(counts, checkpoint=tmp_path / "run")
    again = MixtureOfDirichletMultinomials(2, rounds=6, tol=0.0)
    (tmp_path / "run.final").unlink()
    again.fit(counts, checkpoint=tmp_path / "run")
    assert again.concentrations_.tobytes() == whole.concentrations_.tobytes()


def test_a_warm_start_keeps_the_components_and_needs_fewer_rounds():
    last, now = draw(1500, sizes=40, seed=1), draw(1500, sizes=40, seed=2)
    old = MixtureOfDirichletMultinomials(3, rounds=60).fit(last)
    new = MixtureOfDirichletMultinomials(3, rounds=60, warm_start=old).fit(now)
    cold = MixtureOfDirichletMultinomials(3, rounds=60).fit(now)
    assert new.n_rounds_ < cold.n_rounds_
    assert new.log_likelihood_ >= cold.log_likelihood_ - 1e-3
    shares = [m.concentrations_ / m.concentrations_.sum(axis=1, keepdims=True) for m in (old, new)]
    assert np.abs(shares[0] - shares[1]).max() < 0.1
    with pytest.raises(DataError, match=r"warm_start has components \(3, 4\), this fit needs \(2, 4\)"):
        MixtureOfDirichletMultinomials(2, warm_start=old).fit(now)


# -- what one row can change -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [1, 2])
def test_one_row_moves_what_one_component_sends_by_no_more_than_the_bound(norm):
    work = TailCountEM((1, 1), np.array([300, 300, 600]))
    state = frozen(work.start(0))
    bound, worst = work.row_bound(state, norm), 0.0
    for counts in ([0, 0], [3, 5], [63, 64], [70, 255], [15, 0], [299, 213]):
        rows = [work.step(state, federation(np.array([c])), Key(0))[0] for c in (counts, [counts[0] + 1, counts[1]])]
        flat = [np.concatenate([np.ravel(row[name]) for name in sorted(row)]) for row in rows]
        worst = max(worst, float(np.linalg.norm(flat[1] - flat[0], norm)))
    assert worst <= bound * (1 + 1e-12)
    assert worst >= 0.7 * bound  # and the bound is nearly met
    assert TailCountEM((2,), work.reach).row_bound(state, norm) is None


# -- using a mixture ---------------------------------------------------------------------------------------------------


def test_samples_have_the_mixtures_moments():
    mixture = fixed()
    drawn = mixture.sample(20_000, seed=1, sizes=10)
    share, p = drawn / 10, ALPHA / ALPHA.sum(axis=1, keepdims=True)
    assert (np.abs(share.mean(axis=0) - TAU @ p) < 5 * share.std(axis=0) / np.sqrt(20_000)).all()
    a0 = ALPHA.sum(axis=1)
    within = (p * (1 - p)) * ((10 + a0) / (10 * (1 + a0)))[:, None]  # variance of a Dirichlet-multinomial share
    variance = TAU @ (within + p**2) - (TAU @ p) ** 2
    fourth = ((share - share.mean(axis=0)) ** 4).mean(axis=0)
    assert (np.abs(share.var(axis=0) - variance) < 5 * np.sqrt((fourth - variance**2) / 20_000)).all()


def test_samples_follow_the_law_of_sizes_and_the_seed():
    counts = draw(500, seed=2)
    mixture = MixtureOfDirichletMultinomials(2).fit(counts)
    drawn, sizes = mixture.sample(5000, seed=3), counts.sum(axis=1)
    assert abs(drawn.sum(axis=1).mean() - sizes.mean()) < 5 * sizes.std() / np.sqrt(500)
    np.testing.assert_array_equal(drawn, mixture.sample(5000, seed=3))
    assert not np.array_equal(drawn, mixture.sample(5000, seed=4))
    assert drawn.dtype.kind == "i"
    with pytest.raises(DataError, match="has no law of sizes"):
        fixed().sample(3)


def test_standard_errors_match_the_curvature_and_cover():
    alpha = np.array([[2.0, 1.0, 0.5, 3.0]])
    counts = draw(2000, alpha=alpha, tau=[1.0], sizes=30)
    mixture = MixtureOfDirichletMultinomials().fit(counts)
    found, a = mixture.standard_errors(counts)["concentrations"][0], mixture.concentrations_[0]
    curvature = np.diag((polygamma(1, counts + a) - polygamma(1, a)).sum(axis=0))
    curvature += 2000 * (polygamma(1, a.sum()) - polygamma(1, a.sum() + 30))
    np.testing.assert_allclose(found, np.sqrt(np.diag(np.linalg.inv(-curvature))), rtol=0.15)
    assert (np.abs(a - alpha[0]) < 5 * found).all()


def test_standard_errors_of_a_mixture_cover_the_truth():
    counts = draw(4000, sizes=40, seed=12)
    mixture = MixtureOfDirichletMultinomials(3, rounds=200, tol=1e-8).fit(counts)
    errors = mixture.standard_errors(counts)
    assert (np.abs(mixture.weights_ - TAU) < 5 * errors["weights"]).all()
    assert (np.abs(mixture.concentrations_ - ALPHA) < 5 * errors["concentrations"]).all()
    assert (errors["weights"] > np.sqrt(TAU * (1 - TAU) / 4000)).all()  # more than if components were known


def test_information_criteria_count_the_parameters():
    counts = draw(100)
    mixture = fixed()
    total = mixture.score_clients(counts).sum()
    assert mixture.n_parameters_ == 3 * 4 + 2
    assert mixture.aic(counts) == pytest.approx(2 * 14 - 2 * total)
    assert mixture.bic(counts) == pytest.approx(14 * np.log(100) - 2 * total)


# -- how many components -----------------------------------------------------------------------------------------------


def test_the_number_of_components_is_found_in_one_run():
    counts = draw(800, sizes=60, seed=2)
    choice = choose_components(MixtureOfDirichletMultinomials(rounds=40), counts, candidates=(1, 2, 3, 4))
    assert choice.n_components == 3
    assert choice.model.weights_.shape == (3,)
    assert choice.scores.argmax() in (2, 3)
    assert choice.errors[choice.scores.argmax()] == 0
    assert max(choice.history["clients"][:-1]) + choice.history["clients"][-1] == 800  # validation clients are unseen


def test_the_standard_error_is_that_of_the_paired_difference():
    train, fresh = draw(400, sizes=30, seed=1), draw(300, sizes=30, seed=2)
    choice = choose_components(MixtureOfDirichletMultinomials(rounds=5), train, candidates=(1, 3), validation=fresh)
    each = [model.score_clients(fresh) for model in choice.models]
    np.testing.assert_allclose(choice.scores, [e.mean() for e in each], rtol=1e-9)
    difference = each[1] - each[0]
    worse = int(np.argmin(choice.scores))
    assert choice.errors[worse] == pytest.approx(difference.std(ddof=1) / np.sqrt(300), rel=1e-6)
    assert choice.behind[worse] == pytest.approx(abs(difference.mean()), rel=1e-6)


def test_candidates_that_cannot_be_are_refused():
    with pytest.raises(DataError, match="candidates must be numbers of components from 1 on, got"):
        choose_components(MixtureOfDirichletMultinomials(), [[1, 2]], candidates=(0, 1))


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_saved_mixture_is_the_same_when_loaded(tmp_path):
    labels = Federation.from_arrays({"y": ["a", "b", "a", "c"]}, clients=[0, 0, 1, 1])
    mixture = MixtureOfDirichletMultinomials(rounds=3, seed=7).fit(labels)
    mixture.save(tmp_path / "population.json")
    again = MixtureOfDirichletMultinomials.load(tmp_path / "population.json")
    assert again.get_params() == mixture.get_params()
    assert again.concentrations_.tobytes() == mixture.concentrations_.tobytes()
    assert again.score(labels) == mixture.score(labels)
    assert again.category_names_ == ("a", "b", "c")
    assert list(again.history_) == list(mixture.history_)
    np.testing.assert_array_equal(again.sample(5, seed=1), mixture.sample(5, seed=1))


def test_foreign_damaged_and_mismatched_files_are_refused(tmp_path):
    path = tmp_path / "population.json"
    MixtureOfDirichletMultinomials().fit([[1, 2], [3, 4]]).save(path)
    with pytest.raises(CheckpointError, match=r"a population is saved as \.json"):
        MixtureOfDirichletMultinomials().fit([[1, 2]]).save(tmp_path / "population.txt")
    (tmp_path / "other.json").write_text(json.dumps({"format": "something"}))
    (tmp_path / "torn.json").write_text(path.read_text()[:50])
    for name, message in (("other", "is not a population"), ("torn", "is not JSON"), ("missing", "cannot be read")):
        with pytest.raises(CheckpointError, match=message):
            MixtureOfDirichletMultinomials.load(tmp_path / f"{name}.json")
    arrays = tmp_path / "population.npz"
    arrays.write_bytes(arrays.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="does not belong to"):
        MixtureOfDirichletMultinomials.load(path)
