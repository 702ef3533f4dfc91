"""Computations that are run to an answer: `fit`, and learned attributes that end in an underscore."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fedscape.core.computation import Computation
from fedscape.core.validate import check_whole
from fedscape.errors import NotFittedError, PrivacyError, TooFewClients
from fedscape.types import Array, Arrays

if TYPE_CHECKING:  # what runs a fit is loaded by the first fit: a node that only takes the step never needs it
    from fedscape.core.engine import Engine
    from fedscape.core.federation import Federation
    from fedscape.core.history import History
    from fedscape.core.sampling import Sampler
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import Privacy

C = TypeVar("C", bound=Computation)


@dataclass(frozen=True)
class Fit:
    """The options of a `fit`, common to all estimators."""

    sampler: Sampler | None = None
    checkpoint: str | os.PathLike[str] | None = None
    every: int = 1
    allow: Sequence[str] = ()
    progress: bool | None = None
    privacy: Privacy | None = None
    ledger: Ledger | None = None
    measure_privacy: Privacy | None = None

    def phase(self, name: str) -> Fit:
        """The same with a checkpoint file of its own for one phase of the fit."""
        return self if self.checkpoint is None else replace(self, checkpoint=f"{os.fspath(self.checkpoint)}{name}")

    def check_scales(self, *names: str) -> None:
        """Refuse scales for arrays that no phase sends."""
        unknown = set() if self.privacy is None else set(self.privacy.scales) - set(names)
        if unknown:
            raise PrivacyError(f"scales name {sorted(unknown)}, but these phases send {sorted(names)}")

    def sending(self, *names: str) -> Fit:
        """The same for a phase that sends these arrays: scales of other phases' arrays are left out."""
        if self.privacy is None:
            return self
        scales = {name: scale for name, scale in self.privacy.scales.items() if name in names}
        return replace(self, privacy=replace(self.privacy, scales=scales))


STARTS = 4  # side by side, where nothing else is said and all may be measured


class Estimator(Computation):
    """A computation, or several one after the other, with `fit`.

    Constructor arguments are hyper-parameters, stored under their own names. `fit` returns self; what it learned ends
    in an underscore. `history_` is the table of its rounds; where privacy hides how many clients there are, it has the
    noisy number. `ledger_` says what a private fit spent.

    >>> from fedscape import Histogram
    >>> isinstance(Histogram(3), Estimator), Histogram(3).get_params()
    (True, {'n_categories': 3, 'column': 'y'})
    """

    history_: History
    ledger_: Ledger | None

    def fit(
        self,
        data: Engine | Federation,
        *,
        column: str | None = None,
        sampler: Sampler | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 1,
        allow: Sequence[str] = (),
        progress: bool | None = None,
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
        measure_privacy: Privacy | None = None,
    ) -> Self:
        """Run the rounds and learn.

        Parameters
        ----------
        data
            A Federation, or an Engine where the clients live.
        column
            The column to read, instead of the constructor's.
        sampler
            Who takes part in each round; by default all clients.
        checkpoint
            A file to save to every `every` rounds; a fit that finds it goes on from there.
        allow
            The names of what the server may see client by client, where the method reveals anything.
        progress
            Whether a bar is shown; by default on a terminal.
        privacy
            How sums are clipped and noised; every round is then a release.
        ledger
            Where releases are written before they happen, with a budget; by default one in memory.
        measure_privacy
            How metrics are clipped and noised; without it a private fit measures nothing.
        """
        from fedscape.core.engine import as_engine

        how = self._begin(Fit(sampler, checkpoint, every, allow, progress, privacy, ledger, measure_privacy))
        self._fit(as_engine(data), column, how)
        self.ledger_ = how.ledger
        return self

    def _begin(self, how: Fit) -> Fit:
        """Start an empty history; a private fit gets a ledger, and keeps nothing that an earlier fit learned."""
        from fedscape.core.history import History

        if how.privacy is not None:
            for name in [n for n in vars(self) if n.endswith("_") and not n.startswith("_")]:
                delattr(self, name)
        self.history_ = History()
        self.history_.private = how.privacy is not None
        return replace(how, ledger=how.privacy.new_ledger()) if how.privacy and how.ledger is None else how

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        raise TypeError(f"{type(self).__name__} must define _fit(engine, column, how)")

    def _run(
        self,
        computation: Computation,
        engine: Engine,
        how: Fit,
        *,
        n_rounds: int,
        seed: int = 0,
        state: Mapping[str, Array] | None = None,
        done: Callable[[Arrays, Arrays], bool] | None = None,
        measure: int = 1,
        carry: bool = False,
        needed: bool = True,
    ) -> Arrays:
        """Run rounds to the end, or until `done(old state, new state)`; return the last state.

        With a checkpoint, a run that was stopped goes on where it was. `carry` leaves clients what an earlier phase
        made them keep. Where all rounds were abandoned nothing was learned: an error, if the run is `needed`.
        """
        from fedscape.core.progress import shown
        from fedscape.core.rounds import rounds

        loop = rounds(
            computation,
            engine,
            n_rounds=n_rounds,
            sampler=how.sampler,
            seed=seed,
            state=state,
            allow=how.allow,
            measure=measure,
            privacy=how.privacy,
            ledger=how.ledger,
            measure_privacy=how.measure_privacy,
            resume=how.checkpoint,
            carry=carry,
        )
        begin = len(self.history_)  # phases before this one
        self.history_.extend(loop.notes.get("history", []))
        if loop.notes.get("finished"):
            loop.close()  # its rounds that will not be made are not reserved again
            return loop.state
        before = loop.state
        for r in shown(loop, n_rounds=n_rounds, label=type(self).__name__, progress=how.progress):
            self.history_.add(r)
            finished = done is not None and not r.abandoned and done(before, r.state)
            last = finished or r.index + 1 == n_rounds
            if how.checkpoint is not None and (last or (r.index + 1) % how.every == 0):
                r.save(how.checkpoint, notes={"finished": finished, "history": list(self.history_)[begin:]})
            if finished:
                break
            before = r.state
        loop.close()
        rows = list(self.history_)[begin:]
        anyone = how.privacy is not None or len(engine.clients.keys)  # under privacy their number is a secret
        if needed and rows and all(row["abandoned"] for row in rows) and anyone:
            raise TooFewClients(
                f"too few clients reported in every round of {type(computation).__name__} "
                f"(min_clients is {engine.min_clients}), so that nothing was counted: lower min_clients, or have more "
                "clients take part"
            )
        return loop.state

    def _n_starts(self, n_init: int | None, how: Fit) -> int:
        """How many starts run side by side: by default 4, and 1 under privacy, where comparing them costs a release."""
        if n_init is not None or how.privacy is None:
            return STARTS if n_init is None else n_init
        note = "n_init=1: under privacy one start runs by default, since comparing several costs a release"
        if note not in self.history_.notes:
            self.history_.notes.append(note)
        return 1

    def _asking(self, what: str, privacy: Privacy | None, ledger: Ledger | None) -> tuple[Estimator, Fit]:
        """What asks clients of a fitted model, with a history of its own; of a private model not without privacy.

        A release is booked where the fit was, unless a ledger is given.
        """
        own = vars(self).get("ledger_")
        if own is not None and privacy is None:
            raise PrivacyError(
                f"this {type(self).__name__} was fitted privately, and {what} would be exact sums over clients: pass "
                "privacy=, where it takes one, or ask a model that was fitted without"
            )
        asker = type(self)(**self.get_params())
        return asker, asker._begin(Fit(privacy=privacy, ledger=ledger or own, progress=False))

    def _check_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet: call fit() before asking for results")


def check_n_init(n_init: int | None) -> None:
    """Refuse a number of starts below one."""
    if n_init is not None:
        check_whole("n_init", n_init, least=1)


def reading(computation: C, column: str | None) -> C:
    """A copy of the computation that reads another column.

    >>> from fedscape import Histogram
    >>> reading(Histogram(3), "label").column
    'label'
    """
    params: dict[str, Any] = computation.get_params()
    return computation if column is None else type(computation)(**{**params, "column": column})
