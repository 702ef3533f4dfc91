"""Replies of nodes: read, compared, added."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedscape.core import codec
from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Reply, bytes_down, sum_type
from fedscape.core.random import client_keys
from fedscape.engines.flower import wire
from fedscape.engines.flower.wire import Away, Unreadable, one_line
from fedscape.errors import EngineError
from fedscape.privacy.release import INSIDE, Release
from fedscape.types import Array, Arrays

#: Kinds of faults of a node in a round, as counted in `faults`.
FAULTS = ("missing", "failed", "refused", "corrupt", "late", "duplicate")


@dataclass(frozen=True)
class Roster:
    """All clients and the node of each, in the order of the clients' ids."""

    ids: Array
    nodes: Array  # [clients]: index in `node_ids`
    node_ids: tuple[int, ...]  # in the order of their first clients
    keys: Array

    @classmethod
    def of(cls, ids_of_nodes: Mapping[int, Array]) -> Roster:
        """The roster from the ids that each node reports."""
        holding = {node: ids for node, ids in ids_of_nodes.items() if len(ids)}
        if not holding:
            raise EngineError("no node holds a client")
        if len({ids.dtype.kind in "iu" for ids in holding.values()}) > 1:
            raise EngineError(
                "some nodes name their clients by numbers and some by texts: agree on one, by client= of their data"
            )
        order = sorted(holding, key=lambda node: min(holding[node].tolist()))
        ids = np.concatenate([holding[node] for node in order])
        nodes = np.repeat(np.arange(len(order)), [len(holding[node]) for node in order])
        rank = np.argsort(ids, kind="stable")
        twice = ids[rank][1:] == ids[rank][:-1]
        if twice.any():
            whom = one_line(ids[rank][1:][twice][0])
            raise EngineError(f"two nodes claim the client {whom}: ids must differ")
        return cls(ids[rank], nodes[rank], tuple(order), client_keys(ids[rank]))


@dataclass
class Asked:
    """One node's part in a round."""

    place: int  # index among the roster's nodes
    clients: Array  # positions
    blob: bytes
    answer: Answer | None = None
    fault: str = "missing"
    reason: str = ""
    away: bool = False  # the node reported it: do not ask again in this round


@dataclass(frozen=True)
class Answer:
    """A reply that was read and checked."""

    total: Arrays
    metrics: Arrays
    ids: Array | None
    keeps: bool
    grids: dict[str, float]
    measure_grids: dict[str, float]
    bytes_up: int
    masked: Array | None = None  # words modulo 2^64 instead of sums
    form: Any = None  # of the arrays in them
    seal: Mapping[str, Any] = field(default_factory=dict)  # the mask's seed, for a second server


class Refused(Exception):
    """The node refuses."""


def header_of(one: Asked, blob: bytes) -> tuple[Arrays, dict[str, Any]]:
    """A node's arrays and header, if they answer this request and are not a refusal."""
    arrays, header = wire.read(blob)
    if header.get("request") != wire.digest(one.blob):
        raise Unreadable("to another request")
    if "away" in header:
        raise Away("it cannot answer in this run, its own log says why")
    if "refused" in header:
        raise Refused(one_line(header["refused"]))
    return arrays, header


def read_answer(
    one: Asked,
    ids_asked: Array,
    blob: bytes,
    reveals: frozenset[str],
    release: Release | None,
    metrics: Release | None,
) -> Answer:
    """Read an answer; it must be to this request, from these clients, finite, and clipped where required."""
    arrays, header = header_of(one, blob)
    total, measured = codec.prefixed(arrays, "total/"), codec.prefixed(arrays, "metrics/")
    ids = total.pop("ids", None)
    if header.get("clients") != len(one.clients):
        raise Unreadable("from another number of clients than asked")
    _check_ids(ids, ids_asked, reveals)
    if not reveals <= set(total):
        raise Unreadable("without a row for each client")
    for name, values in (*total.items(), *measured.items()):
        if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            raise Unreadable("not made of finite numbers")
        if name in reveals and (values.ndim < 1 or len(values) != len(one.clients)):
            raise Unreadable("without a row for each client")
    grids: list[dict[str, float]] = []
    for each, name, numbers in ((release, "grids", total), (metrics, "measure_grids", measured)):
        declared = header.get(name, {}) if each is not None else {}
        if each is not None:
            whole = all(v.dtype == np.int64 for v in numbers.values())
            if not whole or not isinstance(declared, dict) or set(declared) != set(numbers) - {INSIDE}:
                raise Unreadable("not clipped")
            each.take_grids(declared)
            each.check_sum(numbers, len(one.clients))
        grids.append(declared)
    up = sum(values.nbytes for values in (*total.values(), *measured.values()))
    total = {name: values.astype(sum_type(values), copy=False) for name, values in total.items()}
    return Answer(total, measured, ids, bool(header.get("keeps")), grids[0], grids[1], up)


def _check_ids(ids: Array | None, expected: Array, reveals: frozenset[str]) -> None:
    if not reveals and ids is not None:
        raise Unreadable("with ids where nothing is shown client by client")
    if reveals and (ids is None or ids.ndim != 1 or ids.dtype.kind not in "iuU"):
        raise Unreadable("without ids")
    if ids is not None and not np.array_equal(np.sort(ids), expected):
        raise Unreadable("from other clients than asked")


def agree(requests: Iterable[Asked], reveals: frozenset[str]) -> None:
    """Answers must agree in names, dtypes and shapes; those that differ from the majority are left out."""
    forms: dict[Any, list[Asked]] = {}
    for one in requests:
        if one.answer is not None:
            forms.setdefault(_form(one.answer, reveals), []).append(one)
    if len(forms) < 2:
        return
    most, second = sorted(forms.values(), key=len, reverse=True)[:2]
    if len(most) == len(second):
        raise EngineError(
            f"{len(most)} nodes answer in one form and {len(second)} in another: there is no majority; "
            "do their data have the same columns and categories?"
        )
    for others in forms.values():
        if others is not most:
            for one in others:
                one.answer, one.fault, one.reason = None, "corrupt", "its answer has other arrays than the other nodes'"


def _form(answer: Answer, reveals: frozenset[str]) -> Any:
    shapes = {name: v.shape[1:] if name in reveals else v.shape for name, v in answer.total.items()}
    total = [(name, v.dtype.kind in "biu", shapes[name]) for name, v in sorted(answer.total.items())]
    metrics = [(name, v.shape) for name, v in sorted(answer.metrics.items())]
    return repr((total, metrics, sorted(answer.grids.items()), sorted(answer.measure_grids.items()), answer.form))


def added(answers: Sequence[Answer], reveals: frozenset[str]) -> tuple[Arrays, Arrays]:
    """Sums of totals and metrics in this order; revealed arrays as rows, in the order of ids."""
    total: Arrays = {}
    metrics: Arrays = {}
    for answer in answers:
        for sums, new in ((total, answer.total), (metrics, answer.metrics)):
            for name, values in new.items():
                if name not in reveals:
                    sums[name] = sums[name] + values if name in sums else values
    ids = [answer.ids for answer in answers if answer.ids is not None]
    if ids:
        order = np.argsort(np.concatenate(ids), kind="stable")
        total["ids"] = np.concatenate(ids)[order]
        total |= {name: np.concatenate([answer.total[name] for answer in answers])[order] for name in reveals}
    return total, metrics


def summed(
    answered: Sequence[Asked],
    keys: Array,
    cohort_size: int,
    sent: Arrays,
    faults: Mapping[str, int],
    reveals: frozenset[str],
    releases: tuple[Release | None, Release | None],
) -> Reply:
    """The reply of the clients with these keys, of `cohort_size` in the cohort: answers in the order of nodes."""
    answers = [one.answer for one in answered if one.answer is not None]
    for release, grids in zip(releases, (answers[0].grids, answers[0].measure_grids), strict=True):
        if release is not None:
            release.take_grids(grids)  # the majority's
    total, metrics = added(answers, reveals)
    total["clients"] = np.asarray(len(keys))
    absent = "" if len(keys) == cohort_size else hashlib.sha256(keys.tobytes()).hexdigest()
    up = max(answer.bytes_up for answer in answers)
    return Reply(total, metrics, len(keys), bytes_down(sent), up, absent, faults)


def joined(before: Mapping[str, int], faults: Mapping[str, int]) -> dict[str, int]:
    """The faults of two exchanges together, without zero counts."""
    return {name: n for name in FAULTS if (n := before.get(name, 0) + faults.get(name, 0))}


def whole(values: Array) -> Ragged:
    """One row of these values."""
    return Ragged(values, np.array([0, len(values)]))
