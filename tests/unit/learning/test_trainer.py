"""Settings hold no state, trainers go with their settings, and training needs no fast path."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch

from fedscape import Federation, Local, rounds
from fedscape.core.computation import Computation
from fedscape.learning import FedAvg, LocalSGD, Setting, cross_entropy, evaluate, models, sweep
from fedscape.learning import trainer as learning_trainer
from fedscape.learning.trainer import Trainer, trainer_of

TRAINING = """
import numpy as np, sys
BLOCK
from fedscape import Federation, Local, rounds
from fedscape.learning import FedAvg, LocalSGD, cross_entropy, evaluate, models
from fedscape.learning.trainer import trainer_of
rng, sizes = np.random.default_rng(0), [7, 5, 0, 7, 3, 1]
fed = Federation({"x": rng.normal(size=(23, 1, 8, 8)), "y": rng.integers(0, 3, 23)}, np.cumsum([0, *sizes]))
ends = {}
for name, model in (("cnn", models.cnn((1, 8, 8), 3)), ("mlp", models.mlp(64, 70, 3))):
    for strategy in ("auto", "compiled", "stacked"):
        if strategy == "compiled" and name == "cnn":
            continue
        local = LocalSGD(model.double(), cross_entropy, lr=0.1, epochs=2, batch_size=4, strategy=strategy)
        *_, end = rounds(FedAvg(local), Local(fed, threads=1), n_rounds=2)
        ends |= {f"{name} {strategy} {n}": v for n, v in end.state.items()}
        ends[f"{name} {strategy} loss"] = evaluate(local, end.state, fed).loss
fast = [name for name in sys.modules if name.startswith("fedscape.learning.fast")]
assert bool(fast) == FAST, fast
np.savez(sys.argv[1], **ends)
"""

BLOCK = """
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name == "fedscape.learning.fast":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def fed() -> Federation:
    rng = np.random.default_rng(0)
    return Federation({"x": rng.normal(size=(20, 6)), "y": rng.integers(0, 3, 20)}, [0, 7, 7, 12, 20])


def step(model, **settings) -> LocalSGD:
    return LocalSGD(model, cross_entropy, **{"lr": 0.1, "epochs": 1, "batch_size": 4, **settings})


def frozen_in(value, seen: dict[int, object]) -> dict[int, object]:
    """All frozen dataclasses that can be reached from here through attributes and containers."""
    if id(value) in seen or isinstance(value, torch.nn.Module | torch.Tensor | np.ndarray | type):
        return seen
    if is_dataclass(value) and value.__dataclass_params__.frozen:
        seen[id(value)] = value
    inner = list(value) if isinstance(value, list | tuple) else []
    inner += list(value.values()) if isinstance(value, dict) else []
    if is_dataclass(value) or isinstance(value, Computation):
        inner += list(vars(value).values()) if hasattr(value, "__dict__") else []
    for part in inner:
        frozen_in(part, seen)
    return seen


def attributes(things) -> list[set[str]]:
    return [set(vars(thing)) if hasattr(thing, "__dict__") else set() for thing in things]


def test_without_the_fast_folder_training_gives_the_same_up_to_rounding(tmp_path):
    ends = []
    for name, block in (("fast", ""), ("plain", BLOCK)):
        code = TRAINING.replace("BLOCK", block).replace("FAST", str(not block))
        subprocess.run([sys.executable, "-c", code, str(tmp_path / f"{name}.npz")], check=True)
        ends.append(np.load(tmp_path / f"{name}.npz"))
    assert set(ends[0]) == set(ends[1])
    for name in ends[0]:
        np.testing.assert_allclose(ends[0][name], ends[1][name], rtol=1e-9, atol=1e-9, err_msg=name)


def test_settings_are_frozen_hashable_and_gain_nothing_by_use(fed):
    local = step(models.mlp(6, 5, 3).double(), steps=3, epochs=None)
    before, digest = dict(vars(local)), FedAvg(local).digest()
    assert set(before) == {f.name for f in fields(local)}
    assert hash(local) == hash(local) != hash(copy.copy(local))
    *_, end = rounds(FedAvg(local), Local(fed, threads=2), n_rounds=2)
    evaluate(local, end.state, fed)
    sweep(local, fed, [Setting(lr=0.1)], n_rounds=1, validation=fed)
    assert vars(local) == before
    assert not [name for name in vars(local.model) if name not in vars(torch.nn.Sequential())]
    assert FedAvg(pickle.loads(pickle.dumps(local))).digest() == digest  # noqa: S301


def test_a_trainer_goes_with_its_settings(fed):
    local = step(models.mlp(6, 5, 3))
    trainer = weakref.ref(trainer_of(local))
    list(rounds(FedAvg(local), fed, n_rounds=1))
    assert trainer() is trainer_of(local) is not trainer_of(replace(local))
    del local
    gc.collect()
    assert trainer() is None


def test_the_reference_trainer_agrees_with_the_one_that_is_picked(fed):
    for settings in ({}, {"momentum": 0.5}, {"weight_decay": 0.1}, {"proximal": 0.3}, {"strategy": "sequential"}):
        local = step(models.mlp(6, 70, 3).double(), **settings)
        *_, end = rounds(FedAvg(local), Local(fed, threads=1), n_rounds=2)
        plain = replace(local)
        learning_trainer._TRAINERS[plain] = Trainer(plain)
        *_, want = rounds(FedAvg(plain), Local(fed, threads=1), n_rounds=2)
        for name in want.state:
            np.testing.assert_allclose(end.state[name], want.state[name], rtol=1e-9, atol=1e-12)


def computations() -> list[type[Computation]]:
    import importlib
    import pkgutil

    import fedscape

    rooms = ("core", "privacy", "statistics", "sketches", "mixtures", "learning", "personal")
    for found in pkgutil.walk_packages(fedscape.__path__, "fedscape."):
        if found.name.split(".")[1] in rooms and ".triton" not in found.name:
            importlib.import_module(found.name)
    kinds: list[type[Computation]] = []
    todo = [Computation]
    while todo:
        todo += (subs := todo.pop().__subclasses__())
        kinds += [k for k in subs if k.__module__.startswith("fedscape.") and "examples" in vars(k)]
    return sorted(set(kinds), key=lambda k: k.__qualname__)


def test_no_frozen_object_gains_an_attribute_while_an_example_runs():
    looked = 0
    for kind in computations():
        for computation, federation in kind.examples():
            things = list(frozen_in([computation, federation], {}).values())
            before = attributes(things)
            for done in rounds(
                computation, Local(federation, threads=1), n_rounds=2, allow=computation.reveals, measure=1
            ):
                assert done.run is not None
            assert attributes(things) == before, kind.__name__
            looked += len(things)
    assert looked > 20
