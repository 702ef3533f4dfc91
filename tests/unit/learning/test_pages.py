"""What clients keep stays on a device as far as it fits: the same bytes, fewer copies, and the engine owns it."""

from __future__ import annotations

import gc
import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedscape import Federation, FedscapeError, FixedSize, Local, rounds
from fedscape.core.arrays import Ragged
from fedscape.core.kept import Pages, Store
from fedscape.learning import LocalSGD, Scaffold, cross_entropy, models
from fedscape.learning.device import Device
from fedscape.learning.layers import initialised
from fedscape.learning.pages import DevicePage
from fedscape.learning.trainer import Trainer, trainer_of
from fedscape.personal import Ditto, FedALA, FedRep, LocalOnly, PFedMe

MODEL = initialised(models.mlp(4, 6, 3), 0)
ROW = 4 * sum(p.numel() for p in MODEL.parameters())  # bytes of a client's own model
METHODS = {
    "ditto": Ditto, "pfedme": lambda local: PFedMe(local, repeats=2), "local": LocalOnly, "fedrep": FedRep,
    "fedala": FedALA, "scaffold": Scaffold,
}  # fmt: skip


@pytest.fixture
def fed() -> Federation:
    rng, offsets = np.random.default_rng(0), np.cumsum([0, *[5, 3, 0, 8, 2, 5, 1, 6, 4, 7]])
    ids = rng.permutation(10)
    return Federation({"x": rng.normal(size=(41, 4)), "y": rng.integers(0, 3, 41)}, offsets, ids=ids)


@pytest.fixture
def local() -> LocalSGD:
    return LocalSGD(MODEL, cross_entropy, lr=0.3, epochs=1, batch_size=3, strategy="vmap", keep_on_device=1.0)


@pytest.fixture
def paged(monkeypatch):
    """Let the CPU play a GPU with this much memory for what clients keep, and count rows that cross."""
    crossed: Counter[str] = Counter()
    array, tensor = DevicePage.array, Device.sent

    def down(page):
        crossed["down"] += page.tensor is not None
        return array(page)

    def up(device, values):
        crossed["up"] += len(values) if values.dtype == np.float32 and values.ndim > 1 else 0  # biases go with weights
        return tensor(device, values)

    def with_memory(size: int) -> Counter[str]:
        monkeypatch.setattr(Device, "keeps", property(lambda self: True))
        monkeypatch.setattr(Device, "_free", lambda self: size)
        monkeypatch.setattr(DevicePage, "array", down)
        monkeypatch.setattr(Device, "sent", up)
        crossed.clear()
        return crossed

    return with_memory


def ending(method, fed, n_rounds=4, **how):
    engine = Local(fed, threads=how.pop("threads", 1))
    loop = rounds(method, engine, n_rounds=n_rounds, sampler=FixedSize(6), seed=1, **how)
    made = [(r.index, n, v.tobytes()) for r in loop for n, v in r.state.items()]
    return made, [(n, v.flat.tobytes(), v.offsets.tobytes()) for n, v in sorted(engine.kept().items())]


@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_the_same_whatever_fits(fed, local, paged, name):
    expected = ending(METHODS[name](local), fed)
    assert expected[1]
    for size in (0, 3 * ROW, 10**9):
        paged(size)
        assert ending(METHODS[name](replace(local)), fed) == expected
    in_groups = replace(local, group_size=2)
    assert ending(METHODS[name](in_groups), fed, threads=3) == ending(METHODS[name](replace(in_groups)), fed)


def test_rows_cross_only_where_they_do_not_fit_or_somebody_looks(fed, local, paged):
    counts = {}
    for size in (0, 3 * ROW, 16 * ROW):  # ten clients, six of them twice until a round ends
        crossed, engine = paged(size), Local(fed, threads=1)
        for _ in rounds(Ditto(replace(local)), engine, n_rounds=6, sampler=FixedSize(6), measure=0):
            pass
        counts[size] = dict(crossed)
    assert counts[0]["up"] > counts[3 * ROW]["up"] > counts[16 * ROW].get("up", 0) == 0
    assert counts[0]["down"] == 6 * 6 * 4  # rounds, clients, parameters
    assert counts[16 * ROW].get("down", 0) == 0
    kept = engine.kept()
    assert crossed["down"] == sum(len(v.flat) for v in kept.values())
    assert all(isinstance(v.flat, np.ndarray) for v in kept.values())


@pytest.mark.parametrize("name", ["ditto", "pfedme", "local"])
def test_batches_of_the_next_round_are_drawn_ahead(fed, local, monkeypatch, name):
    """As on a GPU, where the host draws while the device works; what clients keep is added to them later."""
    method = PFedMe if name == "pfedme" else METHODS[name]
    expected, drawn, draw = ending(method(local), fed), [], Trainer._drawn
    monkeypatch.setattr(Trainer, "prefetches", True)
    monkeypatch.setattr(Trainer, "_drawn", lambda self, c, key: drawn.append(key.round) or list(draw(self, c, key)))
    assert ending(method(replace(local)), fed) == expected
    assert drawn == ([0, 0, 1, 1, 2, 2, 3, 3] if name == "ditto" else [0, 1, 2, 3])  # Ditto trains twice


def test_a_page_lives_as_long_as_the_engine_holds_it(fed, local, paged):
    paged(10**9)
    computation = Ditto(replace(local))
    engine, pager = Local(fed, threads=1), trainer_of(computation.local).pager
    seen = []
    for _ in rounds(computation, engine, n_rounds=5, sampler=FixedSize(6), measure=0):
        gc.collect()
        pager.left({})
        seen.append(pager.bytes)
    assert seen[0] == 6 * ROW
    assert seen[-1] == sum(v.flat.nbytes for v in engine.kept().values()) <= 10 * ROW
    engine.forget()
    gc.collect()
    pager.left({})
    assert pager.bytes == 0


def test_a_round_that_fails_leaves_what_was_kept(fed, local, paged):
    paged(4 * ROW)
    engine, computation = Local(fed, threads=1), Ditto(replace(local, schedule=lambda r: 1e30 if r == 2 else 1.0))
    loop = rounds(computation, engine, n_rounds=4, sampler=FixedSize(6), seed=1, measure=0)
    next(loop), next(loop)
    before = {n: v.flat.copy() for n, v in engine.kept().items()}
    with pytest.raises(FedscapeError):
        next(loop)
    assert all((v.flat == before[n]).all() for n, v in engine.kept().items())


def test_a_checkpoint_holds_numbers_and_a_run_goes_on_from_it(fed, local, paged, tmp_path):
    expected = ending(Ditto(local), fed)
    paged(4 * ROW)
    first = rounds(Ditto(replace(local)), Local(fed, threads=1), n_rounds=4, sampler=FixedSize(6), seed=1)
    next(first)
    next(first).save(tmp_path / "run.ckpt")
    method = Ditto(replace(local, keep_on_device=0.25))  # a machine with another memory may go on
    made, kept = ending(method, fed, resume=tmp_path / "run.ckpt")
    assert (made, kept) == ([each for each in expected[0] if each[0] >= 2], expected[1])


def test_pages_are_arrays_to_everybody_else(fed):
    store = Store(4)
    store.put([(np.array([1, 3]), {"z": Ragged(Pages.of(np.arange(4.0).reshape(2, 2)), np.arange(3))})])
    held = store.arrays["z"]
    assert isinstance(held.flat, Pages)
    assert held.lengths.tolist() == [0, 1, 0, 1]
    assert store.on_host["z"].flat.tolist() == [[0, 1], [2, 3]]
    again = pickle.loads(pickle.dumps(held.flat))  # noqa: S301
    assert (type(again), again.tolist()) == (np.ndarray, [[0, 1], [2, 3]])
    store.put([(np.array([0, 3]), {"z": Ragged(np.full((2, 2), 9.0), np.arange(3))})])  # an array among pages
    assert store.arrays["z"].flat.tolist() == [[9, 9], [0, 1], [9, 9]]
    store.put([(slice(0, 1), {"z": Ragged(Pages.of(np.ones((1, 2))), np.arange(2))})])
    assert store.on_host["z"].flat.tolist() == [[1, 1], [0, 1], [9, 9]]
    assert np.asarray(held.flat, dtype=np.float32).dtype == np.float32


def test_the_share_is_a_share(local):
    with pytest.raises(FedscapeError, match="keep_on_device must be a share from 0 to 1, not 2"):
        replace(local, keep_on_device=2)
    assert "keep_on_device" not in repr(local)  # runs go on whatever it is
    assert torch.equal(trainer_of(local).kept_rows(Federation({}, [0, 0]), "z", torch.ones(3)), torch.ones(1, 3))
