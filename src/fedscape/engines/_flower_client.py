"""The side of a node: what is asked of it, whether it may be answered, and the answer."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedscape import checkpoint
from fedscape.computation import Arrays, Computation
from fedscape.engine import Local, Reply, on_host
from fedscape.engines import _wire
from fedscape.engines._flwr import ClientApp, Context, Message
from fedscape.engines._memory import bounded
from fedscape.engines._node import Folder
from fedscape.engines._wire import Unreadable
from fedscape.errors import DataError, NotFittedError, PrivacyError
from fedscape.federation import Federation
from fedscape.kernel import uncompiled
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import PLACES
from fedscape.privacy.release import Release
from fedscape.random import Key
from fedscape.sampling import All

Shapes = dict[str, tuple[int, ...]]

_MEMORY = 2**28  # bytes that a computation may take besides the numbers of its state and its answer
_FEW = 20_000  # numbers that plain Python gets through in the second or two that the compiler takes to load

#: How a node's ledger calls a contribution that leaves without noise of its own.
UNNOISED = "protected only by the server"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On which terms the owner of a node lets it answer.

    Parameters
    ----------
    epsilon, delta
        The budget of each (unit, relation, place) in the node's own ledger; None only writes down. A round counts as if
        the node always took part. For noise at the place "local" the node itself sees to it. For "central" and
        "distributed" the server's word is taken - that it adds the noise, that there are other clients - and a server
        that lies learns the clipped sums exactly.
    unnoised
        How many answers may leave to which nobody promises any noise; None is any number, 0 is none.
    places
        Where noise may be added; ("local",) with unnoised=0 needs no trust in the server.
    parts
        Over how many clients distributed noise may be split at most: each adds the share of one.
    reveals
        The names of arrays that the server may see client by client.
    numbers
        The most numbers that a request may bring or an answer take; on Linux also, at 32 bytes each, what may be
        allocated before any row is read.
    largest
        The largest number, in size, that a request may bring.

    >>> Terms(epsilon=2.0).delta
    1e-06
    """

    epsilon: float | None = None
    delta: float = 1e-6
    unnoised: int | None = None
    places: tuple[str, ...] = PLACES
    parts: int = 1000
    reveals: tuple[str, ...] = ()
    numbers: int = 10**8
    largest: float = 1e15

    def __post_init__(self) -> None:
        if (self.unnoised is not None and self.unnoised < 0) or self.numbers < 1 or not self.largest > 0:
            raise DataError(f"terms must not be negative, and numbers and largest positive: {self}")
        if not set(self.places) <= set(PLACES) or self.parts < 1:
            raise DataError(f"places must be among {PLACES} and parts at least 1, not {self.places} and {self.parts}")


@dataclass(frozen=True)
class _Request:
    """A request that was read and checked."""

    digest: str
    header: dict[str, Any]
    state: Arrays
    cohort: Any
    computation: Computation

    @property
    def run(self) -> str:
        return str(self.header["run"])

    @property
    def number(self) -> int:
        return int(self.header["number"])


def client_app(
    load: Callable[[Any], Federation],
    *,
    folder: str | os.PathLike[str] | Callable[[Any], str | os.PathLike[str]] | None = None,
    computations: Sequence[Computation] = (),
    terms: Terms | None = None,
) -> Any:
    """A Flower ClientApp that answers computations by name.

    It answers those on fedscape's own list, rebuilt from numbers, texts and arrays; and those that the owner supplies
    here, whose models and losses are the owner's own code. Nothing that is sent is ever executed.

    Parameters
    ----------
    load
        From Flower's context (`context.node_config`) to the clients of this node: one or many.
    folder
        Where the node keeps its files, or a function of the context; by default `folder` of the node's config.
    computations
        What the owner supplies: `FedAvg(LocalSGD(model, ...))` and the like, with the server's parameters.
    terms
        The owner's terms.

    >>> app = client_app(lambda context: Federation({"y": [0, 1]}, [0, 2]), folder="node")
    >>> type(app).__name__
    'ClientApp'
    """
    app = ClientApp()
    owner = _Owner(load, tuple(computations), terms or Terms())

    def answer(message: Any, context: Any) -> Any:
        where = folder(context) if callable(folder) else folder
        path = where or context.node_config.get("folder")
        if not path:
            raise DataError("a node needs a folder of its own: --node-config 'folder=\"/var/lib/fedscape\"'")
        blob = owner.answer(message.content, context, Folder(str(path)))
        return Message(_wire.enclose(blob), reply_to=message)

    # Flower inspects the annotations of what it registers
    answer.__annotations__ = {"message": Message, "context": Context, "return": Message}
    app.query(_wire.ACTION)(answer)
    return app


class _Owner:
    """Answers requests on the terms of the node's owner."""

    def __init__(self, load: Callable[[Any], Federation], computations: tuple[Computation, ...], terms: Terms) -> None:
        self.load, self.computations, self.terms = load, computations, terms
        self.shapes: dict[str, Shapes] = {}  # of the last computation's first state
        self.steps = 0  # of this process: on a real node there is one for every message

    def answer(self, content: Any, context: Any, folder: Folder) -> bytes:
        """The reply; a refusal says why in words made here, and the rest stays in the node's log."""
        request = ""
        try:
            blob = _wire.disclose(content, 16 * self.terms.numbers)
            request = _wire.digest(blob)
            arrays, header = _wire.read(blob)
            if header.get("op") == "who":
                return self._who(context, request)
            with folder.alone():
                with self._bounded():
                    checked = self._checked(arrays, header, request)
                return self._run(checked, _wire.order_of(content), context, folder)
        except Unreadable as refusal:
            folder.log(f"refused request {request[:16]}: {refusal}")
            return _refusal(request, f"refused: it is {refusal}")
        except PrivacyError as error:
            folder.log(f"refused request {request[:16]}: {error}")
            return _refusal(request, "refused: it is beyond the budget, or not a release this node can make")
        except Exception as error:  # whatever happens, its text may hold data and must not leave
            folder.log(f"request {request[:16]} failed: {type(error).__name__}: {error}")
            return _refusal(request, f"failed: {type(error).__name__}; the node's log says more")

    def _who(self, context: Any, request: str) -> bytes:
        return _packed({"ids": self._load(context).ids}, request)

    def _load(self, context: Any) -> Federation:
        fed = self.load(context)
        if not isinstance(fed, Federation):
            raise DataError(f"load(context) must return a Federation, not {type(fed).__name__}")
        return fed

    def _run(self, request: _Request, order: _wire.Order, context: Any, folder: Folder) -> bytes:
        header, digest = request.header, request.digest
        known = folder.replied(request.run, request.number, digest)
        if known is not None:
            return known
        kept, gone = folder.go_back(request.run, int(header["closed"]), order)
        # a key for this answer alone: what it is computed from, the rows and what clients keep, is not in the request
        key, other = os.urandom(32), os.urandom(32)
        booked = hashlib.sha256(digest.encode() + key).hexdigest()
        state = request.state
        release = _wire.release_read(header["release"], key, request.computation, state)
        metrics = _wire.release_read(header["measure_release"], other, request.computation, state)
        for made in (release, metrics):
            self._check_place(made)
        node = Local(self._load(context), threads=1)
        node.restore(kept)
        where = node.federation.positions(request.cohort)
        node.by_rows = len(where) == 1
        first, self.steps = self.steps == 0, self.steps + 1
        with self._bounded():
            self._rehearse(request, node, release, metrics)
        self._write_down(request, booked, release, metrics, folder)
        with uncompiled() if first and _few(request.computation, node.federation, where) else contextlib.nullcontext():
            reply = node.run(
                request.computation,
                state,
                where,
                Key(*header["key"]),
                measure=bool(header["measure"]),
                release=release,
                measure_release=metrics,
            )
        left = node.kept()
        answer = _reply(reply, digest, keeps=bool(left), release=release, metrics=metrics)
        folder.store(request.run, request.number, kept=left, request=digest, reply=answer, order=order, gone=gone)
        return answer

    @contextlib.contextmanager
    def _bounded(self) -> Iterator[None]:
        """What the server asks for is made within it: a few bytes can ask for any amount of memory."""
        try:
            with bounded(_MEMORY + 32 * self.terms.numbers):
                yield
        except MemoryError:
            raise Unreadable("a computation that takes more memory than the owner allows") from None

    # -- before any work -----------------------------------------------------------------------------------------------

    def _checked(self, arrays: Arrays, header: dict[str, Any], digest: str) -> _Request:
        state, cohort = _wire.prefixed(arrays, "state/"), arrays.get("cohort")
        if sum(values.size for values in arrays.values()) > self.terms.numbers:
            raise Unreadable("larger than the owner allows")
        for values in state.values():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise Unreadable("a state with NaN or infinity")
            if values.dtype.kind in "fiu" and values.size and not _within(values, self.terms.largest):
                raise Unreadable("a state with numbers beyond the owner's range")
        try:
            key, number, closed = header["key"], header["number"], header["closed"]
            Key(*key)
            numbers = all(isinstance(n, int) and not isinstance(n, bool) for n in (number, closed))
            several = cohort is not None and cohort.ndim == 1 and 0 < len(cohort) == len(np.unique(cohort))
            if not numbers or not -1 <= closed < number or not several:
                raise Unreadable("without a round, or a cohort in which each client is once")
            computation = _wire.rebuilt(header["computation"], self.computations)
        except (KeyError, TypeError, DataError):
            raise Unreadable("not a request of a round") from None
        name = computation.digest()
        if name not in self.shapes:
            self.shapes = {name: _first_shapes(computation)}
        _check_shapes(self.shapes[name], state)
        if not set(computation.reveals) <= set(self.terms.reveals):
            raise Unreadable("a computation that shows client by client what the owner does not")
        return _Request(digest, header, state, cohort, computation)

    def _check_place(self, release: Release | None) -> None:
        if release is None:
            return
        if release.privacy.place not in self.terms.places:
            raise Unreadable("a release with noise at a place that the owner does not accept")
        if release.privacy.place == "distributed" and release.min_clients > self.terms.parts:
            raise Unreadable("a release with noise in more parts than the owner accepts")

    def _rehearse(self, request: _Request, node: Local, release: Release | None, metrics: Release | None) -> None:
        """Let a client with one row of zeros take the step: a state that does not fit, or too large an answer, shows.

        In plain Python, which looks where it reads: compiled loops would read and write beyond the end of an array.
        """
        fed = node.federation
        zeros = {name: np.zeros((1, *v.shape[1:]), dtype=v.dtype) for name, v in fed.columns.items()}
        nobody = Federation(zeros, [0, 1], ids=["nobody"], names=fed.names)
        try:
            with uncompiled():
                alone = Local(nobody, threads=1)
                alone.by_rows = node.by_rows
                reply = alone.run(
                    request.computation,
                    request.state,
                    np.arange(1),
                    Key(0),
                    measure=bool(request.header["measure"]),
                    release=_without_noise(release),
                    measure_release=_without_noise(metrics),
                )
        except (PrivacyError, MemoryError):
            raise
        except Exception as error:
            raise Unreadable(f"a state that does not fit the computation ({type(error).__name__})") from None
        if sum(int(np.prod(v.shape)) for v in (*reply.total.values(), *reply.metrics.values())) > self.terms.numbers:
            raise Unreadable("a computation that sends more than the owner allows")

    def _write_down(
        self, request: _Request, booked: str, release: Release | None, metrics: Release | None, folder: Folder
    ) -> None:
        """Enter what is about to leave, or refuse; an answer that is lost before it is stored counts all the same."""
        ledger = Ledger(folder.ledger, epsilon=self.terms.epsilon, delta=self.terms.delta)
        index = int(request.header["key"][1])
        plain = release is None or (bool(request.header["measure"]) and metrics is None)
        if plain:
            self._count_unnoised(ledger)
            ledger.note(f"no noise: {UNNOISED}", run=request.run, round_=index, digest=booked)
        for kind, made in (("sum", release), ("metrics", metrics)):
            if made is not None:
                self._enter(ledger, request, booked, kind, made)

    def _count_unnoised(self, ledger: Ledger) -> None:
        past = sum(line["kind"] == "note" for line in ledger.entries())
        if self.terms.unnoised is not None and past >= self.terms.unnoised:
            raise Unreadable("one more answer without noise than the owner allows")

    def _enter(self, ledger: Ledger, request: _Request, booked: str, kind: str, release: Release) -> None:
        index = int(request.header["key"][1])
        for name, entry in release.privacy.entries(All(), 1).items():
            if release.privacy.place == "central":
                entry["note"] = UNNOISED
            elif release.privacy.place == "distributed":  # that there are so many is the server's word
                entry["note"] = f"protected if {release.min_clients} clients add their part of the noise"
            about = json.dumps([kind, name, entry], sort_keys=True)
            run = hashlib.sha256(f"{request.run} {about}".encode()).hexdigest()[:16]
            ledger.reserve(run, {f"{kind} {name}": entry}, 1, begin=index)
            ledger.release(run, index, f"{kind} {name}", booked)


def _within(values: Any, largest: float) -> bool:
    return -largest <= float(values.min()) and float(values.max()) <= largest  # the least int64 has no absolute value


def _few(computation: Computation, fed: Federation, cohort: Any) -> bool:
    """Whether so few numbers are read that loading the compiler takes longer than doing without it."""
    column = getattr(computation, "column", None)
    columns = [fed[column]] if isinstance(column, str) and column in fed else list(fed.columns.values())
    width = max((int(np.prod(values.shape[1:])) for values in columns), default=1)
    return width * int(fed.sizes[cohort].sum()) <= _FEW


def _without_noise(release: Release | None) -> Release | None:
    """The same clipping; where the noise is central, clients add none."""
    return None if release is None else replace(release, privacy=replace(release.privacy, place="central"))


def _first_shapes(computation: Computation) -> Shapes:
    """The shapes of the computation's first state."""
    try:
        first = computation.start(0)
    except (NotFittedError, DataError):  # it is made of what only the server knows
        return {}
    return {name: np.shape(values) for name, values in first.items() if not name.startswith("of_client.")}


def _check_shapes(wanted: Shapes, state: Arrays) -> None:
    """Arrays must have the shapes of the first state: compiled loops do not look where they read.

    A length of 0 there is a place that data fill later. Look-up tables a node makes itself.
    """
    if any(name.startswith("table.") for name in state):
        raise Unreadable("a state with look-up tables of the server's")
    for name in wanted.keys() & state.keys():
        first, now = wanted[name], state[name].shape
        alike = len(first) == len(now) and all(a in (b, 0) for a, b in zip(first, now, strict=True))
        if not alike or state[name].dtype.kind not in "fiub":
            raise Unreadable("a state of other shapes than the computation's")


def _reply(reply: Reply, digest: str, *, keeps: bool, release: Release | None, metrics: Release | None) -> bytes:
    total = {f"total/{name}": values for name, values in on_host(reply.total).items() if name != "clients"}
    measured = {f"metrics/{name}": values for name, values in reply.metrics.items()}
    if release is None:  # what is clipped is in whole numbers of 8 bytes, all alike
        total = {name: _wire.narrow(values) for name, values in total.items()}
    about = {
        "clients": reply.clients,
        "keeps": keeps,
        "grids": {} if release is None else dict(release.grids),
        "measure_grids": {} if metrics is None else dict(metrics.grids),
    }
    return _packed({**total, **measured}, digest, **about)


def _packed(arrays: Arrays, request: str, **about: Any) -> bytes:
    return checkpoint.pack(on_host(arrays), {"format": _wire.FORMAT, "request": request, **about})


def _refusal(request: str, why: str) -> bytes:
    return _packed({}, request, refused=why)
