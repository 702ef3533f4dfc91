"""Rehearsal of a request on a client with one row of zeros, before any real row is read."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedscape.core.blocks import Reply, broadcast, own_row_numbers, own_rows
from fedscape.core.computation import Computation, sent_and_kept
from fedscape.core.engine import Local
from fedscape.core.federation import Federation
from fedscape.core.kernel import uncompiled
from fedscape.core.random import Key
from fedscape.engines.flower.terms import Terms
from fedscape.engines.flower.wire import Unreadable
from fedscape.errors import DataError, NotFittedError, PrivacyError
from fedscape.privacy.release import Release
from fedscape.types import Arrays

Shapes = dict[str, tuple[int, ...]]

_FEW = 20_000  # numbers that plain Python handles in the second or two in which the compiler loads


@dataclass(frozen=True)
class Request:
    """A request that was read and checked."""

    digest: str
    header: dict[str, Any]
    state: Arrays
    cohort: Any
    computation: Computation
    question: bytes = b""  # digest of what every node is asked

    @property
    def run(self) -> str:
        return str(self.header["run"])

    @property
    def number(self) -> int:
        return int(self.header["number"])


def ask(node: Local, request: Request, where: Any, key: Key, release: Release | None, metrics: Release | None) -> Reply:
    """Run the step on these clients of the node."""
    return node.run(
        request.computation,
        request.state,
        where,
        key,
        measure=bool(request.header["measure"]),
        release=release,
        measure_release=metrics,
    )


@dataclass(frozen=True)
class Rehearsed:
    """The form of an answer, from a client with one row of zeros: under a release every answer has it."""

    forms: tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]
    grids: tuple[dict[str, float], dict[str, float]]
    keeps: bool
    narrow_row: bool  # whether a client's row takes fewer bytes than its sum: float32 and float64

    def check(self, reply: Reply, computation: Computation, release: Release | None, metrics: Release | None) -> None:
        forms = _forms(reply, computation)
        for i, each in enumerate((release, metrics)):
            if each is None:
                continue
            grids = dict(each.grids) if each.privacy.place != "distributed" else dict(self.grids[i])
            if forms[i] != self.forms[i] or grids != self.grids[i]:
                raise DataError(f"the answer has the form {forms[i]}, not {self.forms[i]}, which would tell about rows")


def _forms(reply: Reply, computation: Computation) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    rows = {*computation.reveals, "ids"}
    total = {n: np.shape(v)[1:] if n in rows else np.shape(v) for n, v in reply.total.items()}
    return total, {n: np.shape(v) for n, v in reply.metrics.items()}


def rehearse(
    request: Request, nobody: Local, release: Release | None, metrics: Release | None, terms: Terms
) -> Rehearsed:
    """Run the step on a client with one row of zeros, to detect a state that does not fit or too large an answer.

    It runs in plain Python, which checks bounds: compiled loops would read and write past the end of an array.
    """
    silent = _without_noise(release), _without_noise(metrics)
    try:
        with uncompiled():
            clients = _in_domain(request, nobody.federation)
            row = _step_unsheltered(request, clients)
            if clients.n_rows < nobody.federation.n_rows:
                nobody = Local(clients, threads=1)
            reply = ask(nobody, request, np.arange(1), Key(0), *silent)
    except (PrivacyError, MemoryError):
        raise
    except Exception as error:
        raise Unreadable(f"a state that does not fit the computation ({type(error).__name__})") from None
    if sum(int(np.prod(v.shape)) for v in (*reply.total.values(), *reply.metrics.values())) > terms.numbers:
        raise Unreadable("a computation that sends more than the owner allows")
    grids = tuple({} if each is None else dict(each.grids) for each in silent)
    forms, keeps = _forms(reply, request.computation), bool(nobody.kept())
    return Rehearsed(forms, (grids[0], grids[1]), keeps, _is_narrow(row, reply.total))


def _is_narrow(row: Arrays, total: Arrays) -> bool:
    """Whether floats of a row take fewer bytes than those of its sum; whole numbers count in the wider type."""
    pairs = [(np.asarray(values), total[name]) for name, values in row.items() if name in total]
    if any(values.dtype.kind != "f" and values.nbytes != sums.nbytes for values, sums in pairs):
        return False
    return sum(values.nbytes for values, _ in pairs) < sum(sums.nbytes for _, sums in pairs)


def by_row(request: Request) -> Request:
    """The same request for one client, answered with its row of `step`: there is nothing to add."""
    twin = copy.copy(request.computation)
    twin.__dict__["total"] = lambda state, clients, key: None
    return replace(request, computation=twin)


def _step_unsheltered(request: Request, nobody: Federation) -> Arrays:
    """Run the step without hiding errors: under a release an engine hides them, also a read past an array's end."""
    computation, sent = request.computation, broadcast(request.state)
    state, own = computation.prepare(sent), own_row_numbers(sent, nobody)
    mine = state if own is None else own_rows(state, own)
    sent, _ = sent_and_kept(computation, computation.step(mine, nobody, Key(0)))
    if request.header["measure"]:
        computation.measure(mine, nobody)
    return sent


def _in_domain(request: Request, nobody: Federation) -> Federation:
    """The client without its row if zeros are outside the computation's declared domain, as for a gamma law."""
    valid = request.computation.valid_rows(request.computation.prepare(broadcast(request.state)), nobody)
    return nobody if valid is None or valid.all() else nobody.where(valid)


def nobody_like(fed: Federation) -> Federation:
    """A client with one row of zeros: it has the names and types of the columns, but no values."""
    zeros = {name: np.zeros((1, *v.shape[1:]), dtype=v.dtype) for name, v in fed.columns.items()}
    names = {name: texts if fed[name].ndim > 1 else ("nobody",) for name, texts in fed.names.items()}
    return Federation(zeros, [0, 1], ids=["nobody"], names=names)


def is_few(computation: Computation, fed: Federation, cohort: Any) -> bool:
    """Whether the data are so small that loading the compiler takes longer than running without it."""
    column = getattr(computation, "column", None)
    columns = [fed[column]] if isinstance(column, str) and column in fed else list(fed.columns.values())
    width = max((int(np.prod(values.shape[1:])) for values in columns), default=1)
    return width * int(fed.sizes[cohort].sum()) <= _FEW


def _without_noise(release: Release | None) -> Release | None:
    """The same clipping with central noise, of which clients add none."""
    return None if release is None else replace(release, privacy=replace(release.privacy, place="central"))


def within(values: Any, largest: float) -> bool:
    """Whether no absolute value is larger."""
    return -largest <= float(values.min()) and float(values.max()) <= largest  # the least int64 has no absolute value


def first_shapes(computation: Computation) -> Shapes:
    """The shapes of the computation's first state."""
    try:
        first = computation.start(0)
    except (NotFittedError, DataError):  # it depends on data that only the server has
        return {}
    return {name: np.shape(values) for name, values in first.items() if not name.startswith("of_client.")}


def check_shapes(wanted: Shapes, state: Arrays) -> None:
    """Check arrays against the shapes of the first state: compiled loops do not check bounds.

    A length of 0 there is filled by data later. A node computes look-up tables itself.
    """
    if any(name.startswith("table.") for name in state):
        raise Unreadable("a state with look-up tables of the server's")
    for name in wanted.keys() & state.keys():
        first, now = wanted[name], state[name].shape
        alike = len(first) == len(now) and all(a in (b, 0) for a, b in zip(first, now, strict=True))
        if not alike or state[name].dtype.kind not in "fiub":
            raise Unreadable("a state of other shapes than the computation's")
