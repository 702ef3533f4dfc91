"""The sketch paper in small: what its figures claim, with its errors mended."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from fedscape import DistributionSketch, Federation, Key, datasets
from fedscape.datasets.generators import gaussian_pair, sketch_uneven
from fedscape.papers import query_bound, query_rows
from fedscape.personal.cold_start import ColdStart
from fedscape.sketches import NearTheWhole, distance, heterogeneity, normalise, pairwise, query

WRITERS = datasets.load("femnist-mini")


def test_the_distance_follows_the_total_variation_distance_of_gaussians():
    apart, truths = [], []
    for i, wanted in enumerate(np.linspace(0.0, 0.95, 25)):
        fed, truth = gaussian_pair(1000, tvd=float(wanted), seed=i)
        s = DistributionSketch(200, bits=4, centre=fed["x"].mean(axis=0)).transform(fed)
        apart.append(float(distance(s[0], s[1], sizes=(1000, 1000), squared=True)))
        truths.append(float(truth["tvd"]))
    assert spearmanr(apart, truths).statistic > 0.95


def groups(size_b):
    """Five clients of uneven classes, then five drawn alike (Figure 1), of handwritten characters."""
    rng = np.random.default_rng(0)
    y, rows = WRITERS["y"], []
    for _ in range(5):
        wanted = rng.multinomial(600, rng.dirichlet(np.full(62, 0.05)))
        rows.append(np.concatenate([rng.choice(np.flatnonzero(y == c), k) for c, k in enumerate(wanted) if k]))
    rows += [rng.choice(len(y), size_b, replace=False) for _ in range(5)]
    offsets = np.concatenate(([0], np.cumsum([len(r) for r in rows])))
    return Federation({"x": WRITERS["x"][np.concatenate(rows)]}, offsets)


def within(d, part):
    return d[part, part][~np.eye(5, dtype=bool)].mean()


def test_uneven_clients_are_farther_apart_than_even_ones():
    fed = groups(600)
    d = pairwise(DistributionSketch(100, centre="mean").fit(fed).transform(fed))
    a, b = slice(0, 5), slice(5, 10)
    assert within(d, b) < d[a, b].mean() < within(d, a)


def test_small_even_clients_look_uneven_until_the_distance_is_debiased():
    fed = groups(30)
    s = DistributionSketch(100, centre="mean").fit(fed).transform(fed)
    a, b = slice(0, 5), slice(5, 10)
    raw, fair = pairwise(s), pairwise(s, sizes=fed.sizes)
    assert within(raw, b) > 0.8 * within(raw, a)
    assert within(fair, b) < 0.5 * within(fair, a)


def test_writers_differ_and_shuffled_writers_do_not():
    sketch = DistributionSketch(80, centre="mean").fit(WRITERS)
    found = heterogeneity(sketch.transform(WRITERS), WRITERS.sizes)
    mixed = WRITERS.with_column("x", WRITERS["x"][np.random.default_rng(1).permutation(WRITERS.n_rows)])
    none = heterogeneity(sketch.transform(mixed), WRITERS.sizes)
    assert found.low > 0.005
    assert abs(none.value) < 0.003
    assert abs(none.distance / none.iid - 1) < 0.1


def test_the_printed_median_is_biased():
    rng = np.random.default_rng(3)
    x, q = rng.normal(0.5, 1.0, (500, 8)), rng.normal(0.5, 1.0, (10, 8))
    model = DistributionSketch(3000, bits=4)
    s = normalise(model.count(x))
    truth = np.array([model.collision(np.tile(row, (500, 1)), x).mean() for row in q])
    values = s[np.arange(3000), model.codes(q)]
    assert (np.median(values, axis=1) - truth).mean() < -0.1 * truth.mean()
    assert abs((values.mean(axis=1) - truth).mean()) < 0.03 * truth.mean()


def deviations(n_rows: int, n: int, scale: float, draws: int = 40) -> np.ndarray:
    """|S(x) - kernel density| at 20 points, for as many sketches; Laplace noise of this scale on the counts."""
    rng = np.random.default_rng(0)
    x, at = rng.normal(size=(n, 4)), rng.normal(size=(20, 4))
    off = []
    for seed in range(draws):
        model = DistributionSketch(n_rows, bits=2, seed=seed)
        if not off:
            truth = np.array([model.collision(np.tile(row, (n, 1)), x).mean() for row in at])
        counts = model.count(x) + (rng.laplace(0, scale, (n_rows, 4)) if scale else 0.0)
        off.append(np.abs(query(model, counts / n, at) - truth))
    return np.concatenate(off)


def test_theorem_3_3s_inequality_holds_and_its_error_falls_like_one_over_root_r():
    few, many = deviations(16, 400, 0.0), deviations(256, 400, 0.0)
    for off, n_rows in ((few, 16), (many, 256)):
        assert (off > query_bound(n_rows, delta=0.1)).mean() < 0.1
    assert few.std() / many.std() == pytest.approx(4, rel=0.3)


def test_theorem_3_4s_inequality_holds_and_the_best_number_of_rows_is_between_too_few_and_too_many():
    n, epsilon = 400, 0.2
    best = query_rows(n, epsilon=epsilon)
    error = {r: deviations(r, n, r / epsilon) for r in (4, best, 16 * best)}
    for r, off in error.items():
        assert (off > query_bound(r, n_rows=n, epsilon=epsilon, delta=0.1)).mean() < 0.1
    assert query_bound(best, n_rows=n, epsilon=epsilon, delta=0.1) < min(
        query_bound(r, n_rows=n, epsilon=epsilon, delta=0.1) for r in (best // 4, 4 * best)
    )
    assert error[best].mean() < 0.6 * error[16 * best].mean()
    ratio = [query_bound(query_rows(1e6, epsilon=e), n_rows=1e6, epsilon=e, delta=0.1) for e in (0.01, 0.04)]
    assert ratio[0] / ratio[1] == pytest.approx(2, rel=0.01)  # epsilon^(-1/2)


def two_classes(seed: int) -> tuple[Federation, np.ndarray]:
    """80 clients of two of ten classes and floor(lognormal(0, 2)) + 20 rows; client i + 40 has the classes of i."""
    rng = np.random.default_rng(seed)
    centres = 0.8 * rng.normal(size=(10, 16))
    mine = np.tile(np.array([rng.choice(10, 2, replace=False) for _ in range(40)]), (2, 1))
    sizes = np.floor(rng.lognormal(0.0, 2.0, 80)).astype(int) + 20
    rows = [centres[rng.choice(mine[i], n)] + rng.normal(size=(n, 16)) for i, n in enumerate(sizes)]
    return Federation({"x": np.concatenate(rows)}, np.concatenate(([0], np.cumsum(sizes)))), np.sort(mine, axis=1)


def test_a_new_client_finds_one_of_its_classes_by_the_debiased_distance_and_a_large_one_by_the_printed():
    """Table 1's neighbour without its models: who is nearest."""
    right = {}
    for debias in (False, True):
        hits = []
        for seed in range(3):
            fed, classes = two_classes(seed)
            warm, cold = fed.take(slice(0, 40)), fed.take(slice(40, 80))
            sketch = DistributionSketch(100, bits=6, centre="mean", seed=1).fit(warm)
            nearest = ColdStart(sketch, alpha=0.0, debias=debias).fit(warm).match(cold).index
            hits.append((classes[nearest] == classes[40:]).all(axis=1).mean())
        right[debias] = np.mean(hits)
    assert right[True] > 0.85
    assert right[False] < right[True] - 0.15


def test_algorithm_3_draws_clients_near_the_whole_more_often_the_more_the_smaller_the_unit_of_the_distance():
    fed = groups(400)
    sketch = DistributionSketch(100, centre="mean").fit(fed)
    apart = distance(sketch.transform(fed), sketch.total_)
    even = {}
    for name, scale in (("norm of the sketch", 1.0), ("mean norm of a row", 1.0 / np.sqrt(100))):
        near = NearTheWhole(apart * scale, size=3, active=9, scale=1.0)
        drawn = np.concatenate([near.draw(fed, Key(0, t)) for t in range(400)])
        even[name] = (drawn >= 5).mean()  # the five clients drawn alike
    assert 0.5 < even["norm of the sketch"] < even["mean norm of a row"]


def test_figure_5s_clients_look_far_only_because_they_are_small():
    x = np.random.default_rng(0).normal(size=(9000, 8))
    rows = sketch_uneven(len(x), 60, least=20, most=200, seed=0)
    sizes = np.array([len(r) for r in rows])
    fed = Federation({"x": x[np.concatenate(rows)]}, np.append(0, np.cumsum(sizes)))
    model = DistributionSketch(200, bits=4, seed=1).fit(fed, progress=False)
    sketches = model.transform(fed)
    assert spearmanr(distance(sketches, model.total_), sizes).statistic < -0.95
    assert abs(spearmanr(distance(sketches, model.total_, sizes=(sizes, sizes.sum())), sizes).statistic) < 0.5
