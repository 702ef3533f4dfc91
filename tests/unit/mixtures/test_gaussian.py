"""Gaussian mixtures by sums: the same as EM on the pooled rows, whatever the clients."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Central
from threadpoolctl import threadpool_limits

import fedscape as fs
from fedscape import DataError, Federation, GaussianMixture, Key, PrivacyError
from fedscape.core.kernel import uncompiled
from fedscape.mixtures import Diagonal, Full, Spherical, Tied
from fedscape.mixtures.gaussian.em import GaussianRounds
from fedscape.mixtures.gaussian.kernels import add_moments, add_moments_twin, squares, squares_twin
from fedscape.papers import Identity

FORMS = {"full": Full(), "diag": Diagonal(), "spherical": Spherical(), "tied": Tied()}
PRECISIONS = {
    "full": np.linalg.inv,
    "tied": np.linalg.inv,
    "diag": np.reciprocal,
    "spherical": np.reciprocal,
}


def blobs(n: int = 600, d: int = 3, k: int = 3, seed: int = 0, offset: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    means = rng.normal(0, 3, (k, d)) + offset
    return means[rng.integers(0, k, n)] + rng.normal(size=(n, d)) * rng.uniform(0.5, 2, d)


def split(x: np.ndarray, clients: int, seed: int = 0) -> Federation:
    ends = np.sort(np.random.default_rng(seed).integers(0, len(x) + 1, clients - 1))
    return Federation({"x": x}, np.concatenate(([0], ends, [len(x)])))


def start(form: str, x: np.ndarray, k: int = 3, seed: int = 1):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(k, 5.0))
    means = x.mean(axis=0) + rng.normal(0, 2, (k, x.shape[1]))
    a = rng.normal(size=(k, 9, x.shape[1]))
    matrices = a.transpose(0, 2, 1) @ a / 3 + np.eye(x.shape[1])
    covariances = {
        "full": matrices,
        "tied": matrices[0],
        "diag": np.diagonal(matrices, axis1=1, axis2=2).copy(),
        "spherical": matrices[:, 0, 0].copy(),
    }[form]
    return weights, means, covariances


def central(form: str, x: np.ndarray, begin, rounds: int) -> Central:
    weights, means, covariances = begin
    made = Central(
        len(weights),
        covariance_type=form,
        weights_init=weights,
        means_init=means,
        precisions_init=PRECISIONS[form](covariances),
        max_iter=rounds,
        tol=0.0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return made.fit(x)


def ours(form: str, begin, rounds: int, **options) -> GaussianMixture:
    weights, means, covariances = begin
    return GaussianMixture(
        len(weights),
        covariance=FORMS[form],
        weights_init=weights,
        means_init=means,
        covariances_init=covariances,
        rounds=rounds,
        tol=0.0,
        shared_weights=True,
        **options,
    )


# -- the same as central EM --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("clients", [1, 7, 300])
def test_twenty_rounds_equal_scikit_learn_for_any_split_into_clients(form, clients):
    x = blobs()
    begin = start(form, x)
    theirs, mine = central(form, x, begin, 20), ours(form, begin, 20).fit(split(x, clients))
    np.testing.assert_allclose(mine.means_, theirs.means_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(mine.covariances_, theirs.covariances_, rtol=0, atol=1e-8)
    np.testing.assert_allclose(mine.weights_, theirs.weights_, rtol=0, atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_scores_shares_and_criteria_equal_scikit_learn(form):
    x, new = blobs(), blobs(50, seed=5)
    begin = start(form, x)
    theirs, mine = central(form, x, begin, 20), ours(form, begin, 20).fit(split(x, 9))
    np.testing.assert_allclose(mine.score_samples(new), theirs.score_samples(new), atol=1e-7)
    np.testing.assert_allclose(mine.predict_proba(new), theirs.predict_proba(new), atol=1e-7)
    assert (mine.predict(new) == theirs.predict(new)).all()
    assert mine.score(new) == pytest.approx(theirs.score(new), abs=1e-7)
    assert mine.bic(new) == pytest.approx(theirs.bic(new), abs=1e-5)
    assert mine.aic(new) == pytest.approx(theirs.aic(new), abs=1e-5)
    assert mine.log_likelihood_ == pytest.approx(theirs.score(x), abs=1e-7)


def test_data_far_from_zero_lose_no_digits():
    near, far = blobs(), blobs(offset=1e5)
    begin = start("full", near)
    shifted = (begin[0], begin[1] + 1e5, begin[2])
    a, b = ours("full", begin, 10).fit(split(near, 5)), ours("full", shifted, 10).fit(split(far, 5))
    np.testing.assert_allclose(b.covariances_, a.covariances_, rtol=1e-6)


def weights_of_each_client(x, owner, begin, rounds):
    """Central EM with weights of its own for each client, written as the paper's formulas."""
    weights, means, covariances = (np.array(v) for v in begin)
    own = np.tile(weights, (owner.max() + 1, 1))
    for _ in range(rounds):
        joint = np.stack(
            [own[owner, k] * multivariate_normal(means[k], covariances[k]).pdf(x) for k in range(len(means))],
            axis=1,
        )
        r = joint / joint.sum(axis=1, keepdims=True)
        own = np.stack([r[owner == c].mean(axis=0) for c in range(len(own))])
        mass = r.sum(axis=0)
        means = r.T @ x / mass[:, None]
        for k in range(len(means)):
            away = x - means[k]
            covariances[k] = (r[:, k, None] * away).T @ away / mass[k] + 1e-6 * np.eye(x.shape[1])
    return means, covariances, own


def test_weights_kept_by_each_client_equal_central_em_with_such_weights():
    x = blobs(240)
    begin, fed = start("full", x), Federation({"x": x}, np.arange(0, 241, 40))
    means, covariances, own = weights_of_each_client(x, fed.client_of_row, begin, 8)
    engine = fs.Local(fed)
    mine = ours("full", begin, 8).set_params(shared_weights=False).fit(engine)
    np.testing.assert_allclose(mine.means_, means, atol=1e-9)
    np.testing.assert_allclose(mine.covariances_, covariances, atol=1e-9)
    np.testing.assert_allclose(engine.kept()["shares"].flat[:, 0], own, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
def test_likelihood_never_falls(shared):
    x = blobs(300)
    weights, means, covariances = start("full", x)
    work = GaussianRounds(
        weights[None], means[None], covariances[None], covariance=Full(), shared_weights=shared, regularisation=1e-9
    )
    seen = [float(r.metrics["log_likelihood"][0]) for r in fs.rounds(work, split(x, 12), n_rounds=40)]
    assert np.diff(seen).min() > -1e-9
    assert seen[-1] > seen[0]


def test_theorem_1_increments_of_the_likelihood_vanish_as_one_over_t():
    """(1/T) sum |F_t - F_(t-1)| <= (F* - F_0) / T for every T, Sigma = I, weights of each client's own.

    F* is known beforehand: no density of N(mu, I) is above (2 pi)^(-d/2). Were F to rise and fall, the absolute values
    would add up beyond it.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2)) + rng.choice([-3.0, 3.0], (400, 1))
    work = GaussianRounds(np.full((1, 3), 1 / 3), rng.normal(size=(1, 3, 2)), np.ones((1, 3)), covariance=Identity())
    done = fs.rounds(work, split(x, 8), n_rounds=300)
    seen = 8 * np.array([float(r.metrics["log_likelihood"][0]) for r in done])  # a mean over clients, before each round
    rows = -0.5 * ((x[:, None] - work.means[0]) ** 2).sum(axis=2) - np.log(2 * np.pi)
    np.testing.assert_allclose(seen[0], np.log(np.exp(rows).mean(axis=1)).sum(), rtol=1e-9)
    highest = -len(x) * np.log(2 * np.pi)
    for t in (1, 10, 100, 299):
        assert np.abs(np.diff(seen[: t + 1])).sum() / t <= (highest - seen[0]) / t
    assert np.diff(seen).min() > -1e-9  # Lemmas 2 and 3
    assert np.abs(np.diff(seen[-10:])).max() < 1e-3 * np.abs(np.diff(seen[:10])).max()  # and so they vanish


def test_the_bytes_do_not_depend_on_the_threads_of_blas():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(1, 2, 400, 400))  # large enough for BLAS to share the work, and so to add in another order
    spread = root @ root.swapaxes(-1, -2) / 400 + np.eye(400)
    work = GaussianRounds(np.full((1, 2), 0.5), np.zeros((1, 2, 400)), spread, covariance=Full())
    fed = split(rng.normal(size=(200, 400)), 8)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            reply = fs.Local(fed, threads=1).run(work, work.start(0), np.arange(8), fs.Key(0), measure=True)
        found.append({name: values.tobytes() for name, values in (reply.total | reply.metrics).items()})
    assert found[0] == found[1]


@pytest.mark.parametrize("alone", [False, True], ids=["matrices", "variances"])
def test_compiled_passes_give_what_their_plain_twins_give(alone):
    rng = np.random.default_rng(0)
    x, means, shares = rng.normal(size=(1500, 8)), rng.normal(size=(6, 8)), rng.dirichlet(np.ones(6), 1500).T
    factor = rng.normal(size=(6, 8) if alone else (6, 8, 8))
    np.testing.assert_allclose(squares(x, means, factor), squares_twin(x, means, factor), rtol=1e-12)
    bounds = np.array([0, 0, 7, 700, 700, 1450])  # the rows after the last client's are nobody's
    for groups in (6,) if alone else (6, 2):
        shape = (5, groups, 8) if alone else (5, groups, 8, 8)
        fast, slow = (
            {"mass": np.ones((5, 6)), "first": np.ones((5, 6, 8)), "second": np.ones(shape)} for _ in range(2)
        )
        add_moments(x, means, shares, bounds, **fast)
        add_moments_twin(x, means, shares, bounds, **slow)
        for name, values in slow.items():
            np.testing.assert_allclose(fast[name], values, rtol=1e-12, atol=1e-11, err_msg=name)
        assert (fast["first"][[0, 3]] == 1).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shared", [False, True])
def test_the_bytes_do_not_depend_on_the_threads_of_the_engine(form, shared):
    x = blobs(6000, d=8)
    weights, means, covariances = start(form, x)
    options = {"covariance": FORMS[form], "shared_weights": shared}
    work = GaussianRounds(weights[None], means[None], covariances[None], **options)
    fed, found = split(x, 300), []
    for threads in (1, 2, 3):
        reply = fs.Local(fed, threads=threads).run(work, work.start(0), np.arange(300), fs.Key(0), measure=True)
        found.append({name: values.tobytes() for name, values in (reply.total | reply.metrics).items()})
    assert found[0] == found[1] == found[2]


def test_a_process_without_compiled_loops_gets_the_same_to_rounding():
    x = blobs(6000, d=8)
    begin, fed = start("full", x), split(x, 5)
    compiled = ours("full", begin, 2).fit(fs.Local(fed, threads=1))
    with uncompiled():
        plain = ours("full", begin, 2).fit(fs.Local(fed, threads=1))
    np.testing.assert_allclose(plain.covariances_, compiled.covariances_, rtol=0, atol=1e-10)


# -- the paper's covariances -------------------------------------------------------------------------------------------


def test_averaged_local_covariances_lose_the_scatter_between_clients():
    rng = np.random.default_rng(3)
    centres = np.linspace(-5, 5, 10)
    x = (centres[:, None] + 0.6 * rng.normal(size=(10, 200))).reshape(-1, 1)
    fed = Federation({"x": x}, np.arange(0, 2001, 200))
    exact = GaussianMixture(1, rounds=3).fit(fed)
    paper = GaussianMixture(1, rounds=3, scatter="within_clients").fit(fed)
    assert exact.covariances_[0, 0, 0] == pytest.approx(x.var(), rel=1e-4)
    assert paper.covariances_[0, 0, 0] == pytest.approx(np.mean(x.reshape(10, 200).var(axis=1)), rel=1e-4)
    assert exact.score(x) - paper.score(x) > 5


# -- starts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_fit_finds_well_separated_components_by_itself(form):
    rng = np.random.default_rng(4)
    truth = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    z = rng.choice(3, 900, p=[0.5, 0.3, 0.2])
    x = truth[z] + rng.normal(size=(900, 2))
    fitted = GaussianMixture(3, covariance=FORMS[form]).fit(split(x, 30))
    np.testing.assert_allclose(fitted.means_, truth, atol=5 * np.sqrt(1 / 180))
    assert np.all(np.diff(fitted.weights_) <= 0)
    assert (fitted.predict(x) == z).mean() > 0.99


def test_more_starts_side_by_side_are_never_less_likely():
    x = blobs(400, d=2, k=5, seed=7)
    fed = split(x, 10)
    one, many = (GaussianMixture(5, n_init=n, rounds=15, tol=0.0).fit(fed) for n in (1, 6))
    assert many.log_likelihood_ >= one.log_likelihood_ - 1e-9
    assert len(many.history_) == len(one.history_)


def test_components_that_lose_all_rows_stay_where_they_are():
    x = blobs(100, d=2)
    begin = (np.full(2, 0.5), np.array([x.mean(axis=0), [1e6, 1e6]]), np.stack([np.eye(2)] * 2))
    fitted = ours("full", begin, 5).fit(split(x, 4))
    assert fitted.means_[1].tolist() == [1e6, 1e6]
    assert np.isfinite(fitted.score(x))


@pytest.mark.parametrize("form", FORMS)
def test_no_component_collapses_on_repeated_rows(form):
    x = np.repeat([[0.0, 1.0], [5.0, 1.0], [5.0, 2.0]], 20, axis=0)
    fitted = GaussianMixture(3, covariance=FORMS[form], regularisation=1e-4).fit(split(x, 6))
    assert np.isfinite(fitted.score(x))
    assert np.linalg.eigvalsh(fitted._matrices()).min() >= 0.99e-4


# -- asking ------------------------------------------------------------------------------------------------------------


def test_samples_follow_the_law():
    fitted = ours("full", start("full", blobs()), 10).fit(split(blobs(), 4))
    drawn = fitted.sample(20_000, seed=1)
    mean = fitted.weights_ @ fitted.means_
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - mean) < 5 * error).all()
    assert abs(fitted.score_samples(drawn).mean() - fitted.score(fitted.sample(20_000, seed=2))) < 0.1
    assert (fitted.sample(5, seed=3) == fitted.sample(5, seed=3)).all()


def test_weights_of_clients_are_learned_from_their_rows_alone():
    rng = np.random.default_rng(6)
    shares = np.array([[0.9, 0.1], [0.2, 0.8]])
    z = np.concatenate([rng.random(2000) < s[1] for s in shares]).astype(int)
    x = rng.normal(size=(4000, 1)) + 3.0 * z[:, None]
    fed = Federation({"x": x}, [0, 2000, 4000, 4000])
    begin = (np.full(2, 0.5), np.array([[0.0], [3.0]]), np.ones((2, 1, 1)))
    fitted = ours("full", begin, 3).set_params(shared_weights=False).fit(fed)
    own = fitted.client_weights(fed)
    np.testing.assert_allclose(own[:2], shares, atol=5 * np.sqrt(0.25 / 2000) * 1.5)
    assert own[2].tolist() == fitted.weights_.tolist()
    assert fitted.score(fed, weights=own) > fitted.score(fed)


def test_memory_mapped_columns_of_other_types_are_read_in_blocks(tmp_path):
    x = (blobs(500) * 10).astype(np.float32)
    split(x, 20).save(tmp_path / "fed")
    mapped = Federation.load(tmp_path / "fed")
    a, b = GaussianMixture(2, rounds=5).fit(mapped), GaussianMixture(2, rounds=5).fit(split(x.astype(float), 20))
    np.testing.assert_allclose(a.means_, b.means_, atol=1e-9)


def test_an_interrupted_fit_goes_on_to_the_same_numbers(tmp_path):
    fed = split(blobs(200), 8)
    whole = GaussianMixture(2, rounds=6, tol=0.0).fit(fed)
    GaussianMixture(2, rounds=3, tol=0.0).fit(fed, checkpoint=tmp_path / "run")
    (tmp_path / "run.final").unlink()
    again = GaussianMixture(2, rounds=6, tol=0.0).fit(fed, checkpoint=tmp_path / "run")
    assert again.means_.tobytes() == whole.means_.tobytes()
    assert again.log_likelihood_ == whole.log_likelihood_


# -- privacy -----------------------------------------------------------------------------------------------------------


def private_blobs(clients: int = 4000) -> Federation:
    rng = np.random.default_rng(9)
    x = rng.normal(0, 0.1, (clients * 5, 2)) + rng.choice([-0.6, 0.6], (clients * 5, 1))
    return Federation({"x": x}, np.arange(0, clients * 5 + 1, 5))


def test_a_private_fit_finds_the_components_and_is_written_down():
    fed = private_blobs()
    privacy = fs.Gaussian(clip=4.6, multiplier=1.0, noise_seed=1)
    gmm = GaussianMixture(2, n_init=1, rounds=6, bound=2.0, weighting="clients", shared_weights=True, tol=0.0)
    gmm.fit(fed, privacy=privacy)
    assert np.sort(gmm.means_[:, 0]) == pytest.approx([-0.6, 0.6], abs=0.1)
    assert sum(line["kind"] == "release" for line in gmm.ledger_.entries()) == gmm.n_releases() == 7
    assert np.isnan(gmm.log_likelihood_)


def test_what_is_taken_for_noise_is_the_noise_on_that_array():
    fed = private_blobs(50)
    gmm = GaussianMixture(1, covariance=Spherical(), bound=2.0, weighting="clients", shared_weights=True, rounds=1)
    scales = {"shares": 0.5, "second": 8.0}
    seen = []
    original = GaussianRounds.update

    def update(self, state, total, key):
        seen.append(self.noise)
        return original(self, state, total, key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianRounds, "update", update)
        gmm.fit(fed, privacy=fs.Gaussian(clip=4.6, multiplier=0.5, count_share=0.19, noise_seed=1, scales=scales))
    one = 0.5 * 4.6 / 0.9  # multiplier x sensitivity with the count
    assert seen == [pytest.approx((0.5 * one, 8.0 * one))] * 2


def test_few_shares_are_noise_of_shares_and_small_scatter_is_noise_of_scatter():
    begin = (np.full((1, 2), 0.5), np.zeros((1, 2, 1)), np.ones((1, 2)))
    work = GaussianRounds(*begin, covariance=Spherical(), noise=(1.0, 30.0), regularisation=1e-6)
    total = {
        "shares": np.array([[4.9, 100.0]]),
        "first": np.array([[[4.9], [100.0]]]),
        "second": np.full((1, 2), 101.0),
    }
    new = work.update(work.start(0), total, Key(0))
    assert new["means"][0, :, 0].tolist() == [0.0, 1.0]  # 4.9 shares could be noise: that component stays
    assert new["covariances"][0] == pytest.approx([1.0, 2 * 30.0 / 100 + 1e-6])  # not the 0.01 about the new mean


def test_a_clip_that_moves_is_refused():
    privacy = fs.Gaussian(clip=fs.privacy.AdaptiveClip(1.0), multiplier=1.0)
    with pytest.raises(PrivacyError, match="clip must be a number: variances are kept above the noise"):
        GaussianMixture(2, n_init=1, bound=1.0).fit(private_blobs(20), privacy=privacy)


def test_all_a_client_sends_is_within_the_stated_length():
    fed = private_blobs(50).with_column("x", private_blobs(50)["x"] * 1e3)
    work = GaussianRounds(
        np.full((1, 2), 0.5), np.array([[[2.0, 0.0], [-2.0, 0.0]]]), np.ones((1, 2, 2)), covariance=Diagonal(),
        weighting="clients", bound=2.0,
    )  # fmt: skip
    sent, _ = work.step(work.prepare(work.start(0)), fed, fs.Key(0))
    length = np.sqrt(sum((v.reshape(len(fed), -1) ** 2).sum(axis=1) for v in sent.values()))
    assert length.max() <= np.sqrt(21)


@pytest.mark.parametrize("norm", [1, 2])
def test_one_row_moves_the_sums_by_at_most_the_row_bound(norm):
    rng = np.random.default_rng(2)
    x = rng.normal(0, 5, (40, 3))
    work = GaussianRounds(
        np.full((2, 2), 0.5),
        rng.normal(size=(2, 2, 3)),
        np.stack([np.stack([np.eye(3)] * 2)] * 2),
        covariance=Full(),
        shared_weights=True,
        bound=1.5,
    )
    state = work.prepare(work.start(0))
    bound = work.row_bound(work.start(0), norm)
    whole = work.total(state, split(x, 3), fs.Key(0))
    for i in range(40):
        less = work.total(state, split(np.delete(x, i, axis=0), 3), fs.Key(0))
        moved = np.concatenate([(whole[n] - less[n]).ravel() for n in whole])
        assert np.linalg.norm(moved, norm) <= bound


def test_weights_of_their_own_cannot_be_protected_row_by_row():
    with pytest.raises(PrivacyError, match="does not bound what one row can change"):
        GaussianMixture(2, n_init=1, bound=1.0).fit(
            private_blobs(20), privacy=fs.Gaussian(clip=9.0, multiplier=1.0, unit="row")
        )


def test_starts_are_not_compared_behind_the_ledgers_back():
    with pytest.raises(PrivacyError, match="give measure_privacy, or use n_init=1"):
        GaussianMixture(2, bound=1.0, n_init=2).fit(private_blobs(20), privacy=fs.Gaussian(clip=9.0, multiplier=1.0))


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components and rounds must be at least 1, got 0 and 50"),
        ({"covariance": "full"}, r"covariance must be Full\(\), Diagonal\(\)"),
        ({"regularisation": 0.0}, "regularisation must be positive"),
        ({"scatter": "none"}, "scatter must be 'all' or 'within_clients'"),
        ({"bound": -1.0}, "bound must be positive, not -1.0"),
        ({"n_components": 2, "means_init": [[0.0]]}, r"means_init must be finite numbers \[2, 3\], got shape \(1, 1\)"),
        ({"n_components": 2, "weights_init": [0.5, 0.6]}, "weights_init must be 2 numbers of at least 0 that add to 1"),
        ({"covariances_init": np.zeros((1, 3, 3))}, "positive in every direction; the least variance is 0"),
        ({"covariances_init": np.eye(3)}, r"covariances_init must have the shape \(1, 3, 3\), not \(3, 3\)"),
    ],
)
def test_bad_settings_are_refused_with_what_to_do(options, message):
    with pytest.raises(DataError, match=message):
        GaussianMixture(**options).fit(split(blobs(20), 2))


def test_bad_rows_are_refused_by_their_place():
    x = blobs(50)
    x[37, 1] = np.nan
    with pytest.raises(DataError, match="column 'x' holds NaN or infinity in row 37"):
        GaussianMixture().fit(Federation({"x": x}, [0, 50]))
    with pytest.raises(DataError, match="must have rows"):
        GaussianMixture().fit(Federation({"x": x[:0]}, [0, 0]))
    with pytest.raises(fs.NotFittedError, match="call fit"):
        GaussianMixture().score_samples(x)
    with pytest.raises(DataError, match="has 2 features, the mixture has 3"):
        GaussianMixture().fit(split(blobs(20), 2)).score_samples(x[:, :2])


def test_one_row_clients_and_empty_clients_are_normal():
    x = blobs(30)
    fed = Federation({"x": x}, np.concatenate((np.arange(31), [30, 30])))
    fitted = GaussianMixture(2, rounds=4).fit(fed)
    assert np.isfinite(fitted.score(x))


@pytest.mark.parametrize("seed", range(1, 5))  # of which some draw nobody, and some do
def test_a_fit_ends_even_if_nobody_is_drawn_to_judge_it(seed):
    fed = split(blobs(60), 6)
    gmm = GaussianMixture(2, rounds=3, seed=seed).fit(fed, sampler=fs.Poisson(0.1))
    assert np.isnan(gmm.log_likelihood_) == list(gmm.history_)[-1]["abandoned"]
    assert gmm.means_.shape == (2, 3)


def test_questions_before_a_fit_are_refused():
    with pytest.raises(fs.NotFittedError, match="call fit"):
        GaussianMixture().client_weights(split(blobs(20), 2))


def test_texts_are_no_numbers_but_numbers_may_have_names():
    with pytest.raises(DataError, match="the column 'x' holds texts, not numbers: make indicator columns of it"):
        GaussianMixture().fit(Federation({"x": ["red", "blue", "red"]}, [0, 3]))
    wide = Federation({"x": blobs(20)}, [0, 20], names={"x": ["length", "width", "height"]})
    assert GaussianMixture().fit(wide).means_.shape == (1, 3)
