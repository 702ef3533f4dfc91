"""One client, over a whole fit: no release of it moves by more than a clip, whatever the releases before have said.

Clips are tested round by round elsewhere. Here what clients keep, draw and count between the rounds takes part.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import torch
from blind import moved, sums_of
from test_blind_fits import FITS, PRIVACY, N, people

from fedscape import DataError, Federation, Gaussian, Local, LocalSGD, rounds
from fedscape.learning import cross_entropy
from fedscape.methods import METHODS, Options, check_private, make

NOT_ALLOWED = ("TreeAttributions by region", "CoxRegression")  # refused, or ends early


@pytest.mark.parametrize("gone", [0, 17, N - 1])
@pytest.mark.parametrize("name", [name for name in FITS if name not in NOT_ALLOWED])
def test_a_client_less_moves_every_release_by_a_clip_at_most(name, gone, monkeypatch):
    fed = people(0)
    fewer = fed.take(np.delete(np.arange(N), gone))
    both = [sums_of(monkeypatch, lambda f=f: FITS[name](f, {"privacy": PRIVACY})) for f in (fed, fewer)]
    assert len(both[0]) == len(both[1]) > 0
    for one, other in zip(*both, strict=True):
        assert moved(one, other) <= 1 + 1e-9
        assert one["clients"] - other["clients"] in (0, 1)
    if name != "Profiles" and "labels" not in name:
        assert max(moved(one, other) for one, other in zip(*both, strict=True)) > 0


def private_methods() -> list[str]:
    """Every method of `fedscape.methods` that trains a network and can be private."""
    names = []
    for name, method in METHODS.items():
        with suppress(DataError):
            check_private(method)
            names += [name] if method.family != "tabular" else []
    return names


@pytest.mark.parametrize("name", private_methods())
def test_a_client_less_moves_every_round_of_a_training_by_a_clip_at_most(name, monkeypatch):
    """Also of methods whose clients keep models, corrections or groups, and where those would be of others."""
    rng, n = np.random.default_rng(0), 72
    columns = {"x": rng.normal(size=(n, 3)).astype(np.float32), "y": rng.integers(0, 3, n)}
    fed = Federation(columns, np.arange(0, n + 1, 6)).declare("y", ["a", "b", "c"])
    body = [torch.nn.Linear(3, 4), torch.nn.GroupNorm(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)]
    step = LocalSGD(
        torch.nn.Sequential(*body), cross_entropy, lr=0.5, epochs=1, batch_size=3, proximal=0.1 * (name == "fedprox")
    )

    def run(clients):
        options = Options(engine=Local(clients), private=True, weighting="equal", modes=2, period=4.0)
        method, privacy = make(name, step, options), Gaussian(clip=1.0, multiplier=1.0)
        if hasattr(method, "under"):
            method, privacy = method.under(privacy)
        return lambda: list(rounds(method, clients, n_rounds=3, privacy=privacy))

    whole = sums_of(monkeypatch, run(fed), 1.0)
    for gone in (0, 7):
        fewer = sums_of(monkeypatch, run(fed.take(np.delete(np.arange(12), gone))), 1.0)
        assert max(moved(one, other) for one, other in zip(whole, fewer, strict=True)) <= 1 + 1e-6
