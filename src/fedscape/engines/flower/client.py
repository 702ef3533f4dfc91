"""The side of a node: what is asked of it, whether it may be answered, and the answer."""

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
from fedscape.engines.flower.answers import packed, told, written
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

_MEMORY = 2**28  # bytes that a computation may take besides the numbers of its state and its answer
_WHY = 2000  # characters of an error that the log takes


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
        The app's terms. Where the node's folder has a `terms.toml` that counts, and these can only be stricter.

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

    # Flower inspects the annotations of what it registers
    answer.__annotations__ = {"message": Message, "context": Context, "return": Message}
    app.query(wire.ACTION)(answer)
    return app


@dataclass
class _Visit:
    """One request on its way: what the log will say of it."""

    folder: Folder
    terms: Terms = field(default_factory=Terms)
    about: dict[str, Any] = field(default_factory=dict)

    def log(self, outcome: str, why: str = "") -> None:
        self.folder.log(outcome, **self.about, **({"why": why[:_WHY]} if why else {}))


class _Owner:
    """Answers requests on the terms of the node's owner."""

    def __init__(
        self, load: Callable[[Any], Federation], computations: tuple[Computation, ...], terms: Terms | None
    ) -> None:
        self.load, self.computations, self.terms = load, computations, terms
        self.shapes: dict[str, Shapes] = {}  # of the last computation's first state
        self.steps = 0  # of this process: on a real node there is one for every message

    def answer(self, content: Any, context: Any, folder: Folder) -> bytes:
        """The reply. A refusal depends on the request, the columns' types and the ledger, and says why.

        What fails otherwise may depend on rows: then the reply is the same whatever failed, as if the node were away.
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
            why, said = str(refusal), f"it is {refusal}"
        except PrivacyError as error:
            why, said = str(error), "it is beyond the budget, or not a release this node can make"
        except Exception as error:
            with contextlib.suppress(OSError):  # a full disk must not look different
                visit.log("failed", f"{type(error).__name__}: {error}" if not isinstance(error, Away) else str(error))
            return packed({}, request, away=True)
        with contextlib.suppress(OSError):
            visit.log("refused", why)
        return packed({}, request, refused=f"refused: {said}")

    def _introduction(self, context: Any, header: dict[str, Any], request: str, folder: Folder) -> bytes:
        """Whom the node holds and, where sums are masked, the key it has in this run."""
        with _rows_are_read():
            ids = self._load(context).ids
        if "session" not in header:
            return packed({"ids": ids}, request)
        from fedscape.engines.flower import secure_node

        with folder.alone():
            return packed({"ids": ids}, request, secure=secure_node.advertise(folder.path, header["session"]))

    def _terms_of(self, visit: _Visit, context: Any) -> Terms:
        """The owner's file, which an app can only make stricter; without one the app's word counts."""
        try:
            owners = owner_terms.read_terms(visit.folder.path)
        except DataError as error:
            visit.about["terms"] = f"nothing is answered until this is mended: {error}"
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
            raise Away("the run failed before, or too many runs did: failed.json lists them, remove it to go on")
        known = folder.replied(request.run, request.number, request.digest)
        if known is not None:
            visit.log("repeated")
            return known
        with folder.attempt(request.run):
            return self._compute(request, order, context, visit)

    def _compute(self, request: Request, order: wire.Order, context: Any, visit: _Visit) -> bytes:
        header, digest, folder = request.header, request.digest, visit.folder
        kept, gone = folder.go_back(request.run, int(header["closed"]), order)
        with _rows_are_read():
            fed = self._load(context)
        fed = _allowed(fed, header["computation"], visit)
        where = _positions(fed, request.cohort)
        node, nobody = Local(fed, threads=1), Local(nobody_like(fed), threads=1)
        # a key for this answer alone: what it is computed from, the rows and what clients keep, is not in the request
        key = os.urandom(32)
        envelope = _envelope(header, visit)
        smallest = None if envelope is None else envelope.smallest
        release, metrics = _releases(request, key, nobody.federation, visit.terms, smallest)
        if release is not None and envelope is not None:
            release.shared_by = max(len(where), 1)
        if release is not None:
            check_declared(fed, request.computation.coded_columns())
        with _bounded(visit.terms):
            rehearsed = rehearse(request, nobody, release, metrics, visit.terms)
        asked = by_row(request) if len(where) == 1 and rehearsed.narrow_row else request
        booked = hashlib.sha256(digest.encode() + key).hexdigest()
        self._write_down(request, booked, release, metrics, visit, masked=envelope is not None)
        first, self.steps = self.steps == 0, self.steps + 1
        with _rows_are_read():
            node.restore(kept)
            with uncompiled() if first and is_few(request.computation, fed, where) else contextlib.nullcontext():
                reply = ask(node, asked, where, Key(*header["key"]), release, metrics)
            rehearsed.check(reply, request.computation, release, metrics)
            left = node.kept()
            keeps = bool(left) if release is None else rehearsed.keeps
            shown = request.computation.reveals
            answer = written(
                reply, digest, keeps=keeps, release=release, metrics=metrics, envelope=envelope, shown=shown
            )
            folder.store(request.run, request.number, kept=left, request=digest, reply=answer, order=order, gone=gone)
            visit.about["answer"] = told(reply, release, masked=envelope is not None)
            visit.log("answered")
        return answer

    # -- before any work -----------------------------------------------------------------------------------------------

    def _checked(self, terms: Terms, arrays: Arrays, header: dict[str, Any], digest: str) -> Request:
        """The request, if it is one: nothing here depends on rows, so that whatever fails may be named."""
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
        return Request(digest, header, state, cohort, computation)

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
        """Enter what is about to leave, or refuse; an answer that is lost before it is stored counts all the same."""
        columns = ", ".join(visit.about["columns"])
        Book(Ledger(visit.folder.ledger, delta=visit.terms.delta), visit.terms).enter(
            run=request.run,
            index=int(request.header["key"][1]),
            asked=visit.about["asked"] + (f" on {columns}" if columns else ""),
            digest=booked,
            releases={"sum": release, "metrics": metrics},
            plain=release is None or (bool(request.header["measure"]) and metrics is None),
            masked=masked,
        )


@contextlib.contextmanager
def _rows_are_read() -> Iterator[None]:
    """Whatever fails within it may depend on rows: to the server the node is away."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise Away(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _bounded(terms: Terms) -> Iterator[None]:
    """What the server asks for is made within it: a few bytes can ask for any amount of memory."""
    try:
        with bounded(_MEMORY + 32 * terms.numbers):
            yield
    except MemoryError:
        raise Unreadable("a computation that takes more memory than the owner allows") from None


def _allowed(fed: Federation, about: Any, visit: _Visit) -> Federation:
    """The data with the columns that may be read, and no others."""
    named = set(owner_terms.texts_in([about["parameters"], about["theirs"]]))
    visit.about["columns"] = [name for name in fed.columns if name in named]
    owner_terms.check_columns(visit.terms, visit.about["columns"])
    allowed = visit.terms.columns
    return fed if allowed is None else fed.select([name for name in fed.columns if name in allowed])


def _envelope(header: dict[str, Any], visit: _Visit) -> Envelope | None:
    """How the answer leaves: masked where the request says so and the protocol allows it."""
    if header.get("secure") is None and not visit.terms.secure:
        return None
    from fedscape.engines.flower import secure_node

    with secure_node.refusals():
        return secure_node.Envelope.of(header, visit.folder.path, visit.terms)


def _secure_answer(visit: _Visit, header: dict[str, Any], request: str) -> bytes:
    """What a node says before and after a masked sum: nothing in it depends on rows."""
    from fedscape.engines.flower import secure_node

    with visit.folder.alone(), secure_node.refusals():
        said = secure_node.answer(visit.folder.path, visit.terms, header, request)
        visit.log("answered")
        return packed({}, request, answer=said)


def _releases(
    request: Request, key: bytes, nobody: Federation, terms: Terms, smallest: int | None
) -> tuple[Release | None, Release | None]:
    """The releases of sum and metrics that are asked for, with keys of the node's own, if the owner accepts them."""
    keys = {"release": key, "measure_release": os.urandom(32)}
    about = request.computation, request.state, nobody
    release, metrics = (wire.release_read(request.header[name], own, *about) for name, own in keys.items())
    for made in (release, metrics):
        owner_terms.check_release(terms, made, smallest)
    if release is None and metrics is not None:
        raise Unreadable("a release of metrics without one of the sum")
    return release, metrics


def _positions(fed: Federation, cohort: Any) -> Any:
    try:
        return fed.positions(cohort)
    except DataError:  # whom a node holds is no secret of its rows: it says so when it is asked
        raise Unreadable("for a client that this node does not hold") from None
