"""GPFL beside its equations in plain torch; what it sends and keeps, and whom a new client becomes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedscape as fs
from fedscape import DataError, Federation, Local
from fedscape.core.random import Key
from fedscape.learning import LocalSGD, cross_entropy, models, squared_error
from fedscape.learning.batches import Rows, make_plan
from fedscape.learning.layers import initialised
from fedscape.methods import train
from fedscape.personal import GPFL
from fedscape.personal.gpfl import Valve, with_valve

D, K, U = 4, 6, 3


def clients(sizes: tuple[int, ...] = (25, 9, 0, 14)) -> Federation:
    """Clients whose classes have other shares."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.choice(U, n, p=rng.dirichlet(np.ones(U))) for n in sizes])
    return Federation({"x": rng.normal(size=(len(y), D)) + np.eye(U, D)[y], "y": y}, np.cumsum((0, *sizes)))


def step(**changes: object) -> LocalSGD:
    deep = nn.Sequential(nn.Linear(D, K), nn.Tanh(), nn.Linear(K, U)).to(torch.float64)
    return replace(LocalSGD(initialised(deep, 0), cross_entropy, lr=0.3, epochs=2, batch_size=10), **changes)


class Plain(nn.Module):
    """The model as the paper draws it, of torch's own layers, with the weights of a state of fedscape's."""

    def __init__(self, state: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.body = nn.Linear(D, K)
        self.head = nn.Linear(K, U)
        self.gce = nn.Embedding(U, K)
        self.cov = nn.ModuleDict({of: nn.Sequential(nn.Linear(K, K), nn.ReLU(), nn.LayerNorm(K)) for of in "ab"})
        self.to(torch.float64)
        with torch.no_grad():
            for mine, value in self.of(state).items():
                self.get_parameter(mine).copy_(torch.tensor(value))

    @staticmethod
    def of(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The weights of these layers in a state; two layers share an array of the valve."""
        parts = {"0.weight": "weight", "0.bias": "bias", "2.weight": "scale", "2.bias": "shift"}
        halves = {of: slice(i * K, i * K + K) for i, of in enumerate("ab")}
        valve = {part: state[f"model.2.valve.{part}"].reshape(2 * K, -1) for part in parts.values()}
        own = {f"cov.{of}.{p}": valve[part][rows] for of, rows in halves.items() for p, part in parts.items()}
        own = {n: v if v.shape[1] > 1 else v[:, 0] for n, v in own.items()}
        names = {"body.weight": "0.weight", "body.bias": "0.bias", "gce.weight": "2.classes"}
        names |= {"head.weight": "2.weight", "head.bias": "2.bias"}
        return own | {mine: state[f"model.{theirs}"] for mine, theirs in names.items()}

    def routed(self, f: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return functional.relu((self.cov["a"](condition) + 1) * f + self.cov["b"](condition))

    def losses(self, x, y, g, p, frozen, magnitude):
        f = torch.tanh(self.body(x))
        common, own = self.routed(f, g), self.routed(f, p)
        angle = functional.cross_entropy(functional.cosine_similarity(common[:, None], self.gce.weight[None], dim=2), y)
        distance = torch.linalg.vector_norm(common - frozen[y], dim=1).mean()
        return functional.cross_entropy(self.head(own), y) + angle + magnitude * distance


def batches(local: LocalSGD, fed: Federation, client: int, key: Key) -> list[np.ndarray]:
    plan = make_plan(Rows(fed.keys[[client]], fed.offsets[client : client + 2]), key, local.timing)
    return [rows[:n] for rows, n in zip(plan.rows[0], plan.counts[0], strict=True)]


@pytest.mark.parametrize("strategy", ["auto", "sequential", "vmap"])
def test_gpfl_is_a_plain_loop_over_its_equations(strategy):
    fed, local = clients(), step(strategy=strategy)
    method, engine = GPFL(local, magnitude=0.4, decay=0.2), Local(fed)
    *_, last = fs.rounds(method, engine, n_rounds=3, seed=3)
    common, heads = Plain(method.start(3)).state_dict(), {}
    for r in range(3):
        frozen, moved = common["gce.weight"].clone(), {n: torch.zeros_like(p) for n, p in common.items()}
        for i in np.flatnonzero(fed.sizes):
            model = Plain(method.start(3))
            model.load_state_dict({**common, **heads.get(i, {})})
            shares = torch.tensor(
                np.bincount(fed["y"][fed.offsets[i] : fed.offsets[i + 1]], minlength=U) / fed.sizes[i]
            )
            g, p = frozen.mean(dim=0), shares @ frozen / U
            valve = [*model.cov.parameters(), *model.gce.parameters()]
            rest = [*model.body.parameters(), *model.head.parameters()]
            optimiser = torch.optim.SGD([{"params": valve, "weight_decay": 0.2}, {"params": rest}], lr=0.3)
            for rows in batches(local, fed, int(i), Key(3, round=r)):
                optimiser.zero_grad()
                x, y = torch.tensor(fed["x"][rows]), torch.tensor(fed["y"][rows])
                model.losses(x, y, g, p, frozen, 0.4).backward()
                optimiser.step()
            after = {n: values.clone() for n, values in model.state_dict().items()}
            heads[i] = {n: after[n] for n in ("head.weight", "head.bias")}
            for n, values in after.items():
                moved[n] += fed.sizes[i] / fed.n_rows * (values - common[n])
        common = {n: p if n.startswith("head") else p + moved[n] for n, p in common.items()}
    for n, value in Plain.of(last.state).items():
        np.testing.assert_allclose(value, common[n], atol=1e-10, err_msg=n)
    assert (last.state["model.2.frozen"] == last.state["model.2.classes"]).all()
    kept = engine.kept()
    for part in ("weight", "bias"):
        for i, head in heads.items():
            np.testing.assert_allclose(kept[f"model.2.{part}"].flat[i], head[f"head.{part}"], atol=1e-10)
    np.testing.assert_allclose(kept["model.2.shares"].flat[0], np.bincount(fed["y"][:25], minlength=U) / 25)


def test_gpfl_sends_moves_of_what_is_common_and_keeps_head_and_shares():
    fed, method = clients(), GPFL(step())
    sent, kept = method.step(method.start(0), fed, Key(0))
    moved = {"0.weight", "0.bias", "2.classes", *(f"2.valve.{part}" for part in ("weight", "bias", "scale", "shift"))}
    assert set(sent) == {"weight", *(f"delta.{n}" for n in moved)}
    assert set(kept) == {"model.2.weight", "model.2.bias", "model.2.shares"}


def test_a_new_client_gets_the_nearest_class_vector_and_with_labels_a_head():
    fed = clients((40,) * 10)
    known, new = fed.take(slice(0, 8)), fed.take(slice(8, 10))
    model = train(GPFL(step(), decay=0.0), step(), known, n_rounds=12)
    assert model.evaluate(known).accuracy.mean() > model.common().evaluate(known).accuracy.mean()
    plain = Plain(dict(model.state))
    with torch.no_grad():
        g = plain.gce.weight.mean(dim=0)
        common = plain.routed(torch.tanh(plain.body(torch.tensor(new["x"]))), g)
        cosines = functional.cosine_similarity(common[:, None], plain.gce.weight[None], dim=2).numpy()
    before = model.predict(new)
    assert (before == cosines.argmax(axis=1)).all()
    assert (before == new["y"]).mean() > 0.5
    served = model.adapt(new)
    assert set(served.kept) == {"model.2.weight", "model.2.bias", "model.2.shares"}
    for n in ("model.0.weight", "model.2.classes", "model.2.frozen"):
        assert (served.state[n] == model.state[n]).all()
    assert served.evaluate(new).loss.mean() < model.evaluate(new).loss.mean()


def test_gpfl_refuses_what_it_has_no_meaning_for():
    for changes in ({"loss": squared_error}, {"weight_decay": 0.1}):
        with pytest.raises(DataError, match="must have the loss cross_entropy"):
            GPFL(step(**changes))
    with pytest.raises(DataError, match="decay must be at least 0"):
        GPFL(step(), decay=-1.0)
    with pytest.raises(DataError, match="must hold classes from 0 to 2, it holds 0 to 7"):
        GPFL(step()).step(GPFL(step()).start(0), Federation({"x": np.eye(2, D), "y": [0, 7]}, [0, 2]), Key(0))
    shaped = nn.Sequential(nn.Linear(D, K), nn.ReLU(), nn.Linear(K, U), nn.Flatten()).to(torch.float64)
    with pytest.raises(DataError, match="last linear layer must give the model's output"):
        next(iter(fs.rounds(GPFL(step(model=shaped)), clients(), n_rounds=1)))
    with pytest.raises(DataError, match=r"one vector of features a row, not the shape \[2, 3, 6\]"):
        with_valve(step().model)[2](torch.zeros(2, 3, K))


def test_a_valve_is_made_once_and_again_with_other_settings():
    model = with_valve(models.mlp(4, 8, 2), decay=0.5)
    assert with_valve(model, decay=0.5) is model
    other = with_valve(model, decay=0.1)
    layers = [layer for layer in other.modules() if isinstance(layer, Valve)]
    assert len(layers) == 1
    assert layers[0].decay == 0.1
    frozen = models.mlp(4, 8, 2)
    frozen[3].requires_grad_(False)
    with pytest.raises(DataError, match="must be trained, but they are frozen"):
        with_valve(frozen)
