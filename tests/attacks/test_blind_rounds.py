"""Every Computation of the package: where releases tell nothing, its states, metrics, sizes and errors tell nothing."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from blind import outcome

from fedscape import Computation, Federation, Gaussian, rounds

sys.path.append(str(Path(__file__).parent.parent / "contract"))
from computations import computations

KINDS = [kind for kind in computations() if kind.step is not Computation.step and not kind.reveals]
CHANGES = ("broken rows", "fewer rows")


def changed(fed: Federation, how: str) -> Federation:
    """The same clients with other rows; names, types and shapes of columns stay, as they are declared."""
    rng = np.random.default_rng(1)
    if how == "fewer rows":
        return fed.where(rng.random(fed.n_rows) < 0.5).take(slice(0, max(1, len(fed) - 3)))
    columns = {}
    for name, values in fed.columns.items():
        other = values[rng.permutation(len(values))].copy()
        if len(other) and other.dtype.kind in "fi":
            whole = other.dtype.kind == "i"
            bad = [-1, np.iinfo(other.dtype).max, 0] if whole else [np.nan, np.inf, -np.finfo(other.dtype).max, 0.0]
            for value in bad:
                other[rng.integers(0, len(other), 2)] = value
        columns[name] = other
    return Federation(columns, fed.offsets, fed.ids, names=fed.names)


def two_rounds(computation: Computation, fed: Federation) -> list[object]:
    privacy = Gaussian(clip=1.0, multiplier=2.0)
    loop = rounds(computation, fed, n_rounds=2, privacy=privacy, measure_privacy=privacy)
    seen = [[dict(r.state), dict(r.metrics), r.clients, r.abandoned, r.bytes_down, r.bytes_up] for r in loop]
    return [seen, loop.guard.ledger]


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__.rsplit('.')[-1]}.{kind.__name__}")
def test_a_round_follows_its_release_and_nothing_else(kind, how, monkeypatch):
    try:
        examples = kind.examples()
    except IndexError:
        examples = []
    for computation, fed in examples[:1]:
        plain = outcome(monkeypatch, partial(two_rounds, computation, fed), 3.0)
        assert outcome(monkeypatch, partial(two_rounds, computation, changed(fed, how)), 3.0) == plain
