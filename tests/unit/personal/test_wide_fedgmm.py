"""FedGMM of many features: its Gaussians are of their leading directions, and travel with the model."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, Local, rounds
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.methods import train
from fedscape.mixtures import GaussianMixture
from fedscape.personal import FedGMM, load_personal, make_fedgmm, save_personal, with_projection
from fedscape.personal.methods import DIRECTIONS, WIDE
from fedscape.statistics.moments import Moments

WIDTH = WIDE + 1


@pytest.fixture(scope="module")
def wide():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 120)
    x = rng.normal(size=(120, WIDTH)) * np.linspace(3, 0.1, WIDTH) + y[:, None]
    return Federation({"x": x, "y": y}, np.arange(0, 121, 20))


def step() -> LocalSGD:
    return LocalSGD(models.linear(WIDTH, 2), cross_entropy, lr=0.05, epochs=1, batch_size=10)


def test_it_is_fedgmm_of_a_projected_column(wide):
    made = make_fedgmm(step(), Local(wide), 0)
    assert made.start(0)["projection.directions"].shape == (WIDTH, DIRECTIONS)
    seen = with_projection(wide, Moments().fit(wide), DIRECTIONS, residual=True)
    by_hand = FedGMM(step(), GaussianMixture(3, column="z", rounds=30, seed=0).fit(seen), 3)
    one, other = rounds(made, wide, n_rounds=4), rounds(by_hand, seen, n_rounds=4)
    list(one), list(other)
    for name, values in other.state.items():
        np.testing.assert_allclose(one.state[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(made.log_prob_x(one.state, wide), by_hand.log_prob_x(other.state, seen), rtol=1e-9)


def test_narrow_features_and_a_column_by_name_are_taken_as_they_are(wide):
    narrow = Federation({"x": wide["x"][:, :5], "y": wide["y"]}, wide.offsets)
    local = LocalSGD(models.linear(5, 2), cross_entropy, lr=0.05, epochs=1, batch_size=10)
    assert make_fedgmm(local, Local(narrow), 0).projection is None
    seen = wide.with_column("z", wide["x"][:, :4])
    assert make_fedgmm(step(), Local(seen), 0, column="z").projection is None


def test_a_saved_model_projects_new_rows_by_itself(wide, tmp_path):
    made = train("fedgmm", step(), wide, n_rounds=2)
    save_personal(tmp_path / "m", made, architecture="linear", arguments={"n_features": WIDTH, "n_classes": 2})
    again = load_personal(tmp_path / "m")
    assert again.method.projection is None  # it is in the state
    np.testing.assert_array_equal(again.predict(wide), made.predict(wide))
