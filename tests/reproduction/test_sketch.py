"""The sketch paper in small: what its figures claim, with its errors mended."""

from __future__ import annotations

import numpy as np
from scipy.stats import spearmanr

from fedscape import DistributionSketch, Federation, datasets
from fedscape.datasets.generators import gaussian_pair
from fedscape.sketches import distance, heterogeneity, normalise, pairwise

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
