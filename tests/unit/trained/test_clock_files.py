"""A private FedClock in a file: it predicts as before it was saved, files of before open if it was not private."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedscape import Federation, Gaussian, Ledger, LocalSGD
from fedscape.errors import CheckpointError
from fedscape.learning import cross_entropy, models
from fedscape.methods import train
from fedscape.temporal import FedClock, Linear, MultiBranch
from fedscape.trained.model import load, trained

ARGUMENTS = {"n_features": 4, "n_classes": 3}


def private_clock(fed: Federation):
    """One private round; then a state that branches, with rows whose log-odds are beyond what privacy clips at."""
    local = LocalSGD(MultiBranch(models.linear(**ARGUMENTS)), cross_entropy, lr=0.1, epochs=1, batch_size=5)
    privacy, ledger = Gaussian(clip=4.0, multiplier=1.0, noise_seed=1), Ledger(epsilon=1e6, delta=1e-6)
    model = train(FedClock(local, Linear(4)), local, fed, n_rounds=1, privacy=privacy, ledger=ledger)
    state = dict(model.state)
    (name,) = (n for n in state if n.startswith("mean.") and n.endswith("each.0.bias"))
    wide = np.full((2, 1, 1), 50.0)
    law = {"score_means": np.array([[1.0], [-1.0]]), "score_scatter": wide, "score_rows": wide}
    state |= {name: state[name] + np.float32(9.0), "branching": np.asarray(1.0), **law}
    return replace(model, state=state)


def test_a_private_fedclock_predicts_the_same_once_saved_and_loaded(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    fed = Federation({"x": x, "y": y}, np.arange(0, 41, 10))
    made = trained(private_clock(fed), "linear", ARGUMENTS)
    assert made.model.method.noise > 0
    expected = made.predict(fed).probabilities
    made.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.model.method.noise == made.model.method.noise
    np.testing.assert_array_equal(again.predict(fed).probabilities, expected)
    older = without_noise(made)
    older.save(tmp_path / "older")
    with pytest.raises(
        CheckpointError, match="trained privately by a version that did not store the noise: train it"
    ) as e:
        load(tmp_path / "older")
    assert "\n" not in str(e.value)


def without_noise(made):
    """As files of before were."""
    settings = {name: value for name, value in made.about["settings"].items() if name != "noise"}
    return replace(made, about={**made.about, "settings": settings})


@pytest.mark.parametrize("branching", [True, False])
def test_a_file_of_before_that_was_not_private_opens(tmp_path, branching):
    """It branches, modes differing in scatter; or it does not branch yet, and then noise decides nothing."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 4)).astype(np.float32), rng.integers(0, 3, 40)
    fed = Federation({"x": x, "y": y}, np.arange(0, 41, 10))
    local = LocalSGD(MultiBranch(models.linear(**ARGUMENTS)), cross_entropy, lr=0.1, epochs=1, batch_size=5)
    model = train(FedClock(local, Linear(4)), local, fed, n_rounds=2)
    if branching:
        scatter = np.array([[[1.0]], [[1.5]]])
        model = replace(model, state={**model.state, "branching": np.asarray(1.0), "score_scatter": scatter})
    made = trained(model, "linear", ARGUMENTS)
    without_noise(made).save(tmp_path / "older")
    older = load(tmp_path / "older")
    np.testing.assert_array_equal(older.predict(fed).probabilities, made.predict(fed).probabilities)
