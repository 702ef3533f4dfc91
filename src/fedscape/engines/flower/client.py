"""The node side: read a request, check it against the owner's terms, and answer."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core import codec
from fedscape.core.computation import Computation
from fedscape.core.engine import Local
from fedscape.core.federation import Federation
from fedscape.core.kernel import uncompiled
from fedscape.core.random import Key
from fedscape.core.rounds import check_declared
from fedscape.engines.flower import computations, wire
from fedscape.engines.flower import terms as owner_terms
from fedscape.engines.flower.answers import log_line, packed, written
from fedscape.engines.flower.booking import Book
from fedscape.engines.flower.library import ClientApp, Context, Message
from fedscape.engines.flower.node_store import Folder
from fedscape.engines.flower.rehearsal import (
    Request,
    Shapes,
    ask,
    by_row,
    check_shapes,
    first_shapes,
    is_few,
    nobody_like,
    rehearse,
    within,
)
from fedscape.engines.flower.terms import Terms
from fedscape.engines.flower.wire import Away, Unreadable
from fedscape.engines.limits import bounded
from fedscape.errors import DataError, PrivacyError
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.release import Release
from fedscape.types import Arrays

if TYPE_CHECKING:
    from fedscape.engines.flower.secure_node import Envelope

_MEMORY = 2**28  # bytes that a computation may allocate beside its state and its answer
_WHY = 2000  # characters of an error message that the log keeps


def client_app(
    load: Callable[[Any], Federation],
    *,
    folder: str | os.PathLike[str] | Callable[[Any], str | os.PathLike[str]] | None = None,
    computations: Sequence[Computation] = (),
    terms: Terms | None = None,
) -> Any:
    """A Flower ClientApp that answers computations by name.

    It answers computations on fedscape's own list, rebuilt from numbers, texts and arrays, and those that the owner
    supplies here, with the owner's own models and losses. It never executes code that it receives.

    Parameters
    ----------
    load
        Maps Flower's context (`context.node_config`) to the clients of this node: one or many.
    folder
        The node's folder, or a function of the context; by default `folder` of the node's config.
    computations
        Computations that the owner supplies, such as `FedAvg(LocalSGD(model, ...))`, with the server's parameters.
    terms
        The app's terms. If the node's folder has a `terms.toml`, that file counts, and these can only be stricter.

    >>> app = client_app(lambda context: Federation({"y": [0, 1]}, [0, 2]), folder="node")
    >>> type(app).__name__
    'ClientApp'
    """
    app = ClientApp()
    owner = _Owner(load, tuple(computations), terms)

    def answer(message: Any, context: Any) -> Any:
        where = folder(context) if callable(folder) else folder
        path = where or context.node_config.get("folder")
        if not path:
            raise DataError("a node needs a folder of its own: --node-config 'folder=\"/var/lib/fedscape\"'")
        blob = owner.answer(message.content, context, Folder(str(path)))
        return Message(wire.enclose(blob), reply_to=message)

    # Flower inspects the annotations of registered functions
    answer.__annotations__ = {"message": Message, "context": Context, "return": Message}
    app.query(wire.ACTION)(answer)
    return app


@dataclass
class _Visit:
    """One request in progress, with the fields of its log line."""

    folder: Folder
    terms: Terms = field(default_factory=Terms)
    about: dict[str, Any] = field(default_factory=dict)

    def log(self, outcome: str, why: str = "") -> None:
        self.folder.log(outcome, **self.about, **({"why": why[:_WHY]} if why else {}))


class _Owner:
    """Answers requests under the terms of the node's owner."""

    def __init__(
        self, load: Callable[[Any], Federation], computations: tuple[Computation, ...], terms: Terms | None
    ) -> None:
        self.load, self.computations, self.terms = load, computations, terms
        self.shapes: dict[str, Shapes] = {}  # first state of the last computation
        self.steps = 0  # in this process; on a real node every message has its own process

    def answer(self, content: Any, context: Any, folder: Folder) -> bytes:
        """The reply. A refusal depends only on the request, the column types and the ledger, and says why.

        Other failures may depend on rows: their reply is always the same, as if the node were away.
        """
        visit, request = _Visit(folder), ""
        try:
            blob = wire.disclose(content)
            request = wire.digest(blob)
            visit.about["request"] = request[:16]
            visit.terms = self._terms_of(visit, context)
            if len(blob) > 16 * visit.terms.numbers:
                raise Unreadable("larger than the owner allows")
            arrays, header = wire.read(blob)
            if header.get("op") == "who":
                return self._introduction(context, header, request, folder)
            if header.get("op") in ("share", "unmask"):
                visit.about |= {"run": str(header.get("session"))[:32], "asked": f"secure sum: {header['op']}"}
                return _secure_answer(visit, header, request)
            visit.about |= {
                "run": str(header.get("run"))[:32],
                "asked": computations.asked_for(header.get("computation")),
            }
            with folder.alone():
                return self._run(self._checked(visit.terms, arrays, header, request), content, context, visit)
        except Unreadable as refusal:
            why, reason = str(refusal), f"it is {refusal}"
        except PrivacyError as error:
            why, reason = str(error), "it is beyond the budget, or not a release this node can make"
        except Exception as error:
            with contextlib.suppress(OSError):  # a full disk must give the same reply
                visit.log("failed", f"{type(error).__name__}: {error}" if not isinstance(error, Away) else str(error))
            return packed({}, request, away=True)
        with contextlib.suppress(OSError):
            visit.log("refused", why)
        return packed({}, request, refused=f"refused: {reason}")

    def _introduction(self, context: Any, header: dict[str, Any], request: str, folder: Folder) -> bytes:
        """The ids of the node's clients and, if sums are masked, its key for this run."""
        with _rows_are_read():
            ids = self._load(context).ids
        if "session" not in header:
            return packed({"ids": ids}, request)
        from fedscape.engines.flower import secure_node

        with folder.alone():
            return packed({"ids": ids}, request, secure=secure_node.advertise(folder.path, header["session"]))

    def _terms_of(self, visit: _Visit, context: Any) -> Terms:
        """The owner's file, which an app can only make stricter; without a file, the app's terms."""
        try:
            owners = owner_terms.read_terms(visit.folder.path)
        except DataError as error:
            visit.about["terms"] = f"nothing is answered until this is fixed: {error}"
            raise Unreadable("for a node whose terms cannot be read") from None
        visit.about["terms"] = "app" if owners is None else owner_terms.FILE
        if owners is None and context.node_config.get("terms") == "required":
            raise Unreadable(f"for a node that has no {owner_terms.FILE} yet: fedscape deploy terms writes it")
        if owners is None or self.terms is None:
            return owners or self.terms or Terms()
        return owner_terms.stricter(owners, self.terms)

    def _load(self, context: Any) -> Federation:
        fed = self.load(context)
        if not isinstance(fed, Federation):
            raise DataError(f"load(context) must return a Federation, not {type(fed).__name__}")
        return fed

    def _run(self, request: Request, content: Any, context: Any, visit: _Visit) -> bytes:
        folder = visit.folder
        order = wire.order_of(content)
        if folder.blocked(request.run):
            raise Away("the run failed before, or too many runs did: failed.json lists them, remove it to continue")
        earlier = folder.replied(request.run, request.number, request.digest)
        if earlier is not None:
            visit.log("repeated")
            return earlier
        with folder.attempt(request.run):
            return self._compute(request, order, context, visit)

    def _compute(self, request: Request, order: wire.Order, context: Any, visit: _Visit) -> bytes:
        header, digest, folder = request.header, request.digest, visit.folder
        kept, past_servers = folder.go_back(request.run, int(header["closed"]), order)
        with _rows_are_read():
            fed = self._load(context)
        fed = _allowed(fed, header["computation"], visit)
        where = _positions(fed, request.cohort)
        node, nobody = Local(fed, threads=1), Local(nobody_like(fed), threads=1)
        # one key per answer: the rows and kept arrays behind it are not part of the request
        key = os.urandom(32)
        envelope = _envelope(request, visit)
        smallest = None if envelope is None else envelope.smallest
        release, metrics = _releases(request, key, nobody.federation, visit.terms, smallest)
        if release is not None and envelope is not None:
            release.shared_by = max(len(where), 1)
            for each in (release, metrics):
                if each is not None:
                    each.largest = envelope.most / max(len(where), 1)
        if release is not None:
            check_declared(fed, request.computation.coded_columns())
        with _bounded(visit.terms):
            rehearsed = rehearse(request, nobody, release, metrics, visit.terms)
        narrowed = by_row(request) if len(where) == 1 and rehearsed.narrow_row else request
        booked = hashlib.sha256(digest.encode() + key).hexdigest()
        self._write_down(request, booked, release, metrics, visit, masked=envelope is not None)
        first, self.steps = self.steps == 0, self.steps + 1
        with _rows_are_read():
            node.restore(kept)
            with uncompiled() if first and is_few(request.computation, fed, where) else contextlib.nullcontext():
                reply = ask(node, narrowed, where, Key(*header["key"]), release, metrics)
            rehearsed.check(reply, request.computation, release, metrics)
            left = node.kept()
            keeps = bool(left) if release is None else rehearsed.keeps
            shown = request.computation.reveals
            answer = written(
                reply, digest, keeps=keeps, release=release, metrics=metrics, envelope=envelope, shown=shown
            )
            folder.store(
                request.run,
                request.number,
                kept=left,
                request=digest,
                reply=answer,
                order=order,
                past_servers=past_servers,
            )
            visit.about["answer"] = log_line(reply, release, masked=envelope is not None)
            visit.log("answered")
        return answer

    # -- checks before any work ----------------------------------------------------------------------------------------

    def _checked(self, terms: Terms, arrays: Arrays, header: dict[str, Any], digest: str) -> Request:
        """Check the request. Nothing here depends on rows, so an error may name its cause."""
        try:
            with _bounded(terms):
                return self._read(terms, arrays, header, digest)
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(f"a computation that cannot begin ({type(error).__name__})") from None

    def _read(self, terms: Terms, arrays: Arrays, header: dict[str, Any], digest: str) -> Request:
        state, cohort = codec.prefixed(arrays, "state/"), arrays.get("cohort")
        if sum(values.size for values in arrays.values()) > terms.numbers:
            raise Unreadable("larger than the owner allows")
        for values in state.values():
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise Unreadable("a state with NaN or infinity")
            if values.dtype.kind in "fiu" and values.size and not within(values, terms.largest):
                raise Unreadable("a state with numbers beyond the owner's range")
        try:
            key, number, closed = header["key"], header["number"], header["closed"]
            Key(*key)
            numbers = all(isinstance(n, int) and not isinstance(n, bool) for n in (number, closed))
            several = cohort is not None and cohort.ndim == 1 and 0 < len(cohort) == len(np.unique(cohort))
            if not numbers or not -1 <= closed < number or not several:
                raise Unreadable("without a round, or a cohort in which each client is once")
            computation = computations.rebuilt(header["computation"], self.computations)
        except (KeyError, TypeError, DataError):
            raise Unreadable("not a request of a round") from None
        owner_terms.check_computation(terms, header["computation"], computation.reveals)
        name = computation.digest()
        if name not in self.shapes:
            self.shapes = {name: first_shapes(computation)}
        check_shapes(self.shapes[name], state)
        return Request(digest, header, state, cohort, computation, wire.question_of(arrays, header))

    def _write_down(
        self,
        request: Request,
        booked: str,
        release: Release | None,
        metrics: Release | None,
        visit: _Visit,
        *,
        masked: bool,
    ) -> None:
        """Enter the answer in the ledger, or refuse it; an answer lost before it is stored counts too."""
        columns = ", ".join(visit.about["columns"])
        Book(Ledger(visit.folder.ledger, delta=visit.terms.delta), visit.terms).enter(
            run=request.run,
            index=int(request.header["key"][1]),
            summary=visit.about["asked"] + (f" on {columns}" if columns else ""),
            digest=booked,
            releases={"sum": release, "metrics": metrics},
            plain=release is None or (bool(request.header["measure"]) and metrics is None),
            masked=masked,
        )


@contextlib.contextmanager
def _rows_are_read() -> Iterator[None]:
    """Errors in this context may depend on rows: they become Away."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise Away(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _bounded(terms: Terms) -> Iterator[None]:
    """Bound memory while a request is processed: a few bytes can request any amount of memory."""
    try:
        with bounded(_MEMORY + 32 * terms.numbers):
            yield
    except MemoryError:
        raise Unreadable("a computation that takes more memory than the owner allows") from None


def _allowed(fed: Federation, about: Any, visit: _Visit) -> Federation:
    """The data with only the columns that may be read."""
    named = set(owner_terms.texts_in([about["parameters"], about["theirs"]]))
    visit.about["columns"] = [name for name in fed.columns if name in named]
    owner_terms.check_columns(visit.terms, visit.about["columns"])
    allowed = visit.terms.columns
    return fed if allowed is None else fed.select([name for name in fed.columns if name in allowed])


def _envelope(request: Request, visit: _Visit) -> Envelope | None:
    """The envelope of the answer: masked if the request says so and the protocol allows it."""
    if request.header.get("secure") is None and not visit.terms.secure:
        return None
    from fedscape.engines.flower import secure_node

    with secure_node.refusals():
        return secure_node.Envelope.of(request.header, request.question, visit.folder.path, visit.terms)


def _secure_answer(visit: _Visit, header: dict[str, Any], request: str) -> bytes:
    """The node's messages before and after a masked sum; none depends on rows."""
    from fedscape.engines.flower import secure_node

    with visit.folder.alone(), secure_node.refusals():
        reply = secure_node.answer(visit.folder.path, visit.terms, header, request)
        visit.log("answered")
        return packed({}, request, answer=reply)


def _releases(
    request: Request, key: bytes, nobody: Federation, terms: Terms, smallest: int | None
) -> tuple[Release | None, Release | None]:
    """The requested releases of sum and metrics, with the node's own keys, if the owner accepts them."""
    keys = {"release": key, "measure_release": os.urandom(32)}
    about = request.computation, request.state, nobody
    release, metrics = (wire.release_read(request.header[name], own, *about) for name, own in keys.items())
    for each in (release, metrics):
        owner_terms.check_release(terms, each, smallest)
    if release is None and metrics is not None:
        raise Unreadable("a release of metrics without one of the sum")
    return release, metrics


def _positions(fed: Federation, cohort: Any) -> Any:
    try:
        return fed.positions(cohort)
    except DataError:  # the ids of a node's clients are not secret: it sends them on request
        raise Unreadable("for a client that this node does not hold") from None
