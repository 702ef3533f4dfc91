"""Sketches: exact sums, collision laws in closed form, densities, privacy."""

from __future__ import annotations

import numpy as np
import pytest

import fedscape as fs
from fedscape import (
    DataError,
    DistributionSketch,
    EngineError,
    Federation,
    Gaussian,
    Laplace,
    Ledger,
    Local,
    NotFittedError,
    PrivacyError,
)
from fedscape.errors import TooFewClients
from fedscape.sketches import choose_rows, noise_variance, query, tvd
from fedscape.sketches import kernels as _kernels
from fedscape.sketches.distances import sizes

RNG = np.random.default_rng(0)


def federation(n_clients=12, d=5, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 40, n_clients))))
    return Federation({"x": rng.normal(shift, 1.0, (offsets[-1], d))}, offsets)


# -- kernels and their twins -------------------------------------------------------------------------------------------


def test_kernels_equal_their_twins():
    products = RNG.normal(size=(7, 3 * 11)).astype(np.float32)
    one, two = np.zeros((2, 7, 11), dtype=np.uint16)
    _kernels.pack_signs(products, 7, one)
    _kernels.pack_signs_twin(products, 7, two)
    assert np.array_equal(one, two)
    shifts = RNG.random(33)
    one, two = np.zeros((2, 7, 33), dtype=np.uint16)
    _kernels.pack_buckets(products * 9, 7, shifts, one, 8)
    _kernels.pack_buckets_twin(products * 9, 7, shifts, two, 8)
    assert np.array_equal(one, two)
    owner = np.array([0, 0, 1, 2, 2, 2, 1])
    fast, slow = np.zeros((2, 3, 40, 8), dtype=np.int64)
    _kernels.count_codes(one, owner, 7, 4, fast)
    _kernels.count_codes_twin(one, owner, 7, 4, slow)
    assert np.array_equal(fast, slow)
    x = RNG.normal(size=(5, 13)).astype(np.float32)
    made = [RNG.choice([-1, 1], (3, 16)).astype(np.float32), RNG.permuted(np.tile(np.arange(16), (3, 1)), axis=1)]
    made.append(RNG.normal(size=(3, 16)).astype(np.float32))
    one, two = np.zeros((2, 5, 11), dtype=np.uint16)
    _kernels.hadamard_signs(x, *made, 4, one)
    _kernels.hadamard_signs_twin(x, *made, 4, two)
    assert np.array_equal(one, two)
    tokens, ends = RNG.integers(0, 50, 30).astype(np.uint64), np.array([0, 4, 4, 5, 30])
    salts = RNG.integers(0, 2**64, 9, dtype=np.uint64)
    one, two = np.zeros((2, 4, 9), dtype=np.uint16)
    _kernels.hash_sets(tokens, ends, salts, 6, one)
    _kernels.hash_sets_twin(tokens, ends, salts, 6, two)
    assert np.array_equal(one, two)


# -- sums --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["srp", "hadamard", "pstable"])
@pytest.mark.parametrize("d", [3, 784])
def test_a_sketch_is_the_same_to_the_bit_however_the_rows_are_cut(family, d):
    x = RNG.normal(size=(2500, d)).astype(np.float32)
    sketch = DistributionSketch(37, bits=5, family=family)
    whole = sketch.count(x)
    for cuts in ([1], [1, 2, 3], [1024], [1023, 1025], [17, 900, 2400]):
        assert np.array_equal(sum(sketch.count(part) for part in np.split(x, cuts)), whole)
    tall = DistributionSketch(1100, bits=4, family=family)
    assert np.array_equal(tall.count(x[:1]) + tall.count(x[1:]), tall.count(x))
    order = RNG.permutation(len(x))
    assert np.array_equal(sketch.count(x[order]), whole)
    assert (whole.sum(axis=1) == len(x)).all()


def test_the_sum_of_the_clients_is_the_sketch_of_all():
    fed = federation()
    sketch = DistributionSketch(20).fit(fed)
    assert np.array_equal(sketch.counts(fed).sum(axis=0), sketch.counts_)
    assert np.array_equal(sketch.counts(Local(fed), allow=("counts",)), sketch.counts(fed))
    assert np.array_equal(sketch.counts_, sketch.count(fed["x"]))
    assert sketch.n_rows_ == fed.n_rows
    assert np.allclose(sketch.total_, sketch.counts_ / fed.n_rows)
    assert np.array_equal(sizes(sketch.counts(fed)), fed.sizes)


def test_counts_follow_the_order_of_the_federation_not_of_the_ids():
    fed = Federation({"x": RNG.normal(size=(6, 3))}, [0, 1, 3, 6], ids=["c", "a", "b"])
    sketch = DistributionSketch(20)
    privacy = Laplace(clip=20.0, epsilon=1e9, unit="row", place="local")  # hardly any noise
    assert np.array_equal(sketch.counts(Local(fed), allow=("counts",)), sketch.counts(fed))
    with pytest.raises(EngineError, match="client by client: counts"):
        sketch.counts(Local(fed))
    assert np.allclose(sketch.counts(fed, privacy=privacy), sketch.counts(fed), atol=1e-3)


def test_default_rows_are_the_root_of_the_number_of_rows():
    fed = federation()
    assert DistributionSketch().fit(fed).total_.shape[0] == int(np.ceil(np.sqrt(fed.n_rows)))
    texts = Federation({"s": ["a", "b", "ab", "ba", "c"]}, [0, 2, 5])
    assert DistributionSketch(family="minhash", column="s").fit(texts).total_.shape[0] == 3


def test_centre_and_scale_are_found_by_sums_and_change_the_angles():
    fed = federation(shift=5.0)
    sketch = DistributionSketch(30, centre="mean", scale="deviation").fit(fed)
    by_hand = DistributionSketch(30, centre=fed["x"].mean(axis=0), scale=fed["x"].std(axis=0)).fit(fed)
    assert np.abs(sketch.counts_ - by_hand.counts_).sum() <= 4  # rounding of the mean can move a row over a border
    raw = DistributionSketch(30).fit(fed)
    assert raw.total_.max(axis=1).mean() > sketch.total_.max(axis=1).mean() + 0.2


def test_a_shared_embedding_comes_first():
    fed = federation()
    sketch = DistributionSketch(20, embed=np.abs).fit(fed)
    assert np.array_equal(sketch.counts_, DistributionSketch(20).count(np.abs(fed["x"])))


def test_large_offsets_are_centred_before_they_are_rounded():
    x = RNG.normal(size=(300, 4))
    far = DistributionSketch(50, centre=1e9).count(x + 1e9)
    near = DistributionSketch(50).count(x)
    assert np.abs(far - near).sum() <= 0.001 * near.sum()


def test_a_row_of_zeros_and_an_empty_client_have_a_defined_sketch():
    sketch = DistributionSketch(5, bits=2)
    assert sketch.count(np.zeros((3, 4)))[:, 0].tolist() == [3] * 5
    fed = Federation({"x": np.zeros((1, 4))}, [0, 0, 1])
    assert sketch.transform(fed)[0].sum() == 0
    assert sketch.transform(fed)[1].sum() == 5


# -- collision laws ----------------------------------------------------------------------------------------------------


def shared(sketch, x, y):
    return (sketch.codes(x) == sketch.codes(y)).mean(axis=1)


def within_five_errors(found, law, n):
    assert (np.abs(found - law) <= 5 * np.sqrt(np.maximum(law * (1 - law), 1 / n) / n)).all(), (found, law)


@pytest.mark.parametrize("bits", [1, 4, 6])
@pytest.mark.parametrize("family", ["srp", "hadamard"])
def test_signs_collide_as_the_angle_says(bits, family):
    sketch = DistributionSketch(4000, bits=bits, family=family, seed=3)
    angle = np.linspace(0, np.pi, 9)
    x, y = np.tile([2.0, 0.0, 0.0], (9, 1)), 0.3 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    assert np.allclose(sketch.collision(x, y), (1 - angle / np.pi) ** bits, atol=1e-6)
    within_five_errors(shared(sketch, x, y), (1 - angle / np.pi) ** bits, 4000)


@pytest.mark.parametrize("d", [3, 100, 784])
def test_structured_projections_keep_the_law_for_dense_and_sparse_rows(d):
    rng = np.random.default_rng(d)
    x, y = rng.normal(size=(2, 6, d))
    y[:3] = x[:3] + 0.5 * y[:3]
    x[5], y[5] = 0, 0
    x[5, 0] = y[5, [0, 1]] = 1.0  # one coordinate, and two
    found = np.mean(
        [shared(DistributionSketch(1000, bits=4, family="hadamard", seed=s), x, y) for s in range(8)], axis=0
    )
    within_five_errors(found, DistributionSketch(1000, bits=4, family="hadamard").collision(x, y), 8000)


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_buckets_collide_as_the_distance_says(bits):
    sketch = DistributionSketch(4000, bits=bits, family="pstable", width=2.0, seed=4)
    far = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 9.0])
    x, y = np.zeros((6, 3)), np.stack([far, 0 * far, 0 * far], axis=1)
    law = sketch.collision(x, y)
    within_five_errors(shared(sketch, x, y), law, 4000)
    if bits == 8:  # no wrap: the textbook law (Datar et al. 2004)
        from scipy.stats import norm

        c = far[1:] / 2.0
        book = 1 - 2 * norm.cdf(-1 / c) - 2 * c / np.sqrt(2 * np.pi) * (1 - np.exp(-1 / (2 * c**2)))
        assert np.allclose(law[1:], book, atol=1e-9)


@pytest.mark.parametrize("bits", [2, 10])
def test_minima_collide_as_the_overlap_says(bits):
    sketch = DistributionSketch(4000, bits=bits, family="minhash", seed=5)
    x = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [1, 1, 1, 1], [5, 6, -1, -1]])
    y = np.array([[4, 3, 2, 1], [3, 4, 5, 6], [2, 2, 2, 2], [5, -1, -1, -1]])
    jaccard = np.array([1, 1 / 3, 0, 1 / 2])
    law = jaccard + (1 - jaccard) / 2**bits
    assert np.allclose(sketch.collision(x, y), law)
    within_five_errors(shared(sketch, x, y), law, 4000)


def test_tokens_from_indicators_sequences_and_texts_agree():
    sets = np.array([[1, 2], [2, 0]])
    bits = np.zeros((2, 3), dtype=bool)
    bits[[0, 0, 1, 1], [1, 2, 0, 2]] = True
    sketch = DistributionSketch(50, family="minhash")
    assert np.array_equal(sketch.codes(sets), sketch.codes(bits))
    texts = Federation({"x": ["abc", "bca", "abd", ""]}, [0, 4])
    same = DistributionSketch(300, bits=8, family="minhash", shingle=1).codes(texts)
    assert np.array_equal(same[0], same[1])
    ordered = DistributionSketch(300, bits=8, family="minhash", shingle=2).codes(texts)
    assert not np.array_equal(ordered[0], ordered[1])
    assert np.abs((ordered[0] == ordered[2]).mean() - 1 / 3) < 0.15  # ab of {ab, bc, bd}


def test_texts_can_be_bags_of_words():
    texts = Federation({"x": ["to be or not", "not to be  or", "to be", "tobe ornot"]}, [0, 4])
    codes = DistributionSketch(2000, bits=10, family="minhash", shingle="words").codes(texts)
    assert np.array_equal(codes[0], codes[1])
    same = 1 / 2 + 1 / 2 / 1024  # {to, be} of {to, be, or, not}
    assert abs((codes[0] == codes[2]).mean() - same) < 5 * np.sqrt(same / 2 / 2000)
    assert (codes[0] == codes[3]).mean() < 0.02


def test_shingles_of_codes_are_windows():
    sketch = DistributionSketch(2000, bits=10, family="minhash", shingle=2)
    x, y = np.array([[1, 2, 3, -1]]), np.array([[3, 2, 1, 2]])  # {12, 23} and {32, 21, 12}
    assert np.isclose(sketch.collision(x, y)[0], 1 / 4 + 3 / 4 / 1024)
    short = np.array([[7, -1, -1, -1], [-1, -1, -1, -1]])
    assert (sketch.codes(short)[0] != sketch.codes(short)[1]).mean() > 0.9


# -- densities ---------------------------------------------------------------------------------------------------------


def test_the_mean_is_unbiased_and_the_median_is_not():
    rng = np.random.default_rng(7)
    x, q = rng.normal(0.4, 1.0, (400, 6)), rng.normal(0.8, 1.0, (5, 6))
    model = DistributionSketch(6000, bits=3, seed=11)
    s = model.count(x) / len(x)
    truth = np.array([model.collision(np.tile(row, (len(x), 1)), x).mean() for row in q])
    codes = model.codes(q)
    error = s[np.arange(6000), codes].std(axis=1) / np.sqrt(6000)
    assert (np.abs(query(model, s, q) - truth) < 5 * error).all()
    assert (np.abs(query(model, s, q, rule="median-of-means") - truth) < 6 * error).all()
    assert (query(model, s, q, rule="median") < truth - 5 * error).sum() >= 4


def test_the_witness_finds_the_distance_of_two_gaussians():
    fed, truth = fs.datasets.generators.gaussian_pair(8000, tvd=0.5, seed=1)
    x = fed["x"]
    model = DistributionSketch(500, bits=4, family="pstable", width=6.0)
    p, q = model.count(x[:4000]) / 4000, model.count(x[8000:12000]) / 4000
    found = tvd(model, p, q, points=(x[4000:8000], x[12000:]))
    assert abs(found.witness - float(truth["tvd"])) < 5 * found.witness_error
    assert 0 < found.plug_in < float(truth["tvd"])  # smooth densities: too small


# -- privacy -----------------------------------------------------------------------------------------------------------


def test_a_row_moves_the_counts_by_no_more_than_the_bound():
    x = RNG.normal(size=(50, 4))
    sketch = DistributionSketch(30)
    for norm in (1, 2):
        moved = np.linalg.norm((sketch.count(x) - sketch.count(x[1:])).ravel().astype(float), ord=norm)
        assert moved == pytest.approx(sketch.row_bound({}, norm))


def test_a_private_sketch_protects_its_rows_and_their_number():
    fed, ledger = federation(200, seed=3), Ledger()
    privacy = Laplace(clip=10.0, epsilon=1.0, unit="row", noise_seed=1)
    sketch = DistributionSketch(10, bits=3).fit(fed, privacy=privacy, ledger=ledger)
    assert ledger.spent() == {("row", "add-remove", "central"): pytest.approx(1.0, abs=1e-3)}
    exact = DistributionSketch(10, bits=3).fit(fed)
    noise = sketch.counts_ - exact.counts_
    assert sketch.noise_ == pytest.approx(noise_variance(privacy))
    assert noise.std() == pytest.approx(np.sqrt(sketch.noise_), rel=0.5)
    error = np.sqrt(80 * sketch.noise_) / 10
    assert 0 < abs(sketch.n_rows_ - fed.n_rows) < 5 * error


def test_replacing_a_row_costs_twice_as_much_and_is_named():
    fed, ledger = federation(), Ledger()
    privacy = Laplace(clip=10.0, epsilon=1.0, unit="row", relation="replace-one", noise_seed=1)
    DistributionSketch(10, bits=3).fit(fed, privacy=privacy, ledger=ledger)
    assert ledger.spent() == {("row", "replace-one", "central"): pytest.approx(2.0, abs=1e-3)}


@pytest.mark.parametrize(("relation", "spent"), [("add-remove", 1.0), ("replace-one", 2.0)])
def test_clients_protect_their_own_sketches_before_they_are_seen(relation, spent):
    fed, ledger = federation(300, seed=5), Ledger()
    privacy = Laplace(clip=5.0, epsilon=1.0, unit="row", place="local", relation=relation, noise_seed=2)
    sketch = DistributionSketch(5, bits=2)
    noisy, exact = sketch.counts(fed, privacy=privacy, ledger=ledger), sketch.counts(fed)
    assert ledger.spent() == {("row", relation, "local"): pytest.approx(spent, abs=1e-3)}
    noise = noisy - exact
    assert noise.std() == pytest.approx(np.sqrt(noise_variance(privacy)), rel=0.1)
    assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(noise.size)
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.8  # each client its own


def test_central_noise_does_not_protect_what_is_seen_client_by_client():
    with pytest.raises(PrivacyError, match="place='local'"):
        DistributionSketch(5).counts(federation(), privacy=Laplace(clip=5.0, epsilon=1.0, unit="row"))


@pytest.mark.parametrize("asked", [{"rows": None}, {"centre": "mean"}, {"scale": "deviation"}])
def test_what_a_fit_found_in_the_data_is_refused_under_privacy(asked):
    fed = federation()
    sketch = DistributionSketch(**{"rows": 5, **asked}).fit(fed)
    privacy = Laplace(clip=float(sketch.total_.shape[0]), epsilon=1.0, unit="row", place="local")
    for release in (sketch.counts, sketch.transform):
        with pytest.raises(PrivacyError, match="the data must not choose the sketch"):
            release(fed, privacy=privacy)


@pytest.mark.parametrize(
    "privacy",
    [
        Laplace(clip=50.0, epsilon=1.0, unit="row", place="local"),
        Laplace(clip=50.0, epsilon=400.0, unit="row"),  # the grid is an eighth
        Laplace(clip=1e5, epsilon=1.0, count_share=0.5),
        Gaussian(clip=1e4, multiplier=1.0, count_share=0.5),
        Gaussian(clip=1e4, multiplier=1.0, place="distributed", count_share=0.5),
        Gaussian(clip=1e4, multiplier=1.0, place="local"),
        Gaussian(clip=1e4, multiplier=1.0, scales={"counts": 3.0}),
    ],
)
def test_the_variance_of_the_noise_is_that_of_the_release(privacy):
    fed = federation()
    least = 3 if privacy.place == "distributed" else 1  # a secret number of clients is compared after its noise
    sketch = DistributionSketch(50).fit(Local(fed, min_clients=least), privacy=privacy)
    noise = sketch.counts_ - DistributionSketch(50).fit(fed).counts_
    fourth = 5 if isinstance(privacy, Laplace) else 2  # of the fourth moment, less one
    assert abs(noise.var() / sketch.noise_ - 1) < 5 * np.sqrt(fourth / noise.size)


def test_an_abandoned_round_is_no_sketch():
    engine = Local(federation(), min_clients=10_000)
    for work in (DistributionSketch(5), DistributionSketch(centre="mean")):
        with pytest.raises(TooFewClients, match="nothing was counted: lower min_clients"):
            work.fit(engine)
    with pytest.raises(TooFewClients, match="nothing was counted"):
        DistributionSketch(5).counts(engine, allow=("counts",))


def test_a_client_that_did_not_report_is_named_in_one_line():
    class Deaf(Local):
        def run(self, computation, state, cohort, key, **how):
            return super().run(computation, state, cohort[1:], key, **how)

    with pytest.raises(EngineError, match=r"^1 of 12 clients did not report, the first of them 0, .* ask") as error:
        DistributionSketch(5).counts(Deaf(federation()), allow=("counts",))
    assert "\n" not in str(error.value)


def test_large_sketches_are_counted_for_few_clients_at_once():
    from fedscape.sketches.distribution import ClientSketches

    small, large = DistributionSketch(1000), DistributionSketch(1000, bits=16)
    assert small.block_clients == 64
    assert large.block_clients * 1000 * 2**16 <= 2**26
    assert ClientSketches(large).block_clients == large.block_clients
    fed, wide = federation(), DistributionSketch(40, bits=16)
    assert wide.block_clients < 64
    assert np.array_equal(wide.counts(fed).sum(axis=2), np.repeat(fed.sizes[:, None], 40, axis=1))


def test_private_sketches_want_few_rows():
    assert choose_rows(500, epsilon=1.0) <= 20
    chosen = [choose_rows(n, epsilon=1.0) for n in (100, 1000, 10_000, 100_000)]
    assert chosen == sorted(chosen)
    assert choose_rows(1000, epsilon=1.0, relation="replace-one") < choose_rows(1000, epsilon=1.0)
    assert choose_rows(1e9, epsilon=1.0) == 1000


# -- refusals ----------------------------------------------------------------------------------------------------------

ONE = Federation({"x": np.ones((2, 3)), "y": [0, 1]}, [0, 2])
BAD = {
    "family must be one of srp, hadamard, minhash, pstable, not 'lsh'": lambda: DistributionSketch(3, family="lsh").fit(
        ONE
    ),
    "rows must be at least 1 and bits 1 to 16": lambda: DistributionSketch(0).fit(ONE),
    "bits=17": lambda: DistributionSketch(2, bits=17).fit(ONE),
    "width must be a positive number": lambda: DistributionSketch(2, family="pstable", width=0).fit(ONE),
    "holds NaN, infinity or more than 3e38 in row 1": lambda: DistributionSketch(2).count([[1.0], [np.nan]]),
    "in row 0": lambda: DistributionSketch(2).count([[1e39]]),
    "texts need family='minhash'": lambda: DistributionSketch(2).count(np.array([["2020"]], dtype="M8[Y]")),
    "compare numbers with family='srp'": lambda: DistributionSketch(2, family="minhash").fit(ONE),
    "centre must be one finite number or 3": lambda: DistributionSketch(2, centre=[1.0, 2.0]).fit(ONE),
    "scale must be one finite number above 0": lambda: DistributionSketch(2, scale=0.0).fit(ONE),
    "centre must be numbers or 'mean'": lambda: DistributionSketch(2, centre="median").fit(ONE),
    "shingle must be at least 1": lambda: DistributionSketch(2, family="minhash", shingle=0).count([[1]]),
    "or 'words' for texts, not word": lambda: DistributionSketch(2, family="minhash", shingle="word").count([[1]]),
    "no column 'z'": lambda: DistributionSketch(2).fit(ONE, column="z"),
    "rule must be one of": lambda: query(DistributionSketch(2), np.ones((2, 16)), [[1.0]], rule="mode"),
    "must be one client's": lambda: query(DistributionSketch(2), np.ones((1, 2, 16)), [[1.0]]),
    "relation must be 'add-remove' or 'replace-one'": lambda: choose_rows(5, epsilon=1, relation="swap"),
    "must be positive": lambda: choose_rows(0, epsilon=1),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_with_a_reason(message):
    with pytest.raises(DataError, match=message.replace("[", r"\[")):
        BAD[message]()


def test_a_missing_text_is_refused():
    fed = Federation({"s": np.array([0, -1])}, [0, 2], names={"s": ["a"]})
    with pytest.raises(DataError, match="-1 marks a missing text"):
        DistributionSketch(2, family="minhash", column="s").fit(fed)


def test_what_only_fit_can_know_is_asked_for():
    with pytest.raises(NotFittedError, match="call fit"):
        DistributionSketch().transform(ONE)
    privacy = Laplace(clip=4.0, epsilon=1.0, unit="row")
    with pytest.raises(PrivacyError, match="the data must not choose the sketch"):
        DistributionSketch().fit(ONE, privacy=privacy)
    with pytest.raises(PrivacyError, match="more than clip"):
        DistributionSketch(5).fit(ONE, privacy=privacy)
    with pytest.raises(PrivacyError, match="relation must be one of"):
        Laplace(clip=4.0, epsilon=1.0, relation="replace-one")


def test_the_study_measures_features_in_bounded_memory():
    from fedscape.studies.measure import sketched

    found = sketched(federation(30), "x")[0]
    assert found["low"] < 0 < found["high"]
    assert found["rows"] == int(np.ceil(np.sqrt(federation(30).n_rows)))
    many = Federation({"x": RNG.normal(size=(300_000, 2))}, np.arange(0, 300_001, 2))
    assert sketched(many.take(slice(0, 100_000)), "x")[0]["rows"] == 20
    assert sketched(Federation({"x": [[1.0], [2.0]]}, [0, 1, 2]), "x")[0] == {"clients": 0}
