"""FedGMM: the paper's toy (Figure 1), its covariances against the exact ones, and its code's prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedscape import FedEM, Federation, FedGMM, GaussianMixture
from fedscape.core.kept import kept_rows
from fedscape.datasets.generators import fedgmm_synthetic
from fedscape.learning import LocalSGD, cross_entropy, initialised, models
from fedscape.methods import train
from fedscape.personal import Novelty, auroc


def accuracy(weights: np.ndarray, yes: np.ndarray, fed: Federation) -> float:
    """Of saying yes where these weights of the two labellings do."""
    said = (weights * yes).sum(axis=1) > (weights * ~yes).sum(axis=1)
    return float((said == fed["y"]).mean())


def toy() -> tuple[Federation, np.ndarray, np.ndarray]:
    """Figure 1: twenty clients, x from N(-2, 1.5) or N(2, 1.5), y by the sign of x less its centre."""
    rng = np.random.default_rng(0)
    n, rows = 20, 400
    shares = rng.dirichlet([0.4, 0.4], n)
    z = np.concatenate([rng.random(rows) < s[1] for s in shares]).astype(int)
    centre = np.where(z == 0, -2.0, 2.0)
    x = centre + np.sqrt(1.5) * rng.standard_normal(n * rows)
    fed = Federation({"x": x[:, None], "y": (x < centre).astype(np.int64)}, np.arange(n + 1) * rows)
    return fed, shares, x


@pytest.fixture(scope="module")
def learned():
    fed = toy()[0]
    local = LocalSGD(
        initialised(nn.Linear(1, 2, dtype=torch.float64), 0), cross_entropy, lr=0.3, epochs=2, batch_size=32,
        optimiser="adam",
    )  # fmt: skip
    mixture = GaussianMixture(2).fit(fed)
    return {
        "fedem": train(FedEM(local, 2), local, fed, n_rounds=12),
        "fedgmm": train(FedGMM(local, mixture, 2), local, fed, n_rounds=12),
    }


def test_figure_1_fedem_cannot_pass_its_bound_and_fedgmm_comes_near_bayes(learned):
    fed, shares, x = toy()
    found = {name: done.evaluate(fed).summary()["accuracy_pooled"] for name, done in learned.items()}
    owner = fed.client_of_row
    weigh = np.log(shares[owner] + 1e-300) - (x[:, None] - [-2.0, 2.0]) ** 2 / 3
    w = np.exp(weigh - weigh.max(axis=1, keepdims=True))
    yes = np.stack([x < -2, x < 2], axis=1)
    bayes = accuracy(w, yes, fed)
    each = shares[owner]  # FedEM at its best: both learners perfect, weights of the client, blind to x
    bound = accuracy(each, yes, fed)
    error = 5 * np.sqrt(0.25 / fed.n_rows)
    assert found["fedem"] < bound + error
    assert found["fedgmm"] > bayes - 0.02
    assert found["fedgmm"] > found["fedem"] + 0.03


def test_figure_2_new_rows_are_told_by_p_of_x_and_wrong_labels_by_p_of_y_given_x(learned):
    fed = toy()[0]
    done, n = learned["fedgmm"], fed.n_rows
    far = fed.with_column("x", np.sign(fed["x"]) * 8 + 0.1 * fed["x"])
    wrong = fed.with_column("y", 1 - fed["y"])

    def told(score, new):
        scores = [Novelty(done, score).rows(part) for part in (fed, new)]
        return auroc(np.concatenate(scores), np.repeat([False, True], n))

    assert told("log_prob_x", far) > 0.99
    assert told("log_prob_x", wrong) == 0.5
    assert told("log_prob_y_given_x", wrong) > 0.9


def test_a_step_of_averaged_local_covariances_from_the_exact_optimum_loses_likelihood():
    rng = np.random.default_rng(0)  # one Gaussian of variance 9 over ten clients, each of variance 0.36
    x = rng.normal(0, np.sqrt(9 - 0.36), (10, 1)) + 0.6 * rng.standard_normal((10, 500))
    fed = Federation({"x": x.reshape(-1, 1)}, np.arange(0, 5001, 500))
    exact = GaussianMixture(1).fit(fed)
    begin = {"means_init": exact.means_, "weights_init": exact.weights_, "covariances_init": exact.covariances_}
    after = GaussianMixture(1, rounds=1, scatter="within_clients", **begin).fit(fed)
    assert after.covariances_[0, 0, 0] < 0.1 * exact.covariances_[0, 0, 0]
    assert exact.score(fed) - after.score(fed) > 5


class RawWeights(FedGMM):
    """Predictions as in the authors' public code: pi_c itself, not its logarithm, is added to the log density."""

    def _weighted(self, state, clients):
        own = kept_rows(clients, "shares", state["weights"])[clients.client_of_row]
        return own + self.densities(state, clients, labels=False).x[:, :, None]


def test_weights_without_their_logarithm_lose_what_clients_know_of_themselves():
    fed, test = fedgmm_synthetic(20, 300, dimension=8, seed=0)[0].split(test=0.2, seed=0)
    local = LocalSGD(models.linear(8, 2), cross_entropy, lr=0.3, epochs=1, batch_size=32, optimiser="adam")
    done = train(FedGMM(local, GaussianMixture(3, seed=0).fit(fed), 3), local, fed, n_rounds=15)
    same = replace(done, method=RawWeights(local, done.method.mixture, 3))
    exact, raw = (model.evaluate(test).summary()["accuracy_pooled"] for model in (done, same))
    assert exact > 0.9
    assert exact - raw > 0.15
