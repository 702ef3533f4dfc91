"""From a method to a trained model: run all its phases on its clients, and evaluate on the way."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from fedscape.core.computation import Computation
from fedscape.core.engine import Engine
from fedscape.core.federation import Federation
from fedscape.core.sampling import Sampler
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.methods.method import Columns, Options
from fedscape.methods.table import check_private, find, line_of, make
from fedscape.methods.tabular import TabularModel, is_done
from fedscape.types import Arrays

if TYPE_CHECKING:
    from fedscape.learning.evaluation import Evaluation
    from fedscape.learning.local import LocalSGD
    from fedscape.personal.personalised import Personalised
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import Privacy


class Course:
    """A method on its clients: the computation, the evaluation of a state, and the model of a state.

    Pass `computation`, `judge` and the names in `reveals` to `training`. `model` belongs to the state judged last. The
    model of a state includes the phases after the rounds: fine-tuning, and models of clients that no round has drawn.
    The row of round r is therefore that of a training with r rounds.

    Parameters
    ----------
    method
        A name of METHODS, or a computation.
    local
        How a client trains; for trees and glm `Columns`, or the columns of a LocalSGD.
    data
        The clients.
    options
        As for `make`; its engine is built from `data`.
    tune
        Rounds of fine-tuning, for methods that end with it.
    private
        Whether the training is private; a method that cannot be private is refused.

    >>> from fedscape.learning import LocalSGD, cross_entropy, models
    >>> fed = Federation({"x": [[0.0], [1.0]], "y": [0, 1]}, [0, 2])
    >>> step = LocalSGD(models.linear(1, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> type(Course("ifca", step, fed).computation).__name__
    'IFCA'
    """

    def __init__(
        self,
        method: str | Computation,
        local: LocalSGD | Columns,
        data: Engine | Federation,
        options: Options | None = None,
        *,
        tune: int = 1,
        private: bool = False,
    ) -> None:
        from fedscape.personal.methods import check_clients

        if not isinstance(method, str | Computation):
            raise DataError(f"method must be a name or a computation, not of type {type(method).__name__}")
        named = find(method) if isinstance(method, str) else line_of(method)
        self.engine = check_clients(data)
        self.tabular = named is not None and named.family == "tabular"
        if not self.tabular:
            self._check_network(local if isinstance(method, str) else getattr(method, "local", None))
        if private:
            check_private(find(method) if isinstance(method, str) else method)
        how = replace(options or Options(), engine=self.engine, private=private)
        how = replace(how, weighting="equal") if private else how
        self.computation: Any = make(method, local, how) if isinstance(method, str) else method
        self.seed, self.private = how.seed, private
        self.tune = tune if isinstance(method, str) and named is not None and named.tunes else None
        self.model: Personalised | TabularModel | None = None

    def _check_network(self, local: Any) -> None:
        from fedscape.learning.local import check_local
        from fedscape.personal.shared import class_column

        # training here is evaluated as classification
        class_column(check_local(local), cast(Federation, self.engine.clients))

    def under(self, privacy: Privacy) -> Privacy:
        """The release adapted to what the method sends, and the method to its noise, if it knows how."""
        from fedscape.temporal.clock_settings import is_bounded
        from fedscape.temporal.fedclock import FedClock

        if isinstance(self.computation, FedClock) and is_bounded(self.computation):
            self.computation, privacy = self.computation.under(privacy)
        return privacy

    def judge(self, state: Arrays, test: Federation) -> Evaluation:
        """Loss and accuracy of every client under the model of a training that ended with this state."""
        from fedscape.learning.evaluation import evaluate as evaluate_model
        from fedscape.temporal.branched import Branched
        from fedscape.temporal.methods import evaluate

        self.model = self.end(state)
        if isinstance(self.model, TabularModel):
            return self.model.evaluate(test)
        if isinstance(self.computation, Branched):
            return evaluate(self.computation, state, test)
        if not self.personal:
            return evaluate_model(self.computation.local, state, test)
        return self.model.evaluate(test)

    @property
    def personal(self) -> bool:
        """Whether clients end up with parts of their own."""
        from fedscape.temporal.branched import Branched

        if self.tabular:
            return False
        shared = isinstance(self.computation, Branched) or not hasattr(self.computation, "log_probs")
        return self.tune is not None or not shared

    def is_done(self, state: Arrays) -> bool:
        """Whether the rounds have nothing left to learn; networks, and private runs, make all their rounds."""
        return self.tabular and not self.private and is_done(self.computation, state)

    def end(self, state: Arrays) -> Personalised | TabularModel:
        """The model of a training that ends with this state; the run can continue."""
        if self.tabular:
            return TabularModel(self.computation, dict(state), cast(Federation, self.engine.clients))
        from fedscape.personal.methods import Common, finished
        from fedscape.temporal.branched import Branched

        method, shared = self.computation, {n: v for n, v in state.items() if not n.startswith("server.")}
        if not isinstance(method, Branched) and not hasattr(method, "log_probs"):
            method = Common(method.local)
        return finished(method, shared, self.engine, seed=self.seed, tune=self.tune, private=self.private)


def train(
    method: str | Computation,
    local: LocalSGD | Columns,
    data: Engine | Federation,
    *,
    n_rounds: int,
    sampler: Sampler | None = None,
    seed: int = 0,
    finish_rounds: int = 1,
    options: Options | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: int | None = None,
    privacy: Privacy | None = None,
    ledger: Ledger | None = None,
    progress: bool | None = False,
) -> Personalised | TabularModel:
    """Train a method, given by name or as a computation, through all its phases.

    If clients keep models of their own, a client that no round has drawn trains its model once at the end.

    Parameters
    ----------
    method
        A name in METHODS, or a computation such as FedEM.
    local
        How a client trains.
    data
        The clients.
    n_rounds
        Rounds of the method itself.
    sampler, seed
        As for `rounds`.
    finish_rounds
        Rounds of the phase that follows (fine-tuning in "fedavg+").
    options
        Other options of the method; first weights are drawn from the seed by default.
    checkpoint, every
        A file to save to every `every` rounds and to resume from; a resumed run ends with the same bytes.
    privacy, ledger
        As for `rounds`; a method, also as a computation, that noise on its sums does not cover is refused.
    progress
        True shows a bar; None shows one on a terminal and prints a line a minute elsewhere.

    >>> from fedscape.learning import LocalSGD, cross_entropy, models
    >>> fed = Federation({"x": [[0.0], [1.0], [0.0], [1.0]], "y": [0, 1, 1, 0]}, [0, 2, 4])
    >>> step = LocalSGD(models.linear(1, 2), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> float(train("fedavg+", step, fed, n_rounds=9, finish_rounds=9).evaluate(fed).accuracy.mean())
    1.0
    """
    from fedscape.core.rounds import rounds
    from fedscape.learning.run import training

    check_whole("n_rounds", n_rounds, least=0)
    check_whole("finish_rounds", finish_rounds, least=0)
    how = replace(options or Options(), sampler=sampler, seed=seed, progress=progress)
    how = how if how.initial is not None else replace(how, initial="seed")
    course = Course(method, local, data, how, tune=finish_rounds, private=privacy is not None)
    privacy = None if privacy is None else course.under(privacy)
    settings: dict[str, Any] = {"sampler": sampler, "seed": seed, "privacy": privacy, "ledger": ledger}
    work, allow, state = course.computation, course.computation.reveals, None
    if n_rounds:
        for r, _, _ in training(
            work, course.engine, test=None, n_rounds=n_rounds, every=every or n_rounds, checkpoint=checkpoint,
            allow=allow, done=course.is_done, progress=progress, **settings,
        ):  # fmt: skip
            state = r.state
    if state is not None:
        return course.end(state)
    with rounds(work, course.engine, n_rounds=n_rounds, measure=0, resume=checkpoint, allow=allow, **settings) as done:
        return course.end(done.state)  # no rounds were left
