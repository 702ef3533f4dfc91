from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from fedscape import DataError, FederatedKMeans, Federation, FixedSize, Histogram, Local, Moments, NotFittedError
from fedscape.core.estimator import Fit
from fedscape.statistics.kmeans import add_by_label, add_by_label_twin


def shifted(seed: int = 0, n: int = 60, far: float = 0.0) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 30, n))))
    x = rng.normal(size=(offsets[-1], 3)) @ rng.normal(size=(3, 3)) + far
    return Federation({"x": x, "y": rng.integers(0, 5, offsets[-1])}, offsets)


def test_histogram_is_the_pooled_histogram():
    fed = shifted()
    model = Histogram(5).fit(fed)
    assert model.counts_.tolist() == np.bincount(fed["y"], minlength=5).tolist()
    assert model.shares_.sum() == pytest.approx(1)
    assert Histogram(5).fit(fed, column="y").history_["clients"] == [60]


def test_fit_reads_another_column_without_changing_the_hyper_parameters():
    fed = shifted().with_column("label", np.zeros(shifted().n_rows, dtype=int))
    model = Histogram(1)
    assert model.fit(fed, column="label").counts_.tolist() == [fed.n_rows]
    assert model.column == "y"


@pytest.mark.parametrize("far", [0.0, 1e6])
def test_moments_are_the_pooled_moments_however_far_from_zero(far):
    fed = shifted(far=far)
    model = Moments().fit(fed)
    assert model.mean_ == pytest.approx(fed["x"].mean(axis=0), rel=1e-12)
    assert model.covariance_ == pytest.approx(np.cov(fed["x"].T, bias=True), rel=1e-9, abs=1e-9)
    assert model.n_rows_ == fed.n_rows


def test_moments_of_one_number_and_of_images():
    fed = Federation({"x": [1.0, 2.0, 6.0], "image": np.arange(12).reshape(3, 2, 2)}, [0, 1, 3])
    assert Moments().fit(fed).mean_.tolist() == [3.0]
    assert Moments().fit(fed, column="image").mean_.tolist() == [4.0, 5.0, 6.0, 7.0]


def test_moments_under_a_bound_shorten_long_rows():
    fed = Federation({"x": [[3.0, 4.0], [0.3, 0.4]]}, [0, 2])
    assert Moments(bound=1.0).fit(fed).mean_ == pytest.approx([0.45, 0.6])


def test_k_means_equals_scikit_learn_from_the_same_start():
    rng = np.random.default_rng(0)
    fed = shifted(n=100)
    start = rng.normal(size=(4, 3))
    ours = FederatedKMeans(4, init=start[None], rounds=200, tol=0).fit(fed)
    theirs = KMeans(4, init=start, n_init=1, max_iter=200, tol=0).fit(fed["x"])
    order = np.lexsort(theirs.cluster_centers_.T[::-1])
    assert ours.centres_ == pytest.approx(theirs.cluster_centers_[order], rel=1e-9)
    assert ours.inertia_ * len(fed) == pytest.approx(theirs.inertia_)
    assert (theirs.cluster_centers_[order][ours.predict(fed["x"])] == theirs.cluster_centers_[theirs.labels_]).all()


def test_k_means_finds_far_groups_and_no_row_becomes_a_start():
    rng = np.random.default_rng(1)
    middle = np.array([[0.0, 0.0], [30.0, 0.0], [0.0, 30.0]])
    x = middle[rng.integers(0, 3, 900)] + rng.normal(size=(900, 2))
    fed = Federation({"x": x}, np.arange(0, 901, 9))
    model = FederatedKMeans(3, n_init=8, seed=3).fit(fed)
    assert model.centres_ == pytest.approx(middle[[0, 2, 1]], abs=0.3)
    starts = model._starts(Fit())["centres"].reshape(-1, 2)
    assert np.linalg.norm(starts[:, None] - x[None], axis=2).min() > 0


def test_k_means_with_cohorts_and_an_empty_centre():
    fed = shifted()
    model = FederatedKMeans(2, init=[[[0.0, 0.0, 0.0], [1e9, 1e9, 1e9]]], rounds=3)
    model.fit(Local(fed), sampler=FixedSize(20))
    assert model.centres_[1].tolist() == [1e9] * 3
    assert model.sizes_[1] == 0


def test_kernel_equals_its_twin():
    rng = np.random.default_rng(0)
    x, owner, labels = rng.normal(size=(50, 3)), np.sort(rng.integers(0, 4, 50)), rng.integers(0, 5, (50, 2))
    results = []
    for function in (add_by_label, add_by_label_twin):
        sums, sizes = np.zeros((4, 2, 5, 3)), np.zeros((4, 2, 5), dtype=np.int64)
        function(x, owner, labels, sums, sizes)
        results.append((sums, sizes))
    assert results[0][0] == pytest.approx(results[1][0])
    assert (results[0][1] == results[1][1]).all()


def test_bad_input_gets_one_clear_line():
    fed = Federation({"x": [1.0, np.nan], "y": [0, 9]}, [0, 1, 2], ids=["a", "b"])
    with pytest.raises(DataError, match=r"column 'x' holds nan in row 1: .* \(among the clients a to b"):
        Moments().fit(fed)
    with pytest.raises(DataError, match="raise n_categories to 10 or more"):
        Histogram(5).fit(fed)
    with pytest.raises(DataError, match="there is no column 'z'"):
        Histogram(5).fit(fed, column="z")
    with pytest.raises(DataError, match="n_categories must be at least 1"):
        Histogram(0).fit(fed)
    with pytest.raises(NotFittedError, match=r"call fit\(\)"):
        FederatedKMeans(2).predict([[1.0]])
    with pytest.raises(DataError, match="needs starts"):
        FederatedKMeans(2).start(0)
    with pytest.raises(DataError, match=r"init must be finite numbers \[starts, 2, d\]"):
        FederatedKMeans(2, init=[[1.0, 2.0]]).fit(fed.where(np.array([True, False])))


def test_one_client_and_one_row_are_enough():
    fed = Federation({"x": [[1.0, 2.0]], "y": [0]}, [0, 1])
    assert Histogram(1).fit(fed).counts_.tolist() == [1]
    assert Moments().fit(fed).covariance_.tolist() == [[0, 0], [0, 0]]
    assert FederatedKMeans(1).fit(fed).centres_.tolist() == [[1.0, 2.0]]
