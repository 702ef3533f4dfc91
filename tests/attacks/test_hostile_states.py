"""A server may send any state: no state makes a row move the sums further than the bound that noise is made for."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, Federation, Key, Quantiles
from fedscape.core.rounds import frozen
from fedscape.statistics.heavy_hitters import HeavyHitters
from fedscape.tabular.glm import GLM
from fedscape.tabular.growing import TreeRounds

FAR = [1e12, 1e15, 2.0**53 + 2, 1e300, 1.7e308]


def row_length(computation, state, row):
    """How far one row moves the sums of a client that has no other, in L1 and L2, and the bounds."""
    fed = Federation(row, [0, 1])
    sent, _ = computation.step(computation.prepare(frozen(state)), fed, Key(0, 0))
    flat = np.concatenate([np.ravel(values) for values in sent.values()]).astype(float)
    reached = np.abs(flat).sum(), np.sqrt((flat**2).sum())
    return reached, tuple(computation.row_bound(state, norm, fed) for norm in (1, 2))


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("family", ["gaussian", "logistic"])
def test_coefficients_however_far_do_not_lengthen_a_row(family, far):
    """The working response is weight x predictor: beyond 1e12 a slope that is not quite 0 made it any length."""
    glm = GLM(family, ranges={"x": (-1.0, 1.0), "y": (0.0, 1.0)})
    for x in ([1.0, 1.0], [1.0, -1.0], [-1.0, -1.0], [0.3, 1.0]):
        for y in (0.0, 1.0):
            for signs in ((1, 1, 1), (1, -1, 1), (-1, -1, 1), (0, 1, 0)):
                state = {**glm.start(0), "coefficients": far * np.array(signs)}
                with np.errstate(over="ignore", invalid="ignore"):
                    reached, bounds = row_length(glm, state, {"x": [x], "y": [y]})
                for length, bound in zip(reached, bounds, strict=True):
                    assert length <= bound * (1 + 1e-9), (x, y, signs)


def forest():
    computation, fed = TreeRounds.examples()[2]  # softmax: three trees at once
    return computation, fed, computation.start(0)


def test_trees_cannot_be_sent_to_one_slot():
    """Three trees in one histogram add up what the bound takes as apart."""
    computation, fed, state = forest()
    slots = state["slots"].copy()
    slots[:, 0] = 0
    with pytest.raises(DataError, match="cannot have"):
        computation.step(frozen({**state, "slots": slots}), fed, Key(0, 0))


@pytest.mark.parametrize("name", ["feature", "left", "value", "slots"])
def test_a_forest_of_another_shape_is_not_followed_beyond_its_end(name):
    """Compiled loops check no index: a short array would have them read what lies behind it."""
    computation, fed, state = forest()
    for cut in (state[name][..., :1], state[name][:1]):
        with pytest.raises(DataError, match="cannot have"):
            computation.step(frozen({**state, name: cut}), fed, Key(0, 0))


def test_cuts_of_fewer_features_are_refused():
    quantiles, fed = Quantiles([0.5], ranges=(0.0, 1.0), cells=4), Federation({"x": np.ones((2, 3))}, [0, 2])
    state = {"low": np.zeros((1, 1)), "high": np.ones((1, 1)), "n_rows": np.ones(1)}
    with pytest.raises(DataError, match="3 features a row, the state has 1"):
        quantiles.step(frozen(state), fed, Key(0, 0))


def test_a_text_that_is_no_unicode_does_not_take_the_other_rows_with_it():
    """Half of a surrogate pair cannot be encoded: the step failed, and with it all rows of the client."""
    hitters = HeavyHitters(1, most=None, length=4)
    sums = []
    for texts in (["flu"], ["flu", "\ud800"]):
        fed = Federation.from_arrays({"y": texts}, clients=[0] * len(texts))
        sums.append(hitters.step(hitters.start(0), fed, Key(0, 0))[0]["clients_with"])
    assert np.abs(sums[1] - sums[0]).sum() <= hitters.row_bound({}, 1)
