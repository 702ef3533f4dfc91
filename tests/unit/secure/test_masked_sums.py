"""Masked sums of arrays: ranges that cannot overflow, engines that see totals, a second server that answers once."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import fedscape as fs
from fedscape.errors import DataError, PrivacyError
from fedscape.privacy.release import Release, noise_shares
from fedscape.secure.numbers import Form, Range
from fedscape.secure.two_servers import Round, SecondServer, mask

BOTH = [fs.SecureSum(colluders=0.0), fs.TwoServers()]


def population(n: int = 12, seed: int = 0) -> fs.Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 9, n))))
    return fs.Federation({"y": rng.integers(0, 3, offsets[-1]), "x": rng.normal(size=(offsets[-1], 2))}, offsets)


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parties", [3, 100, 1000])
def test_the_largest_allowed_numbers_of_all_parties_do_not_overflow(parties):
    how, bound = Range(parties, 1000.0), 2**62 // parties
    for sign in (1, -1):
        arrays = {"real": np.array([sign * 1000.0]), "whole": np.array([sign * bound])}
        words = how.encode(arrays)
        total = how.decode((words * np.uint64(parties)).astype(np.uint64), Form.of(arrays))
        assert total["whole"][0] == sign * bound * parties
        assert total["real"][0] == pytest.approx(sign * 1000.0 * parties, rel=1e-12)


def test_real_numbers_lose_half_a_cell_each_at_most():
    rng = np.random.default_rng(0)
    how, values = Range(50, 16.0), rng.uniform(-16, 16, (50, 200))
    words = sum(how.encode({"x": row}) for row in values)
    total = how.decode(words, Form.of({"x": values[0]}))["x"]
    assert np.abs(total - values.sum(axis=0)).max() <= 50 * how.grid("x") / 2 + 1e-12
    assert how.grid("x") <= 16.0 * 50 / 2**61


def test_what_is_beyond_its_bound_is_refused():
    how = Range(4, {"total/x": 8.0})
    with pytest.raises(
        DataError, match=r"'x' has 9, beyond the declared bound of 8: .*SecureSum\(bounds=\{'x': 16\}\)"
    ):
        how.encode({"total/x": np.array([-9.0])})
    for bad in (np.nan, np.inf):
        with pytest.raises(DataError, match=f"'x' has {bad}, beyond the declared bound of 8"):
            how.encode({"total/x": np.array([bad])})
    with pytest.raises(DataError, match="whole numbers beyond 1152921504606846976, the most that 4 parties can add"):
        how.encode({"n": np.array([2**61])})


def test_a_total_that_nobody_can_have_is_refused():
    how, form = Range(4, 8.0), Form.of({"n": np.zeros(2, dtype=np.int64)})
    for bad in (2**62 + 1, -(2**62) - 1):
        with pytest.raises(PrivacyError, match="a total beyond what 4 parties can have"):
            how.decode(np.array([0, bad], dtype=np.int64).view(np.uint64), form)
    how.decode(np.array([0, bad], dtype=np.int64).view(np.uint64), form, released=True)  # noise may be anything


def test_sums_of_a_release_are_cut_before_noise_and_never_after():
    """A server that says that 2^60 share the range would else cut the noise of each away, and see the sums."""
    values, how = {"n": np.full((2, 64), 2**40)}, Range(2**60, 1.0)
    for place in ("central", "distributed"):
        privacy = fs.Gaussian(clip=1.0, multiplier=100.0, place=place)
        release = Release(privacy, 1.0, bytes(32), False, 1, largest=how.most)
        cells = release.on_clients(values, fs.Federation({}, [0, 0, 0]))["n"]
        assert (cells == how.most).all() if place == "central" else cells.std() > 1000 * how.most
        assert np.array_equal(how.encode({"n": cells}, released=True).view(np.int64), cells.ravel())


def test_a_form_crosses_as_json_and_nothing_else_is_one():
    form = Form.of({"b": np.zeros((2, 3)), "a": np.zeros((), dtype=np.int64)})
    assert Form.read(json.loads(json.dumps(form.written()))) == form
    assert form.length == 7
    for bad in (None, [["a"]], [["a", [-1], "real"]], [["a", [1], "text"]], [["b", [1], "real"], ["a", [1], "real"]]):
        with pytest.raises(DataError, match="a malformed form of arrays"):
            Form.read(bad)


# -- engines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", BOTH, ids=["sum", "two"])
def test_counts_are_exact_and_real_sums_agree_to_the_grid(secure):
    fed = population()
    engine = fs.Local(fed, secure=secure)
    assert np.array_equal(fs.Histogram(3).fit(engine).counts_, fs.Histogram(3).fit(fed).counts_)
    masked, plain = fs.Moments(column="x").fit(engine), fs.Moments(column="x").fit(fed)
    assert np.abs(masked.covariance_ - plain.covariance_).max() < 1e-9


@pytest.mark.parametrize("secure", BOTH, ids=["sum", "two"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_private_release_has_the_bytes_of_the_plain_one(secure, threads):
    fed, privacy = population(), fs.Gaussian(clip=5.0, multiplier=1.0, noise_seed=1)
    plain = fs.Histogram(3).fit(fed, privacy=privacy).counts_
    masked = fs.Histogram(3).fit(fs.Local(fed, secure=secure, threads=threads), privacy=privacy).counts_
    assert masked.tobytes() == plain.tobytes()


def test_training_and_its_measures_are_masked():
    torch = pytest.importorskip("torch")
    from fedscape.learning import cross_entropy, models

    rng = np.random.default_rng(0)
    fed = fs.Federation(
        {"x": rng.normal(size=(60, 4)).astype(np.float32), "y": rng.integers(0, 3, 60)}, np.arange(0, 61, 6)
    )
    torch.manual_seed(0)
    step = fs.LocalSGD(models.linear(4, 3), cross_entropy, lr=0.1, epochs=1, batch_size=3)
    plain, masked = (list(fs.rounds(fs.FedAvg(step), e, n_rounds=2)) for e in (fed, fs.Local(fed, secure=BOTH[0])))
    for a, b in zip(plain, masked, strict=True):
        assert all(np.allclose(a.state[name], b.state[name], atol=1e-5) for name in a.state)
        assert a.metrics["loss"] == pytest.approx(b.metrics["loss"], abs=1e-5)
    assert masked[0].bytes_up > plain[0].bytes_up


def test_what_clients_keep_stays_with_them():
    from fedscape.statistics.kmeans import FederatedKMeans

    fed = population(20)
    plain, masked = (FederatedKMeans(2, column="x", seed=0).fit(e) for e in (fed, fs.Local(fed, secure=BOTH[0])))
    assert np.allclose(plain.centres_, masked.centres_, atol=1e-8)


class Shows(fs.Computation):
    reveals = ("own",)

    def start(self, seed):
        return {"sum": np.zeros(())}

    def step(self, state, clients, key):
        return {"own": clients.sizes, "sum": clients.sizes}, {}

    def update(self, state, total, key):
        return {"sum": total["sum"], "own": total["own"]}


def test_what_reveals_is_refused_unless_allowed_by_name():
    fed = population()
    with pytest.raises(PrivacyError, match=r"Shows lets the server see own client by client.*allow=\('own',\)"):
        next(fs.rounds(Shows(), fs.Local(fed, secure=fs.SecureSum()), n_rounds=1, allow=("own",)))
    allowed = fs.Local(fed, secure=fs.SecureSum(allow=("own",)))
    state = next(fs.rounds(Shows(), allowed, n_rounds=1, allow=("own",))).state
    assert np.array_equal(state["own"], fed.sizes)
    assert state["sum"] == fed.sizes.sum()


def test_cohorts_that_are_too_small_and_settings_that_cannot_be_are_refused():
    two = population(2)
    with pytest.raises(PrivacyError, match="not safe for a cohort of 2 "):
        fs.Histogram(3).fit(fs.Local(two, secure=fs.SecureSum()))
    with pytest.raises(PrivacyError, match="a cohort of 2, at least 3 parties are needed"):
        fs.Histogram(3).fit(fs.Local(two, secure=fs.TwoServers()))
    with pytest.raises(DataError, match="dropouts must be a share from 0 to below 1, not 1"):
        fs.SecureSum(dropouts=1)
    with pytest.raises(DataError, match="threshold must be a whole number of at least 1, not 0"):
        fs.SecureSum(threshold=0)
    with pytest.raises(DataError, match="bounds must be positive numbers, not -1"):
        fs.SecureSum(bounds=-1)
    with pytest.raises(DataError, match="least must be a whole number of at least 2, not 1"):
        fs.TwoServers(least=1)
    with pytest.raises(DataError, match="allow must be a list of names, not 'own'"):
        fs.SecureSum(allow="own")


# -- distributed noise -------------------------------------------------------------------------------------------------


class Zeros(fs.Computation):
    """Clients that send zeros: only noise is left."""

    def start(self, seed):
        return {"x": np.zeros(4000)}

    def step(self, state, clients, key):
        return {"x": np.zeros((len(clients), 4000))}, {}

    def update(self, state, total, key):
        return {"x": total["x"]}


@pytest.mark.parametrize("neighbours", [14, None])
def test_noise_is_whole_in_the_smallest_sum_that_can_be_opened(neighbours):
    """15 clients add a part each, of which `smallest` make up all of it: the variance says so."""
    secure = fs.SecureSum(neighbours=neighbours, dropouts=0.1, colluders=0.0)
    engine, smallest = fs.Local(fs.Federation({}, [0] * 16), secure=secure), secure.smallest(15)
    privacy = fs.Gaussian(clip=1.0, multiplier=8.0, place="distributed")
    ledger = fs.Ledger()
    x = next(fs.rounds(Zeros(), engine, n_rounds=1, privacy=privacy, ledger=ledger)).state["x"]
    wanted = 64.0 * 15 / smallest
    assert abs(np.mean(x**2) / wanted - 1) < 5 * np.sqrt(2 / 4000)
    notes = {line["entry"]["note"] for line in ledger.entries() if "entry" in line}
    assert len(notes) == 1
    assert "the noise is whole in the smallest sum that can be opened" in notes.pop()
    assert noise_shares(privacy, engine, 15) == (15, smallest)


def test_with_all_as_neighbours_the_noise_is_nearly_that_of_a_trusted_server():
    assert fs.SecureSum(neighbours=99, dropouts=0.1, colluders=0.05).smallest(100) == 75


# -- two servers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [3, 5, 8])
def test_any_drop_out_gives_the_plain_sum(there):
    rng = np.random.default_rng(there)
    words = rng.integers(0, 2**64, (8, 9), dtype=np.uint64)
    helper, round_ = SecondServer(), Round(b"run", 0, 9, parties=8, least=3)
    sent = [mask(row, helper.public, round_.context, os.urandom(32)) for row in words]
    some = rng.permutation(8)[:there]
    total = sum(sent[u][0] for u in some) - helper.sum_masks(round_, [sent[u][1] for u in some])
    assert np.array_equal(total, words[some].sum(axis=0, dtype=np.uint64))


def test_a_masked_vector_says_nothing_alone():
    helper, round_ = SecondServer(), Round(b"run", 0, 1, parties=3, least=3)
    zero = np.zeros(1, dtype=np.uint64)
    low = [int(mask(zero, helper.public, round_.context, bytes(32))[0][0]) % 16 for _ in range(800)]
    counts = np.bincount(low, minlength=16)
    assert ((counts - 50) ** 2 / 50).sum() < 15 + 5 * np.sqrt(30)


def test_colluders_do_not_count_as_parts_of_the_noise():
    assert fs.TwoServers(least=10, colluders=0.05).smallest(100) == 5
    with pytest.raises(PrivacyError, match=r"least=6 of 100 parties leaves 1 honest ones with colluders=0.05: raise"):
        fs.TwoServers(least=6, colluders=0.05).smallest(100)
    with pytest.raises(DataError, match="colluders must be a share from 0 to below 1, not 1"):
        fs.TwoServers(colluders=1)
