"""Rows outside the domain that a computation declares: under a release nobody outside can tell that they are there."""

from __future__ import annotations

import computations as found
import numpy as np
import pytest

from fedscape import Computation, Federation, Gaussian, Key, Moments, rounds
from fedscape.errors import DataError, EngineError

CASES = [pytest.param(c, f, id=name) for name, c, f in found.examples() if type(c).__name__ == name.split("-")[0]]
BAD = {"f": (np.nan, np.inf, -np.inf, -1.0, 0.5, 1e9), "i": (-1, 10**9, 2**40), "u": (), "b": ()}


def refused(computation: Computation, state, row: Federation) -> bool:
    """Whether a client with this row alone is refused, or would send what is no number."""
    with np.errstate(all="ignore"):
        try:
            sent, _ = computation.step(computation.prepare(state), row, Key(0, 0))
        except (DataError, EngineError, IndexError, RuntimeError, ValueError):
            return True
    return not all(np.isfinite(np.asarray(v, dtype=float)).all() for v in sent.values())


def one_row(fed: Federation, row: int, column: str, value: float) -> Federation:
    columns = {name: values[[row]].copy() for name, values in fed.columns.items()}
    np.put(columns[column], 0, value)
    return Federation(columns, [0, 1], fed.ids[:1], names=fed.names)


def bad_rows(computation: Computation, state, fed: Federation) -> list[Federation]:
    """Rows that the computation refuses; what it takes is in its domain."""
    rows = []
    for column, values in fed.columns.items():
        ends = () if values.dtype.kind not in "iu" else (int(values.max()) + 1,)
        for value in (*BAD.get(values.dtype.kind, ()), *ends):
            if values.dtype.kind in "iu" and value > np.iinfo(values.dtype).max:
                continue
            row = one_row(fed, 0, column, value)
            valid = computation.valid_rows(computation.prepare(state), row)
            if refused(computation, state, row):
                assert valid is not None, f"{value} in {column!r} is refused, and not left out"
                assert not valid.any(), f"{value} in {column!r} is refused, and not left out"
                rows.append(row)
            else:
                assert valid is None or valid.all(), f"{value} in {column!r} is taken, and left out"
    return rows


def with_rows(fed: Federation, rows: list[Federation]) -> Federation:
    """The same clients, some of whom have one of these rows more: at the beginning, inside or at the end."""
    rng = np.random.default_rng(0)
    who = rng.integers(0, len(fed), 2 * len(rows))
    place = fed.offsets[who] + (rng.random(len(who)) * (fed.sizes[who] + 1)).astype(int)
    owner = np.insert(fed.client_of_row, place, who)
    columns = {
        name: np.insert(values, place, np.concatenate([row[name] for row in rows] * 2), axis=0)
        for name, values in fed.columns.items()
    }
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(fed)))))
    return Federation(columns, offsets, fed.ids, names=fed.names)


def released(computation: Computation, fed: Federation):
    place = "local" if computation.reveals else "central"
    privacy = Gaussian(clip=1e3, multiplier=1e-3, noise_seed=1, place=place)
    return next(rounds(computation, fed, n_rounds=1, allow=computation.reveals, privacy=privacy, measure=0)).state


@pytest.mark.parametrize(("computation", "fed"), CASES)
def test_rows_outside_the_domain_leave_no_trace(computation, fed):
    state = computation.start(0)
    forms = [fed]
    for name, values in fed.columns.items():
        if values.dtype.kind == "i" and name not in fed.names:  # whole numbers of which some are missing are floats
            forms.append(fed.with_column(name, values.astype(float)))
    for form in forms:
        if refused(computation, state, form):
            continue
        rows = bad_rows(computation, state, form)
        if rows:
            clean, poisoned = released(computation, form), released(computation, with_rows(form, rows))
            assert {n: v.shape for n, v in clean.items()} == {n: v.shape for n, v in poisoned.items()}
            for name, values in clean.items():
                np.testing.assert_allclose(poisoned[name], values, rtol=1e-9, atol=1e-9, err_msg=name)


def test_without_a_release_they_are_refused():
    for computation, fed in Moments.examples()[:1]:
        bad = bad_rows(computation, computation.start(0), fed)
        assert bad
        with pytest.raises(DataError, match="NaN or infinity in row"):
            next(rounds(computation, with_rows(fed, bad[:1]), n_rounds=1))
