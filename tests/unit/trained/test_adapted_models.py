"""Adapted networks in every method: trained, saved with their frozen weights, read back, and exported merged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedscape import DataError, Federation, LocalSGD
from fedscape.core import checkpoint
from fedscape.errors import CheckpointError
from fedscape.learning import Adapted, cross_entropy, models
from fedscape.learning.adapters import LowRank
from fedscape.methods import METHODS, train
from fedscape.personal.personalised import Personalised
from fedscape.trained.export import networks_of
from fedscape.trained.model import load, trained

ARGUMENTS = {"n_features": 6, "hidden": 8, "n_classes": 3}
#: They train all of the last layer, or a normalisation.
NEED_MORE = ("fedbn", "feddbe", "pfedfda", "gpfl")
NETWORKS = [n for n, m in METHODS.items() if m.family in ("global", "personal") and m.command and n not in NEED_MORE]


@pytest.fixture(scope="module")
def fed() -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 6)).astype(np.float32), rng.integers(0, 3, 80)
    return Federation({"x": x, "y": y}, np.arange(0, 81, 10))


def adapted(seed: int = 4, **how) -> LocalSGD:
    net = Adapted(models.mlp(**ARGUMENTS, seed=seed), 2, **how)
    return LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_has_all_that_predicts_and_exports_are_merged(name, fed, tmp_path):
    local = replace(adapted(), proximal=0.1) if name == "fedprox" else adapted()
    model = train(name, local, fed, n_rounds=2)
    frozen = adapted().model.state_dict()
    for n, p in model.method.local.model.named_parameters():
        assert p.requires_grad == n.endswith((".up", ".down"))
        assert p.requires_grad or torch.equal(p, frozen[n]), f"{n} moved"
    assert {n.rpartition(".")[2] for n in model.kept if n.startswith("model.")} <= {"up", "down"}
    expected = model.predict_proba(fed)
    trained(model, "mlp", ARGUMENTS, name=name).save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(fed).probabilities, expected)
    if name == "fedgmm":  # chooses its network row by row
        return
    networks = networks_of(again, client="3")
    assert not any(isinstance(layer, LowRank) for _, net in networks for layer in net.modules())
    x = torch.tensor(fed["x"][30:40])
    mixed = sum(share * torch.softmax(net(x), dim=1) for share, net in networks)
    np.testing.assert_allclose(mixed.detach().numpy(), expected[30:40], atol=1e-6)


@pytest.mark.parametrize("name", NEED_MORE)
def test_a_method_that_trains_what_is_frozen_says_so(name, fed):
    with pytest.raises(DataError, match=r"must be trained|that are trained|with trained scale"):
        train(name, adapted(), fed, n_rounds=1)


@pytest.mark.parametrize("name", ["feddbe", "pfedfda", "gpfl"])
def test_they_take_adapters_below_a_last_layer_that_trains_whole(name, fed, tmp_path):
    model = train(name, adapted(layers=["1"], also=["3"]), fed, n_rounds=2)
    trained(model, "mlp", ARGUMENTS, name=name).save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(fed).probabilities, model.predict_proba(fed))


def test_weights_that_were_frozen_by_hand_are_kept_too(fed, tmp_path):
    net = models.mlp(**ARGUMENTS, seed=9)
    nn.init.normal_(net[1].weight)
    net[1].requires_grad_(False)
    model = train("fedavg", LocalSGD(net, cross_entropy, lr=0.1, epochs=1, batch_size=5), fed, n_rounds=1)
    trained(model, "mlp", ARGUMENTS).save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(fed).probabilities, model.predict_proba(fed))
    assert not again.model.method.local.model[1].weight.requires_grad


def test_a_file_for_other_frozen_weights_is_refused(fed, tmp_path):
    model = train("ditto", adapted(), fed, n_rounds=1)
    model.save(tmp_path / "model")
    Personalised.load(tmp_path / "model", train("ditto", adapted(), fed, n_rounds=1).method)
    with pytest.raises(CheckpointError, match="other frozen weights"):
        Personalised.load(tmp_path / "model", train("ditto", adapted(5), fed, n_rounds=1).method)


@pytest.mark.parametrize("change", ["lost", "shape", "settings"])
def test_a_file_that_was_tampered_with_is_refused(change, fed, tmp_path):
    trained(train("fedavg", adapted(), fed, n_rounds=1), "mlp", ARGUMENTS).save(tmp_path / "model")
    arrays, header = checkpoint.read(tmp_path / "model")
    name = "fixed/network.1.layer.weight"
    if change == "lost":
        arrays.pop(name)
    elif change == "shape":
        arrays[name] = arrays[name][:, :3]
    else:
        header["about"]["adapters"] = {"rank": "many"}
    checkpoint.write(tmp_path / "model", arrays, header)
    with pytest.raises(CheckpointError):
        load(tmp_path / "model")
