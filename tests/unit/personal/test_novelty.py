"""Novelty: measures against scikit-learn, a rate of false alarms that holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from torch import nn

from fedscape import DataError, Federation, GaussianMixture
from fedscape.learning import LocalSGD, cross_entropy, initialised
from fedscape.methods import train
from fedscape.personal import Alarm, FedGMM, Novelty, Personalised, auroc, average_precision, max_f1


def clients(n: int, rows: int) -> Federation:
    """Two Gaussians; labels are 1 to the right of the first centre and to the left of the second."""
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, n * rows)
    x = rng.normal(size=(n * rows, 3)) + 4.0 * kind[:, None]
    y = (x[:, 0] > 4.0 * kind) ^ (kind == 1)
    return Federation({"x": x, "y": y.astype(np.int64)}, np.arange(n + 1) * rows)


def gmm_of(fed: Federation, rounds: int, warm: int = 3) -> Personalised:
    model = initialised(nn.Linear(3, 2, dtype=torch.float64), 0)
    local = LocalSGD(model, cross_entropy, lr=0.3, epochs=1, batch_size=8, optimiser="adam")
    return train(FedGMM(local, GaussianMixture(2, seed=0).fit(fed), 2, warm=warm), local, fed, n_rounds=rounds)


@pytest.mark.parametrize("ties", [False, True])
def test_measures_equal_scikit_learn(ties):
    rng = np.random.default_rng(0)
    new = rng.random(300) < 0.3
    scores = rng.normal(size=300) + new
    scores = scores.round(0) if ties else scores
    assert auroc(scores, new) == pytest.approx(roc_auc_score(new, scores))
    assert average_precision(scores, new) == pytest.approx(average_precision_score(new, scores))
    assert max_f1(scores, new) == pytest.approx(max(f1_score(new, scores >= t) for t in np.unique(scores)))


def test_rate_of_false_alarms_is_at_most_the_stated_one():
    rng = np.random.default_rng(1)
    rate, runs, n = 0.1, 2000, 59
    alarms = [Alarm.calibrated(rng.normal(size=n), rate=rate).raised(rng.normal(size=1))[0] for _ in range(runs)]
    assert np.mean(alarms) <= rate + 5 * np.sqrt(rate * (1 - rate) / runs)
    assert np.mean(alarms) >= rate - 1 / n - 5 * np.sqrt(rate * (1 - rate) / runs)


def test_far_rows_and_far_clients_are_new_and_typicality_sees_rows_that_are_too_likely():
    known = clients(10, 40)
    model = gmm_of(known, 4)
    far = Federation({"x": known["x"] + 30, "y": known["y"]}, known.offsets, ids=np.arange(50, 60))
    both, label = np.repeat([False, True], known.n_rows), np.repeat([False, True], len(known))
    for score in ("log_prob_x", "log_prob_joint", "typicality"):
        novelty = Novelty(model, score).fitted(known)
        assert auroc(np.concatenate([novelty.rows(known), novelty.rows(far)]), both) > 0.99
        assert auroc(np.concatenate([novelty.clients(known), novelty.clients(far)]), label) == 1.0
    centre = np.repeat(model.state["means"], 50, axis=0)
    dull = Federation({"x": centre, "y": np.zeros(100, dtype=np.int64)}, [0, 100], ids=[99])
    label = np.repeat([False, True], [known.n_rows, 100])
    plain, typical = Novelty(model, "log_prob_x"), Novelty(model, "typicality").fitted(known)
    assert auroc(np.concatenate([plain.rows(known), plain.rows(dull)]), label) < 0.1
    assert auroc(np.concatenate([typical.rows(known), typical.rows(dull)]), label) > 0.6


def test_wrong_labels_are_new_to_the_law_of_labels():
    known = clients(10, 60)
    model = gmm_of(known, 20, warm=12)
    wrong = Federation({"x": known["x"], "y": 1 - known["y"]}, known.offsets)
    novelty = Novelty(model, "log_prob_y_given_x")
    both = np.repeat([False, True], known.n_rows)
    assert auroc(np.concatenate([novelty.rows(known), novelty.rows(wrong)]), both) > 0.9
    assert Novelty(model, "confidence").rows(known).max() <= -0.5


def test_labels_are_judged_by_their_names_and_a_name_that_is_not_known_is_refused():
    fed = clients(6, 40)
    called = fed.with_column("y", fed["y"], names=["no", "yes"])
    turned = fed.with_column("y", 1 - fed["y"], names=["yes", "no"])
    odd = fed.with_column("y", fed["y"], names=["no", "perhaps"])
    model = gmm_of(called, 6, warm=1)
    row = int(np.argmax(fed["y"]))
    for score in ("log_prob_y_given_x", "log_prob_joint"):
        novelty = Novelty(model, score)
        assert (novelty.rows(turned) == novelty.rows(called)).all()
        assert (novelty.rows(called) != novelty.rows(called.with_column("y", 1 - fed["y"]))).all()
        with pytest.raises(
            DataError, match=f"column 'y' holds 'perhaps' in row {row}, but the model knows 'no', 'yes'"
        ):
            novelty.rows(odd)
    for score in ("log_prob_x", "confidence"):  # for these a row of a new class is a row like any other
        assert (Novelty(model, score).rows(odd) == Novelty(model, score).rows(called)).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc([1.0, 2.0], [True, True]), "got only one kind"),
        (lambda: auroc([1.0, np.nan], [True, False]), "scores must be finite"),
        (
            lambda: Alarm.calibrated(np.arange(5.0), rate=0.05),
            "5 known scores cannot promise a rate of 0.05: at least 19",
        ),
        (lambda: Alarm.calibrated([1.0], rate=2.0), "rate must be between 0 and 1, not 2.0"),
        (lambda: Novelty(None, "odd"), "score must be one of log_prob_x"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()
