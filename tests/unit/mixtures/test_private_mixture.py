"""A mixture fitted under differential privacy: every round is written down, parameters stay valid, bounds hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import psi

from fedscape import (
    All,
    DataError,
    FederatedKMeans,
    Federation,
    FixedSize,
    Gaussian,
    GaussianMixture,
    Key,
    Laplace,
    Ledger,
    Local,
    Poisson,
    PrivacyError,
    calibrate,
    rounds,
)
from fedscape.core.rounds import frozen
from fedscape.errors import TooFewClients
from fedscape.mixtures import MixtureOfDirichletMultinomials, choose_components
from fedscape.mixtures.dirichlet_multinomial.compare import PrivateComparison
from fedscape.mixtures.dirichlet_multinomial.private import (
    SHARES,
    DifferenceMoments,
    Outline,
    ScoreAscent,
    drawn_scores,
    laws,
    shortened,
    starts,
)
from fedscape.mixtures.size_laws import size_edges
from fedscape.privacy.mechanisms import AdaptiveClip

ALPHA = np.array([[8.0, 2.0, 1.0, 1.0], [1.0, 2.0, 6.0, 6.0]])
REACH = np.array([64, 64, 64, 64, 256])


def draw(n_clients, *, alpha=ALPHA, seed=0, most=60):
    rng = np.random.default_rng(seed)
    component = rng.integers(0, len(alpha), n_clients)
    p = np.array([rng.dirichlet(a) for a in alpha[component]])
    return rng.multinomial(rng.integers(0, most, n_clients), p)


def federation(counts):
    return Federation({"y": counts}, np.arange(len(counts) + 1))


def mixture(k=2, **params):
    return MixtureOfDirichletMultinomials(k, **{"n_init": 1, "rounds": 3, **params})


def releases(ledger):
    return [line for line in ledger.entries() if line["kind"] == "release"]


def outstanding(ledger):
    """Releases that are reserved and neither made nor handed back."""
    sign = {"reserve": 1, "return": -1}
    return sum(sign.get(line["kind"], 0) * line.get("count", 0) for line in ledger.entries()) - len(releases(ledger))


# -- the ledger --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "expected"), [(1, 4), (2, 5)])
def test_every_round_of_every_phase_is_a_release(k, expected):
    ledger, fit = Ledger(), mixture(k)
    fit.fit(draw(80), privacy=Gaussian(clip=1.5, multiplier=1.0), ledger=ledger)
    assert len(releases(ledger)) == expected == fit.n_releases() == len(fit.history_)
    assert outstanding(ledger) == 0
    assert fit.ledger_ is ledger
    assert math.isnan(fit.log_likelihood_)


def test_a_calibrated_fit_spends_what_it_was_given():
    fit, ledger = mixture(3, rounds=2), Ledger(epsilon=1.0, delta=1e-5)
    multiplier = calibrate(1.0, 1e-5, rounds=fit.n_releases(), sampler=All())
    fit.fit(draw(60), privacy=Gaussian(clip=1.5, multiplier=multiplier), ledger=ledger)
    assert 0.99 < ledger.spent()["client", "add-remove", "central"] <= 1.0


def test_a_fit_beyond_the_budget_is_refused_before_anything_is_released():
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    one = calibrate(1.0, 1e-5, rounds=1, sampler=All())  # enough for the first round, not for all of them
    with pytest.raises(PrivacyError, match="beyond the budget of 1; nothing was released"):
        mixture().fit(draw(80), privacy=Gaussian(clip=1.5, multiplier=one), ledger=ledger)
    assert releases(ledger) == []
    assert outstanding(ledger) == 0


def test_a_comparison_that_does_not_fit_refuses_the_whole_fit():
    multiplier = calibrate(1.0, 1e-5, rounds=5, sampler=All())
    ledger = Ledger(epsilon=1.0, delta=1e-5)
    with pytest.raises(PrivacyError, match="beyond the budget"):
        mixture(n_init=2).fit(
            draw(80),
            privacy=Gaussian(clip=1.5, multiplier=multiplier),
            ledger=ledger,
            measure_privacy=Gaussian(clip=5.0, multiplier=5.0),
        )
    assert releases(ledger) == []
    assert outstanding(ledger) == 0


def test_starts_are_compared_only_through_measure_privacy():
    privacy = Gaussian(clip=1.5, multiplier=1.0)
    with pytest.raises(PrivacyError, match="give measure_privacy, with a clip in nats, or use n_init=1") as error:
        mixture(n_init=3).fit(draw(80), privacy=privacy)
    assert "\n" not in str(error.value)
    ledger = Ledger()
    measured = Gaussian(clip=5.0, multiplier=7.0)
    mixture(n_init=3).fit(draw(80), privacy=privacy, ledger=ledger, measure_privacy=measured)
    entries = [line["entry"]["multiplier"] for line in ledger.entries() if line["kind"] == "reserve"]
    assert len(releases(ledger)) == 6
    assert 7.0 in entries


def test_the_likelihood_of_one_model_can_be_measured():
    counts = draw(400)
    private = {"privacy": Gaussian(clip=1.5, multiplier=0.05), "measure_privacy": Gaussian(clip=30.0, multiplier=0.05)}
    fit = mixture().fit(counts, **private)
    assert fit.log_likelihood_ == pytest.approx(fit.score(counts), abs=0.1)


def test_choosing_components_is_counted_in_one_ledger():
    ledger = Ledger()
    choice = choose_components(
        mixture(),
        draw(600, alpha=np.array([[40.0, 2.0, 1.0, 1.0], [1.0, 2.0, 20.0, 20.0]])),
        candidates=(1, 2),
        privacy=Gaussian(clip=1.5, multiplier=0.2),
        ledger=ledger,
        measure_privacy=Gaussian(clip=5.0, multiplier=0.2),
    )
    assert choice.n_components == 2
    assert len(releases(ledger)) == 2 + 3 + 1
    assert choice.model.ledger_ is ledger
    with pytest.raises(PrivacyError, match="give measure_privacy"):
        choose_components(mixture(), draw(50), candidates=(1, 2), privacy=Gaussian(clip=1.5, multiplier=1.0))


def test_choosing_components_on_cohorts_of_a_fixed_size_is_counted_as_exchanges():
    ledger = Ledger()
    noise = {"privacy": Gaussian(clip=1.5, multiplier=1.0), "measure_privacy": Gaussian(clip=5.0, multiplier=1.0)}
    choose_components(mixture(), draw(90), candidates=(1, 2), sampler=FixedSize(60), ledger=ledger, **noise)
    runs = [e for e in ledger.entries() if e["kind"] == "reserve" and not e["run"].startswith("plan")]
    booked = [(e["entry"]["relation"], e["entry"]["multiplier"]) for e in runs]
    assert booked == [("replace-one", 0.5)] * 3 + [("add-remove", 1.0)]  # the comparison is of everyone set aside


@pytest.mark.parametrize("sampler", [Poisson(0.5), FixedSize(60)])
def test_cohorts_are_accounted_for_as_sampled(sampler):
    ledger = Ledger(delta=1e-5)
    mixture(1).fit(draw(100), sampler=sampler, privacy=Gaussian(clip=1.5, multiplier=4.0), ledger=ledger)
    whole = Ledger(delta=1e-5)
    mixture(1).fit(draw(100), privacy=Gaussian(clip=1.5, multiplier=4.0), ledger=whole)
    relation = "replace-one" if isinstance(sampler, FixedSize) else "add-remove"
    assert set(ledger.spent()) == {("client", relation, "central")}
    if relation == "add-remove":
        assert ledger.spent()["client", relation, "central"] < whole.spent()["client", relation, "central"]


# -- noise -------------------------------------------------------------------------------------------------------------


def test_a_stopped_private_fit_goes_on_with_the_same_noise(tmp_path):
    counts, path = draw(80), tmp_path / "fit"
    ledger = Ledger(tmp_path / "ledger.jsonl")
    privacy = Gaussian(clip=1.5, multiplier=0.5)
    once = mixture().fit(counts, privacy=privacy, ledger=ledger, checkpoint=path)
    spent = len(releases(ledger))
    again = mixture().fit(counts, privacy=privacy, ledger=ledger, checkpoint=path)
    np.testing.assert_array_equal(again.concentrations_, once.concentrations_)
    assert len(releases(ledger)) == spent
    path.unlink()  # the last phase starts anew: fresh noise, and new releases
    fresh = mixture().fit(counts, privacy=privacy, ledger=ledger, checkpoint=path)
    assert len(releases(ledger)) == spent + 3
    assert not np.array_equal(fresh.concentrations_, once.concentrations_)


class Stopped(Exception):
    pass


class Breaking(Local):
    """An engine that breaks down after some rounds."""

    left = 10**9

    def run(self, *args, **kwargs):
        self.left -= 1
        if self.left < 0:
            raise Stopped
        return super().run(*args, **kwargs)


@pytest.mark.parametrize("survived", [1, 2, 4])
def test_a_private_fit_killed_in_any_phase_ends_as_if_it_had_not_been(survived, tmp_path):
    fed = federation(draw(80))
    privacy = Gaussian(clip=1.5, multiplier=1.0, noise_seed=3)
    whole = mixture().fit(fed, privacy=privacy, checkpoint=tmp_path / "whole")
    ledger, engine = Ledger(), Breaking(fed)
    engine.left = survived
    with pytest.raises(Stopped):
        mixture().fit(engine, privacy=privacy, ledger=ledger, checkpoint=tmp_path / "cut")
    engine.left = 10**9
    resumed = mixture().fit(engine, privacy=privacy, ledger=ledger, checkpoint=tmp_path / "cut")
    np.testing.assert_array_equal(resumed.concentrations_, whole.concentrations_)
    assert len(releases(ledger)) == 5


def test_noise_differs_from_fit_to_fit_unless_a_noise_seed_is_given():
    counts = draw(60)
    free = [mixture().fit(counts, privacy=Gaussian(clip=1.5, multiplier=1.0)).weights_ for _ in range(2)]
    assert not np.array_equal(*free)
    told = [mixture().fit(counts, privacy=Gaussian(clip=1.5, multiplier=1.0, noise_seed=1)) for _ in range(2)]
    np.testing.assert_array_equal(told[0].concentrations_, told[1].concentrations_)
    assert not told[0].ledger_.private


@settings(max_examples=8, deadline=None)
@given(
    noise=st.sampled_from([1.0, 1e2, 1e5, 1e9]),
    k=st.integers(1, 4),
    clients=st.sampled_from([1, 3, 40]),
    sizes=st.sampled_from(["bins", None]),
    seed=st.integers(0, 99),
)
def test_parameters_are_valid_whatever_the_noise(noise, k, clients, sizes, seed):
    counts = draw(clients, seed=seed)
    fit = mixture(k, sizes=sizes).fit(counts, privacy=Gaussian(clip=1.0, multiplier=noise, noise_seed=seed))
    assert np.isfinite(fit.concentrations_).all()
    assert (fit.concentrations_ > 0).all()
    assert (fit.weights_ > 0).all()
    assert fit.weights_.sum() == pytest.approx(1.0)
    assert (np.diff(fit.weights_) <= 0).all()
    if sizes is not None:
        np.testing.assert_allclose(fit.size_laws_.probabilities.sum(axis=1), 1.0)
        assert (fit.size_laws_.probabilities > 0).all()
    assert np.isfinite(fit.score_clients(counts)).all()
    assert fit.sample(5, sizes=3).sum() == 15


@pytest.mark.parametrize(
    "privacy",
    [
        Gaussian(clip=1.5, multiplier=2.0, place="local"),
        Gaussian(clip=1.5, multiplier=0.3, place="distributed"),
        Laplace(clip=4.0, epsilon=1.0, count_share=0.5),  # of 50 clients 30 are counted but for one in 20,000
        Laplace(clip=4.0, epsilon=1.0, place="local"),
        Gaussian(clip=2.5, multiplier=0.3, unit="row"),
        Laplace(clip=30.0, epsilon=10.0, unit="row"),
    ],
)
def test_every_place_and_mechanism_gives_a_valid_mixture(privacy):
    counts = draw(50)
    fit = mixture().fit(Local(federation(counts), min_clients=30), privacy=privacy)
    assert np.isfinite(fit.score(counts))
    entries = [line["entry"] for line in fit.ledger_.entries() if line["kind"] == "reserve"]
    assert {entry["unit"] for entry in entries} == {privacy.unit}
    assert {entry["place"] for entry in entries} == {"local" if privacy.place == "local" else "central"}


# -- what clients send -------------------------------------------------------------------------------------------------


def norms(sent):
    return np.sqrt(sum((np.asarray(v, dtype=float).reshape(len(v), -1) ** 2).sum(axis=1) for v in sent.values()))


def test_the_first_rounds_send_at_most_norm_one():
    fed = federation(np.vstack((draw(200), [[0, 0, 0, 0], [10**6, 0, 0, 0]])))
    assert norms(Outline(4).step({}, fed, Key(0))[0]).max() <= 1 + 1e-12
    work = DifferenceMoments(4)
    for centre in (np.zeros(4), np.full(4, 0.5), np.array([1.0, 0, 0, 0])):
        assert norms(work.step({"centre": centre}, fed, Key(0))[0]).max() <= 1 + 1e-12


def test_scores_are_the_gradient_and_those_of_the_model_itself_are_white():
    work = ScoreAscent((1,), REACH, sizes=None, longest=1e9)
    state = frozen(work.begin(np.array([[0.4, 0.3, 0.2, 0.1]]), np.array([0.1]), work.start(0)["law"]))
    counts = draw(50)
    sent, _ = work.step(state, federation(counts), Key(0))
    alpha, n = np.array([4.0, 3.0, 2.0, 1.0]), counts.sum(axis=1)
    plain = alpha * (psi(counts + alpha) - psi(alpha)) - alpha * (psi(n + 10.0) - psi(10.0))[:, None]
    np.testing.assert_allclose(sent["score"] * 2, plain @ state["whitener"][0], rtol=1e-8, atol=1e-10)
    scores = drawn_scores(alpha / 10, 0.1, np.full(20_000, 30), np.random.default_rng(0))
    error = scores.std(axis=0) / np.sqrt(20_000)
    assert (np.abs(scores.mean(axis=0)) < 5 * error).all()


def test_without_noise_steps_lead_to_the_maximum_likelihood():
    counts = draw(2000, most=80)
    work = ScoreAscent((2,), REACH, rounds=30)
    fed = federation(counts)
    first = Outline(4)
    outline = next(rounds(first, fed, n_rounds=1)).state
    second = next(rounds(DifferenceMoments(4), fed, n_rounds=1, state={"centre": outline["centre"]})).state["second"]
    law = work.start(0)["law"]
    start = starts((2,), outline["centre"], second, first.inverse(outline["law"]), 0)
    *_, last = rounds(work, fed, n_rounds=30, state=work.begin(*start, law))
    state = last.state
    best = MixtureOfDirichletMultinomials(2, tol=1e-8).fit(counts)
    found = (state["mean"] / state["dispersion"][:, None])[np.argsort(-state["weights"])]
    np.testing.assert_allclose(found, best.concentrations_, rtol=0.08)  # a standard error is about 5 percent


def test_laws_of_sizes_are_the_nearest_above_the_floor():
    edges = size_edges("bins", 8)
    noisy = np.zeros((2, len(edges) - 1))
    noisy[0, :4] = [0.5, 0.3, -0.1, 0.0]
    found = laws(noisy, edges)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert (found > 0).all()
    assert found[0, 0] - found[0, 1] == pytest.approx(0.2 / 0.7, rel=1e-2)  # a mass of 0.7, both lowered by 0.05


def test_sizes_beyond_those_that_stand_out_from_the_noise_have_the_floor_alone():
    first = Outline(4)
    law = np.full(len(size_edges("bins", 4096)) - 1, 0.001)
    law[20:24] = 0.25
    law[40] = 0.01  # less than the noise, as everywhere
    found = first.in_sight(law / law.sum(), 0.05)
    floor = first.in_sight(np.zeros_like(law), 1.0)  # nothing stands out: the first bin alone
    assert found[20:24].sum() > 0.98
    assert found[25:].sum() < 1e-3
    assert np.isfinite(floor).all()


def test_noise_does_not_make_clients_of_a_million_rows():
    counts = draw(1500, most=80)
    fit = mixture(2).fit(counts, privacy=Gaussian(clip=1.5, multiplier=6.0, noise_seed=1))
    drawn = fit.sample(2000, seed=1).sum(axis=1)
    assert abs(drawn.mean() - counts.sum(axis=1).mean()) < 0.3 * counts.sum(axis=1).mean()
    assert drawn.max() < 1000


def test_comparisons_are_bounded_and_tell_models_apart():
    counts = draw(500)
    like = ScoreAscent((1, 2), REACH)
    state = like.begin(np.vstack((ALPHA.sum(0)[None], ALPHA)), np.array([0.2, 1 / 12, 1 / 15]), like.start(0)["law"])
    models = {name: state[name] for name in ("weights", "mean", "dispersion", "sizes")}
    work = PrivateComparison((1, 2), REACH, bound=2.0)
    assert norms(work.step(frozen(models), federation(counts), Key(0))[0]).max() <= 2 * np.sqrt(2) + 1e-12
    found = next(rounds(work, federation(counts), n_rounds=1, state=models)).state
    assert found["log_likelihood"][1] - found["log_likelihood"][0] > 5 * found["errors"][0, 1]
    assert np.diag(found["errors"]).tolist() == [0.0, 0.0]


# -- one row as the unit -----------------------------------------------------------------------------------------------


def moved(work, state, counts, category):
    """How far one row more of a category moves what each client sends, in both norms."""
    more = counts.copy()
    more[np.arange(len(counts)), category] += 1
    one, two = (work.step(state, federation(c), Key(0))[0] for c in (counts, more))
    change = [(two[name] - one[name]).reshape(len(counts), -1) for name in one]
    l2 = np.sqrt(sum((c**2).sum(axis=1) for c in change))
    return l2, sum(np.abs(c).sum(axis=1) for c in change)


def cases():
    rng = np.random.default_rng(0)
    for trial in range(12):
        models = [(1,), (2,), (3,), (1, 1), (2, 3)][trial % 5]
        work = ScoreAscent(models, REACH, sizes=(None, "bins")[trial % 2], longest=1.0, noise=(0.0, 0.05)[trial % 2])
        g = sum(models)
        mean = rng.dirichlet(np.full(4, (0.1, 1.0)[trial % 2]), g)
        state = work.begin(mean, 10.0 ** rng.uniform(-5, 1, g), work.start(0)["law"])
        yield f"ascend {trial} {models}", work, frozen(state)
    yield "outline", Outline(4), {}
    yield "differ", DifferenceMoments(4), {"centre": np.array([0.6, 0.4, 0.3, 0.2])}
    yield "differ at an edge", DifferenceMoments(4), {"centre": np.array([0.999, 0.01, 0.01, 0.0])}


@pytest.mark.parametrize(("name", "work", "state"), list(cases()), ids=[c[0] for c in cases()])
def test_no_row_moves_the_sums_further_than_the_bound(name, work, state):
    rng = np.random.default_rng(1)
    low = rng.integers(0, 3, (400, 4))
    corners = np.array([[a, b, c, d] for a in (0, 1, 300) for b in (0, 1, 40) for c in (0, 2) for d in (0, 1)])
    counts = np.vstack((draw(300), low, corners, np.zeros((4, 4), dtype=int)))
    for category in range(4):
        l2, l1 = moved(work, state, counts, category)
        assert l2.max() <= work.row_bound(state, 2) * (1 + 1e-9)
        assert l1.max() <= work.row_bound(state, 1) * (1 + 1e-9)


def test_the_bound_on_a_row_of_one_component_is_attained():
    work = ScoreAscent((1,), REACH, sizes=None, longest=1e9)
    state = frozen(work.begin(np.array([[0.7, 0.1, 0.1, 0.1]]), np.array([0.1]), work.start(0)["law"]))
    others = 10**6 * (1 - np.eye(4, dtype=int))  # a category never seen, in a client with many rows of all others
    most = max(moved(work, state, others[[j]], j)[0].max() for j in range(4))
    assert most > 0.99 * work.row_bound(state, 2)


def test_a_row_can_change_all_shares_so_several_components_have_the_wide_bound():
    work = ScoreAscent((2,), REACH, sizes="bins", longest=1.0)
    mean = np.array([[0.5, 0.5 - 2e-5, 1e-5, 1e-5], [1e-5, 0.4, 0.3, 0.3 - 1e-5]])
    state = frozen(work.begin(mean, np.array([1e-5, 1e-5]), work.start(0)["law"]))
    found = max(moved(work, state, np.array([[0, n, 0, 0] for n in range(60)]), 0)[0].max(), 0)
    assert work.row_bound(state, 2) == pytest.approx(np.sqrt(4 + 4 * SHARES**2))
    assert found > 0.4  # far beyond what a row can do to one component


def test_a_clip_below_the_bound_is_refused():
    with pytest.raises(PrivacyError, match=r"one row can move the sums by .*, more than clip=1: raise the clip"):
        mixture().fit(draw(30), privacy=Gaussian(clip=1.0, multiplier=1.0, unit="row"))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"solver": "exact"}, "a private fit has a solver of its own: leave out solver='exact'"),
        ({"init": "random"}, "use init='spread', not 'random'"),
    ],
)
def test_what_a_private_fit_cannot_do_is_refused_before_anything_is_released(params, message):
    ledger = Ledger()
    with pytest.raises(PrivacyError, match=message) as error:
        mixture(**params).fit(draw(30), privacy=Gaussian(clip=1.5, multiplier=1.0), ledger=ledger)
    assert "\n" not in str(error.value)
    assert releases(ledger) == []


def test_the_number_of_categories_is_not_read_off_rows():
    rows = Federation({"y": [0, 1, 2, 2, 1, 0]}, [0, 2, 4, 6])
    privacy = Gaussian(clip=1.5, multiplier=1.0)
    with pytest.raises(PrivacyError, match="the largest category of 'y' is a client's secret: pass n_categories="):
        mixture().fit(rows, privacy=privacy)
    assert mixture(n_categories=4).fit(rows, privacy=privacy).concentrations_.shape == (2, 4)
    assert mixture().fit(scipy.sparse.csr_array(draw(20)), privacy=privacy).concentrations_.shape == (2, 4)


def test_a_fit_that_cannot_begin_says_so():
    engine = Local(federation(draw(20)), min_clients=30)
    with pytest.raises(TooFewClients, match="too few clients reported in every round of Outline"):
        mixture().fit(engine, privacy=Gaussian(clip=1.5, multiplier=1.0))


def test_thousands_of_categories_are_refused():
    with pytest.raises(PrivacyError, match="needs at most 512, not 600: merge rare ones"):
        mixture().fit(np.ones((3, 600), dtype=int), privacy=Gaussian(clip=1.5, multiplier=1.0))


def test_scales_that_name_nothing_sent_are_refused():
    with pytest.raises(PrivacyError, match="scales name"):
        mixture().fit(draw(30), privacy=Gaussian(clip=1.5, multiplier=1.0, scales={"tails": 2.0}))


def test_scales_of_the_caller_override():
    free = {"privacy": Gaussian(clip=1.5, multiplier=1.0, noise_seed=1)}
    scaled = {"privacy": Gaussian(clip=1.5, multiplier=1.0, noise_seed=1, scales={"size": 0.2, "sizes": 2.0})}
    one, two = (mixture().fit(draw(50), **how) for how in (free, scaled))
    assert not np.array_equal(one.size_laws_.probabilities, two.size_laws_.probabilities)


def test_a_clip_may_follow_the_clients():
    fit = mixture().fit(draw(50), privacy=Gaussian(clip=AdaptiveClip(1.5), multiplier=1.0))
    kinds = [line["mechanism"] for line in releases(fit.ledger_)]
    assert kinds.count("sum+clip") == 3  # it follows in the rounds of scores; the others have a bound
    assert np.isfinite(fit.concentrations_).all()


# -- the rest of an estimator ------------------------------------------------------------------------------------------


def test_a_private_fit_goes_on_from_last_months(tmp_path):
    counts = draw(300)
    old = mixture().fit(counts, privacy=Gaussian(clip=1.5, multiplier=0.1, noise_seed=0))
    ledger = Ledger()
    new = mixture(rounds=2, warm_start=old)
    new.fit(counts, privacy=Gaussian(clip=1.5, multiplier=0.1, noise_seed=1), ledger=ledger)
    assert len(releases(ledger)) == 3 == new.n_releases()
    np.testing.assert_allclose(new.weights_, old.weights_, atol=0.1)


def test_a_private_population_is_saved_and_read_back(tmp_path):
    fit = mixture().fit(draw(60), privacy=Gaussian(clip=1.5, multiplier=1.0))
    fit.save(tmp_path / "population.json")
    assert "NaN" not in (tmp_path / "population.json").read_text()
    back = MixtureOfDirichletMultinomials.load(tmp_path / "population.json")
    assert math.isnan(back.log_likelihood_)
    np.testing.assert_array_equal(back.concentrations_, fit.concentrations_)


def test_rows_are_shortened_and_never_lengthened():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(shortened(rows, 1.0), [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])


def test_by_default_a_private_fit_has_one_start_and_says_so():
    fed = Federation({"y": np.random.default_rng(0).integers(0, 3, 400)}, np.arange(0, 401, 10), names={"y": "abc"})
    points = Federation({"x": np.random.default_rng(1).normal(size=(400, 2))}, np.arange(0, 401, 10))
    privacy = Gaussian(clip=5.0, multiplier=1.0)
    gaussian = {"bound": 3.0, "weighting": "clients", "rounds": 2}
    for model, several, data in (
        (MixtureOfDirichletMultinomials(2, rounds=2), MixtureOfDirichletMultinomials(2, rounds=2, n_init=4), fed),
        (GaussianMixture(2, **gaussian), GaussianMixture(2, n_init=4, **gaussian), points),
        (FederatedKMeans(2, rounds=2, bound=3.0), FederatedKMeans(2, rounds=2, bound=3.0, n_init=4), points),
    ):
        model.fit(data, privacy=privacy, ledger=Ledger())
        assert model.get_params()["n_init"] is None
        assert model.history_.notes == [
            "n_init=1: under privacy one start runs by default, since comparing several costs a release"
        ]
        assert model.fit(data).history_.notes == []
        with pytest.raises(PrivacyError, match=r"starts .*compared by measuring them: give measure_privacy"):
            several.fit(data, privacy=privacy)
    with pytest.raises(DataError, match="n_init must be a whole number of at least 1, not 0"):
        FederatedKMeans(2, n_init=0).fit(points)
