"""The sketch paper's splits of one set of data into clients."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError
from fedscape.datasets.generators import sketch_by_class, sketch_dirichlet, sketch_dirichlet_uniform, sketch_uneven

Y = np.random.default_rng(0).integers(0, 10, 4000)


def shares(rows):
    return np.array([np.bincount(Y[r], minlength=10) / len(r) for r in rows])


@pytest.mark.parametrize("split", [sketch_dirichlet, sketch_dirichlet_uniform])
def test_every_row_goes_to_one_client_and_the_seed_decides(split):
    rows = split(Y, 20, seed=3)
    assert len(rows) == 20
    assert np.array_equal(np.sort(np.concatenate(rows)), np.arange(4000))
    assert all(np.array_equal(a, b) for a, b in zip(rows, split(Y, 20, seed=3), strict=True))
    assert not np.array_equal(rows[0], split(Y, 20, seed=4)[0])
    assert min(map(len, rows)) >= 20


def test_half_of_the_clients_are_like_the_whole():
    whole = np.bincount(Y, minlength=10) / 4000
    apart = np.abs(shares(sketch_dirichlet_uniform(Y, 20)) - whole).sum(axis=1) / 2
    assert apart[10:].max() < apart[:10].min()


def test_smaller_concentrations_are_more_uneven():
    spread = [np.abs(shares(sketch_dirichlet(Y, 10, concentration=a, least=0)) - 0.1).mean() for a in (0.1, 1.0, 100.0)]
    assert spread[0] > spread[1] > spread[2]


def test_clients_by_class_have_two_classes_and_twins_the_same():
    rows = sketch_by_class(Y, 40, twins=True)
    kinds = [set(Y[r]) for r in rows]
    assert all(len(k) == 2 for k in kinds)
    assert kinds[:20] == kinds[20:]
    assert min(map(len, rows)) >= 20
    assert all(len(np.unique(r)) == len(r) for r in rows)
    alone = [set(Y[r]) for r in sketch_by_class(Y, 40)]
    assert alone[:20] != alone[20:]


def test_uneven_clients_differ_by_size_alone_and_share_no_row():
    rows = sketch_uneven(4000, 40, least=10, most=150, seed=1)
    sizes = np.array([len(r) for r in rows])
    every = np.concatenate(rows)
    assert len(np.unique(every)) == len(every)
    assert sizes.std() > 20
    assert sizes.min() >= 10
    assert sizes.max() <= 150
    law = np.bincount(Y, minlength=10) / len(Y)
    counts = np.array([np.bincount(Y[r], minlength=10) for r in rows])
    chi = ((counts - sizes[:, None] * law) ** 2 / (sizes[:, None] * law)).sum()
    assert abs(chi - 9 * 40) < 5 * np.sqrt(2 * 9 * 40)  # labels as by chance, in 40 clients of 10 classes
    assert [len(r) for r in sketch_uneven(4000, 40, least=10, most=150, seed=2)] != sizes.tolist()


BAD = {
    "lower `most`": lambda: sketch_uneven(4000, 100),
    "least must be at most": lambda: sketch_uneven(4000, 4, least=5, most=4),
    "cannot give 300 clients 20 rows": lambda: sketch_dirichlet(Y, 300),
    "one whole number a row": lambda: sketch_dirichlet([0.5]),
    "lower `least`": lambda: sketch_dirichlet([0, 1] * 20, 20, least=2, concentration=0.01),
    "cannot be paired": lambda: sketch_by_class(Y, 5, twins=True),
    "concentration must be": lambda: sketch_dirichlet(Y, 5, concentration=0),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_with_a_reason(message):
    with pytest.raises(DataError, match=message):
        BAD[message]()
