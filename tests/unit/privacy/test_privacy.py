from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscape import (
    All,
    Computation,
    FederatedKMeans,
    Federation,
    FixedSize,
    Gaussian,
    Histogram,
    Laplace,
    Ledger,
    Local,
    Moments,
    Poisson,
    PrivacyError,
    rounds,
)
from fedscape.core.sampling import Side
from fedscape.privacy.accounting import calibrate
from fedscape.privacy.mechanisms import AdaptiveClip
from fedscape.privacy.release import Release
from fedscape.sketches.selection import KeyedCoin


def people(n: int = 200, categories: int = 5, rows: int = 8, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, rows, n))))
    return Federation({"y": rng.integers(0, categories, offsets[-1]), "x": rng.normal(size=(offsets[-1], 2))}, offsets)


class Fixed(Computation):
    """Sends given rows, and remembers all totals."""

    def __init__(self, rows):
        self.rows = rows
        self.seen = []

    def start(self, seed):
        return {"t": np.zeros(())}

    def step(self, state, clients, key):
        return {name: values[clients.ids] for name, values in self.rows.items()}, {}

    def update(self, state, total, key):
        self.seen.append(total)
        return {"t": state["t"] + 1}

    def measure(self, state, clients):
        return {"size": clients.ids * 1.0}


def totals(rows, privacy, *, n_rounds=1, n=None, **how):
    n = n or len(next(iter(rows.values())))
    computation = Fixed(rows)
    for _ in rounds(computation, Federation({}, [0] * (n + 1)), n_rounds=n_rounds, privacy=privacy, **how):
        pass
    return computation.seen


@settings(max_examples=150, deadline=None)
@given(
    st.floats(1e-3, 1e3),
    st.floats(0.1, 50),
    st.integers(0, 2**31),
    st.sampled_from(["gaussian", "laplace"]),
    st.booleans(),
)
def test_no_client_contributes_more_than_the_clip(clip, noise, seed, kind, scaled):
    rng = np.random.default_rng(seed)
    sent = {
        "a": rng.normal(size=(6, 3)) * 10 ** rng.uniform(-3, 4, (6, 1)),
        "n": rng.integers(-50, 1000, (6, 2)),
        "f": rng.normal(size=6).astype(np.float32),
    }
    scales = {"a": 3.0, "n": 0.5} if scaled else {}
    if kind == "gaussian":
        privacy, order = Gaussian(clip=clip, multiplier=noise, scales=scales), 2
    else:
        privacy, order = Laplace(clip=clip, epsilon=1 / noise, scales=scales), 1
    release = Release(privacy, clip, b"k", True, 1)
    cells = release.on_clients({k: v.copy() for k, v in sent.items()}, None)
    parts = [cells[n] * release._grids[n] / scales.get(n, 1.0) for n in sent]
    lengths = np.linalg.norm(np.concatenate([p.reshape(6, -1) for p in parts], axis=1), ord=order, axis=1)
    assert (lengths <= clip).all()
    raw = np.concatenate([(sent[n] / scales.get(n, 1.0)).reshape(6, -1) for n in sent], axis=1)
    inside = np.linalg.norm(raw, ord=order, axis=1) <= clip
    noise_size = privacy.spread() * release.sensitivity
    for n in ("a", "f"):
        fine = max(1e-9 * noise_size, 1e-9 * clip)  # no finer than a clip has steps
        close = np.abs(cells[n] * release._grids[n] - sent[n]) <= fine * scales.get(n, 1.0)
        assert close[inside].all()
    if release._grids["n"] == 1.0:
        assert (cells["n"][inside] == sent["n"][inside]).all()


@pytest.mark.parametrize("place", ["central", "distributed", "local"])
def test_noise_has_the_promised_size_and_no_bias(place):
    rows = {"a": np.zeros((4, 500)), "n": np.zeros((4, 500), dtype=np.int64)}
    privacy = Gaussian(clip=2.0, multiplier=3.0, place=place, scales={"n": 5.0})
    fed = Federation({}, [0] * 5)
    computation = Fixed(rows)
    for _ in rounds(computation, Local(fed, min_clients=2), n_rounds=20, privacy=privacy, sampler=FixedSize(4)):
        pass
    number = {"central": 1, "local": 4, "distributed": 4 / 2}[place]  # of independent noises in the sum
    for name, scale in (("a", 1.0), ("n", 5.0)):
        draws = np.concatenate([t[name] for t in computation.seen])
        sigma = 3.0 * 2.0 * scale * np.sqrt(number)
        assert abs(draws.mean()) < 5 * sigma / np.sqrt(draws.size)
        assert abs(draws.var() / sigma**2 - 1) < 5 * np.sqrt(2 / draws.size)


def test_laplace_noise_has_the_promised_size():
    draws = np.concatenate(
        [t["a"] for t in totals({"a": np.zeros((4, 500))}, Laplace(clip=2.0, epsilon=0.5), n_rounds=20)]
    )
    scale = 2.0 / (1 - 0.1) / 0.5  # a tenth of the sensitivity is the number of clients'
    assert abs(np.abs(draws).mean() / scale - 1) < 5 / np.sqrt(draws.size)


def test_counts_of_rows_lie_on_a_lattice_that_is_fine_beside_the_noise():
    seen = Histogram(5).fit(people(), privacy=Gaussian(clip=1.0, multiplier=9.0, unit="row")).counts_ * 2**13
    assert (seen == np.round(seen)).all()
    assert (seen % 64).any()


def test_counts_that_are_clipped_are_not_cut_to_zero():
    rows = {"n": np.full((400, 25), 7, dtype=np.int64)}  # clipped to a fifth of the clip each, below one
    seen = totals(rows, Gaussian(clip=2.0, multiplier=3.0))[0]["n"]
    error = 3.0 * 2.0 / np.sqrt(0.9) / np.sqrt(25)
    assert abs(seen.mean() - 400 * 2.0 / 5) < 5 * error


def test_the_number_of_clients_is_noisy_unless_it_is_public():
    rows = {"a": np.zeros((50, 1))}
    secret = [t["clients"] for t in totals(rows, Gaussian(clip=1.0, multiplier=1.0), n_rounds=200)]
    assert abs(np.mean(secret) - 50) < 5 * np.sqrt(10 / 200)
    assert abs(np.var(secret) / 10 - 1) < 5 * np.sqrt(2 / 200)
    public = [t["clients"] for t in totals(rows, Gaussian(clip=1.0, multiplier=1.0), sampler=FixedSize(9), n_rounds=3)]
    assert public == [9.0] * 3


def test_sensitivity_covers_arrays_and_count_together():
    for privacy, order in ((Gaussian(clip=2.0, multiplier=1.5), 2), (Laplace(clip=2.0, epsilon=0.7), 1)):
        release = Release(privacy, 2.0, b"k", True, 1)
        noise = privacy.spread() * release.sensitivity
        count_noise = privacy.spread() / privacy.count_share ** (1 / order)
        moved = np.array([2.0 / noise, 1.0 / count_noise])  # each in units of its own noise
        assert np.linalg.norm(moved, ord=order) <= 1 / privacy.spread() * (1 + 1e-12)


def test_the_same_run_repeats_its_noise_only_with_a_noise_seed():
    rows = {"a": np.zeros((4, 30))}
    first, second = (totals(rows, Gaussian(clip=1.0, multiplier=1.0))[0]["a"] for _ in range(2))
    assert (first != second).any()
    first, second = (totals(rows, Gaussian(clip=1.0, multiplier=1.0, noise_seed=1))[0]["a"] for _ in range(2))
    assert (first == second).all()


def test_an_attacker_with_the_seed_cannot_tell_who_was_there_but_with_the_noise_seed_he_can():
    """Membership: the attacker knows everything but one client and the secret, and subtracts the noise he can make."""
    fed = people()
    without = fed.take(slice(1, None))

    def guess(noise_seed):
        privacy = Gaussian(clip=10.0, multiplier=1.0, noise_seed=noise_seed)
        real = next(rounds(Histogram(5), fed, n_rounds=1, seed=3, privacy=privacy, sampler=FixedSize(len(fed))))
        again = next(rounds(Histogram(5), fed, n_rounds=1, seed=3, privacy=privacy, sampler=FixedSize(len(fed))))
        noise = again.state["counts"] - Histogram(5).fit(fed).counts_
        return real.state["counts"] - noise - Histogram(5).fit(without).counts_

    own = fed.take([0]).counts("y", 5)[0]
    assert guess(noise_seed=7) == pytest.approx(own)
    assert not np.allclose(guess(noise_seed=None), own)


def test_noise_seed_marks_the_ledger_not_private():
    for noise_seed, private in ((None, True), (1, False)):
        ledger = Ledger()
        Histogram(5).fit(people(), privacy=Gaussian(clip=1.0, multiplier=1.0, noise_seed=noise_seed), ledger=ledger)
        assert ledger.private is private


def test_who_takes_part_cannot_be_foretold_from_the_seed():
    fed = people(400)
    drawn = []

    class Who(Fixed):
        def step(self, state, clients, key):
            drawn.append(set(clients.ids.tolist()))
            return {"a": np.zeros(len(clients))}, {}

    for _ in range(2):
        next(rounds(Who({}), fed, n_rounds=1, seed=5, sampler=Poisson(0.5), privacy=Gaussian(clip=1.0, multiplier=1.0)))
    assert drawn[0] != drawn[1]


def test_a_private_run_resumes_with_the_same_noise_and_is_not_counted_twice(tmp_path):
    fed, path = people(), tmp_path / "run"
    privacy = Gaussian(clip=3.0, multiplier=2.0)
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=50.0, delta=1e-5)
    how = {"n_rounds": 5, "privacy": privacy, "sampler": Poisson(0.4), "ledger": ledger}
    states = []
    for r in rounds(FederatedKMeans(2, init=[[[0, 0], [1, 1.0]]]), fed, **how):
        states.append(r.state["centres"].tobytes())
        if r.index == 2:
            r.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    spent, lines = ledger.spent(), len([e for e in ledger.entries() if e["kind"] == "release"])
    how["ledger"] = Ledger(tmp_path / "ledger.jsonl")
    again = [
        r.state["centres"].tobytes()
        for r in rounds(FederatedKMeans(2, init=[[[0, 0], [1, 1.0]]]), fed, resume=path, **how)
    ]
    assert again == states[3:]
    assert how["ledger"].spent() == spent
    assert len([e for e in how["ledger"].entries() if e["kind"] == "release"]) == lines == 5


def test_adaptive_clip_finds_the_quantile_and_is_part_of_each_entry():
    rng = np.random.default_rng(0)
    rows = {"a": rng.normal(size=(2000, 1)) * 10}
    ledger = Ledger()
    privacy = Gaussian(clip=AdaptiveClip(1.0, quantile=0.8, rate=0.3, multiplier=5.0), multiplier=1.0)
    run = rounds(Fixed(rows), Federation({}, [0] * 2001), n_rounds=80, privacy=privacy, ledger=ledger)
    clips = [run.guard.clip for _ in run]
    assert np.median(clips[-20:]) == pytest.approx(np.quantile(np.abs(rows["a"]), 0.8), rel=0.08)
    assert {e["mechanism"] for e in ledger.entries() if e["kind"] == "release"} == {"sum+clip"}
    assert ledger.spent()[("client", "add-remove", "central")] > 0


def test_metrics_are_measured_only_with_a_budget_of_their_own():
    fed = Federation({}, [0] * 101)
    privacy = Gaussian(clip=1.0, multiplier=1.0)
    assert next(rounds(Fixed({"a": np.zeros(100)}), fed, n_rounds=1, privacy=privacy)).metrics == {}
    ledger = Ledger()
    own = Gaussian(clip=100.0, multiplier=0.01)
    run = rounds(
        Fixed({"a": np.zeros(100)}), fed, n_rounds=3, privacy=privacy, measure_privacy=own, ledger=ledger, measure=2
    )
    metrics = [r.metrics for r in run]
    assert metrics[0]["size"] == pytest.approx(np.mean(np.arange(100)), abs=1)
    assert metrics[1] == {}
    kinds = [e["mechanism"] for e in ledger.entries() if e["kind"] == "release"]
    assert kinds == ["sum+metrics", "sum", "sum+metrics"]


def test_rows_are_protected_where_the_computation_bounds_them():
    fed = people()
    exact = Histogram(5).fit(fed).counts_
    private = Histogram(5).fit(fed, privacy=Laplace(clip=1.0, epsilon=1.0, unit="row"))
    assert np.abs(private.counts_ - exact).max() < 40
    assert set(private.ledger_.spent()) == {("row", "add-remove", "central")}
    assert private.ledger_.spent()[("row", "add-remove", "central")] == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(PrivacyError, match="does not bound what one row can change"):
        Moments().fit(fed, privacy=Gaussian(clip=1.0, multiplier=1.0, unit="row"))
    with pytest.raises(PrivacyError, match=r"one row can move the sums by .* more than clip=1: raise the clip"):
        Moments(bound=1.0).fit(fed, privacy=Gaussian(clip=1.0, multiplier=1.0, unit="row"))


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("sampler", [Poisson(0.2), FixedSize(10)])
def test_sampling_clients_does_not_amplify_for_rows(sampler, relation):
    for privacy in (
        Gaussian(clip=1.0, multiplier=1.0, unit="row", relation=relation),
        Laplace(clip=1.0, epsilon=1.0, unit="row", relation=relation),
    ):
        assert privacy.entries(sampler, 1000) == privacy.entries(All(), 1000)
    private = Histogram(5).fit(people(), sampler=sampler, privacy=Laplace(clip=1.0, epsilon=1.0, unit="row"))
    assert private.ledger_.spent() == {("row", "add-remove", "central"): pytest.approx(1.0, rel=1e-5)}


@pytest.mark.parametrize("norm", [1, 2])
def test_a_rows_bound_holds_for_the_worst_rows(norm):
    rng = np.random.default_rng(0)
    fed = people(30).with_column("x", rng.normal(size=(people(30).n_rows, 2)) * 5)
    state = Moments(bound=1.5).start(0)
    for r in rounds(Moments(bound=1.5), fed, n_rounds=1):
        state = r.state
    for computation, at in (
        (Moments(bound=1.5), state),
        (FederatedKMeans(2, bound=1.5, init=rng.normal(size=(3, 2, 2))), None),
        (Histogram(5), None),
    ):
        at = computation.start(0) if at is None else at
        allowed = computation.row_bound(at, norm)
        for x in rng.normal(size=(200, 2)) * 10:
            one = Federation({"x": x[None], "y": [1]}, [0, 1])
            sent, _ = computation.step(at, one, None)
            assert np.linalg.norm(np.concatenate([np.ravel(v) for v in sent.values()]), ord=norm) <= allowed * (
                1 + 1e-9
            )


def test_no_bound_in_the_first_norm_is_stated_before_the_number_of_features_is_known():
    assert Moments(bound=1.0).row_bound(Moments().start(0), 1) is None
    fed = people(30).with_column("x", np.ones((people(30).n_rows, 9)))
    with pytest.raises(PrivacyError, match="does not bound what one row can change"):
        Moments(bound=1.0).fit(fed, privacy=Laplace(clip=3.0, epsilon=1.0, unit="row"))


def test_private_statistics_are_useful_with_enough_clients():
    fed = people(5000, rows=12)
    exact = Histogram(5).fit(fed)
    private = Histogram(5).fit(fed, privacy=Gaussian(clip=8.0, multiplier=4.0))
    assert private.shares_ == pytest.approx(exact.shares_, abs=0.02)
    scales = {"n_rows": 10.0, "first": 10.0, "second": 20.0}
    moments = Moments().fit(fed, privacy=Gaussian(clip=2.0, multiplier=4.0, scales=scales))
    assert moments.mean_ == pytest.approx(Moments().fit(fed).mean_, abs=0.05)
    assert moments.covariance_ == pytest.approx(Moments().fit(fed).covariance_, abs=0.1)
    assert len(moments.history_) == 2


def test_private_k_means_counts_its_phases_and_will_not_compare_starts_for_free():
    fed = people(3000)
    privacy = Gaussian(clip=20.0, multiplier=0.5)
    model = FederatedKMeans(2, n_init=1, rounds=4, tol=0).fit(fed, privacy=privacy)
    kinds = [e["mechanism"] for e in model.ledger_.entries() if e["kind"] == "release"]
    assert kinds == ["sum"] * 6  # two rounds of Moments, four of k-means
    assert np.isnan(model.inertia_)
    with pytest.raises(PrivacyError, match="give measure_privacy, or use n_init=1"):
        FederatedKMeans(2, n_init=4).fit(fed, privacy=privacy)
    own = Gaussian(clip=200.0, multiplier=0.5)
    model = FederatedKMeans(2, n_init=3, rounds=4, tol=0).fit(fed, privacy=privacy, measure_privacy=own)
    assert model.inertia_ > 0


BAD = {
    "clip must be a positive number, not 0": lambda: Gaussian(clip=0, multiplier=1.0),
    "multiplier must be a positive number, not 0": lambda: Gaussian(clip=1.0, multiplier=0),
    "epsilon must be a positive number, not -1": lambda: Laplace(clip=1.0, epsilon=-1),
    "unit must be 'client' or 'row', not 'user'": lambda: Gaussian(clip=1.0, multiplier=1.0, unit="user"),
    "place must be one of": lambda: Gaussian(clip=1.0, multiplier=1.0, place="moon"),
    "scales go with unit='client'": lambda: Gaussian(clip=1.0, multiplier=1.0, unit="row", scales={"counts": 0.01}),
    "scales name ['zz'], but these phases send": lambda: FederatedKMeans(2, n_init=1).fit(
        people(), privacy=Gaussian(clip=1.0, multiplier=1.0, scales={"zz": 2.0})
    ),
    "scales['a'] must be a positive number, not 0": lambda: Gaussian(clip=1.0, multiplier=1.0, scales={"a": 0}),
    "cannot be made up of parts": lambda: Laplace(clip=1.0, epsilon=1.0, place="distributed"),
    "an adaptive clip needs": lambda: Gaussian(clip=AdaptiveClip(1.0), multiplier=1.0, unit="row"),
    "quantile must be between 0 and 1, not 1.0": lambda: AdaptiveClip(1.0, quantile=1.0),
    "go with privacy=": lambda: rounds(Histogram(2), people(), n_rounds=1, ledger=Ledger()),
    "scales name ['zz'], but what is sent is ['counts']": lambda: Histogram(5).fit(
        people(), privacy=Gaussian(clip=1.0, multiplier=1.0, scales={"zz": 2.0})
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_privacy_gets_one_clear_line(message):
    with pytest.raises(PrivacyError) as error:
        BAD[message]()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_revealed_rows_cannot_be_released_by_central_noise():
    class Reveal(Fixed):
        reveals = ("a",)

    with pytest.raises(PrivacyError, match="which only place='local' protects"):
        next(
            rounds(
                Reveal({"a": np.zeros(5)}),
                Federation({}, [0] * 6),
                n_rounds=1,
                allow=("a",),
                privacy=Gaussian(clip=1.0, multiplier=1.0),
            )
        )


def test_calibration_meets_the_budget_and_hardly_more():
    from fedscape.privacy.accounting import epsilon_of

    for sampler, n in ((All(), 0), (Poisson(0.1), 0), (FixedSize(100), 1000)):
        multiplier = calibrate(2.0, 1e-5, rounds=20, sampler=sampler, n_clients=n)
        entry = Gaussian(clip=1.0, multiplier=multiplier).entries(sampler, n)["sum"]
        assert 1.97 < epsilon_of([(entry, 20)], 1e-5) <= 2.0


class Wrapped:
    """A sampler of a user's own around another, which says nothing of it."""

    def __init__(self, sampler):
        self.sampler = sampler

    def draw(self, clients, key):
        return self.sampler.draw(clients, key)


WRAPPERS = {
    "part": lambda sampler: Side(sampler, 0.2, 0, inside=False),
    "own": Wrapped,
    "twice": lambda sampler: Wrapped(Side(sampler, 0.2, 0, inside=False)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapped_sampler_is_booked_no_better_than_the_one_inside(wrap):
    privacy = Gaussian(clip=1.0, multiplier=2.0)
    fixed = privacy.entries(wrap(FixedSize(3)), 9)["sum"]
    assert (fixed["relation"], fixed["multiplier"], fixed["sampling"]) == ("replace-one", 1.0, {"kind": "all"})
    poisson = privacy.entries(wrap(Poisson(0.1)), 9)["sum"]
    assert (poisson["relation"], poisson["multiplier"], poisson["sampling"]) == ("add-remove", 2.0, {"kind": "all"})
    reads = wrap(KeyedCoin(np.ones(5), total=5.0, size=2))
    with pytest.raises(PrivacyError, match="chooses clients by their data"):
        Histogram(2).fit(Federation({"y": [0] * 5}, np.arange(6)), sampler=reads, privacy=privacy)
