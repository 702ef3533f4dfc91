"""Methods that train no network: boosted trees and GLMs of a table, as computations of the one training loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.arrays import Ragged
from fedscape.core.federation import Federation
from fedscape.core.rounds import check_declared_classes
from fedscape.core.sampling import All
from fedscape.errors import DataError, PrivacyError
from fedscape.methods.makers import building
from fedscape.methods.method import Options
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.core.computation import Computation
    from fedscape.core.engine import Engine
    from fedscape.learning.evaluation import Evaluation
    from fedscape.tabular.saved import Model

LAWS = ("gaussian", "logistic", "poisson", "gamma")
DEPTH = 5  # levels of a tree, each of which is a round
_PRIVATE_BINS = 32  # even over the declared range: each gets noise
_FAR = 1e-12  # the least probability that a loss is of


@building("tabular.growing:TreeRounds")
def trees(local: Any, how: Options) -> Computation:
    """The rounds of boosted trees; before them the target and bins are surveyed, or declared by ranges if private."""
    from fedscape.tabular.boosting import BoostedTrees

    clients = _clients("trees", how)
    if how.law == "gamma":
        raise DataError("law must be gaussian, logistic or poisson for trees, not 'gamma'")
    number = _is_number(clients, local.target, how)
    loss = None if not number else "poisson" if how.law == "poisson" else "squared"
    model = BoostedTrees(
        how.trees, depth=DEPTH, learning_rate=how.learning_rate, loss=loss, ranges=how.ranges, seed=how.seed,
        features=local.features, target=local.target, bins=_PRIVATE_BINS if how.private else 255,
    )  # fmt: skip
    if how.private:
        _check_ranges("trees", how)
        return model.growing_blind(how.engine)  # type: ignore[arg-type]
    return model.growing(how.engine, subtract=isinstance(how.sampler or All(), All))  # type: ignore[arg-type]


@building("tabular.glm:GLM", "tabular.multinomial:MultinomialGLM")
def glm(local: Any, how: Options) -> Computation:
    """A GLM: by its law, logistic for two classes, multinomial for more; its rounds are Fisher scoring."""
    from fedscape.tabular.glm import GLM
    from fedscape.tabular.multinomial import MultinomialGLM

    clients = _clients("glm", how)
    settings: dict[str, Any] = {
        "features": local.features, "target": local.target, "l2": how.l2, "ranges": how.ranges
    }  # fmt: skip
    if how.private:
        _check_ranges("glm", how)
    if _is_number(clients, local.target, how):
        return GLM(how.law or "gaussian", **settings)
    if how.private:
        check_declared_classes(clients, local.target)
    classes = max(clients.categories(local.target), 2)
    if classes == 2:
        return GLM("logistic", **settings)
    return MultinomialGLM(classes, **settings)


def _clients(name: str, how: Options) -> Federation:
    if how.law is not None and how.law not in LAWS:
        raise DataError(f"law must be one of {', '.join(LAWS)}, not {how.law!r}")
    if how.engine is None or not isinstance(how.engine.clients, Federation):
        raise DataError(f"{name} looks at the columns' names and types first: give the clients as engine=")
    return how.engine.clients


def _check_ranges(name: str, how: Options) -> None:
    if how.ranges is None:
        raise PrivacyError(
            f"a private {name} needs ranges={{column: (least, greatest)}} of all numbers: where values lie is a secret"
        )


def _is_number(clients: Federation, target: str, how: Options) -> bool:
    """Whether the target is a number and not a class."""
    if how.law is not None:
        return how.law != "logistic"
    return target not in clients.names and clients[target].dtype.kind not in "biu"


@dataclass(frozen=True, eq=False)
class TabularModel:
    """The model of a state of trees or a GLM: one for all clients, who keep nothing.

    Parameters
    ----------
    computation
        The method.
    state
        Its last state.
    clients
        Clients with columns like those trained on, of which names and shapes are read.

    >>> from fedscape.methods import Columns, train
    >>> fed = Federation({"x": [[0.0], [1.0]] * 9, "y": [0, 1] * 9}, [0, 8, 18])
    >>> train("trees", Columns(), fed, n_rounds=5).predict(fed)[:2].tolist()
    [0, 1]
    """

    computation: Any
    state: Mapping[str, Array]
    clients: Federation = field(repr=False)

    #: The clients that keep arrays: none.
    ids = np.zeros(0, dtype=np.int64)
    kept: Mapping[str, Ragged] = field(default_factory=dict, init=False)

    @property
    def model(self) -> Model:
        """The fitted estimator."""
        from fedscape.tabular.boosting import BoostedTrees
        from fedscape.tabular.growing import TreeRounds

        if isinstance(self.computation, TreeRounds):
            return BoostedTrees.of_state(self.computation, dict(self.state), self.clients)
        model: Model = self.computation.of_state(dict(self.state), self.clients)
        return model

    def with_errors(self, engine: Engine) -> Model:
        """The estimator with standard errors where it is a GLM that has them, for which one more round is run."""
        from fedscape.tabular.glm import GLM

        if isinstance(self.computation, GLM):
            return self.computation.with_errors(engine, dict(self.state))
        return self.model

    @property
    def classifies(self) -> bool:
        """Whether the target is a class."""
        from fedscape.tabular.multinomial import MultinomialGLM

        law = getattr(self.computation, "loss", None) or getattr(self.computation, "family", None)
        return isinstance(self.computation, MultinomialGLM) or law in ("logistic", "softmax")

    def predict_proba(self, data: Federation) -> Array:
        """p(class | x) of each row: [rows, classes]."""
        from fedscape.tabular.saved import probabilities

        if not self.classifies:
            raise DataError(f"the target {self.computation.target!r} is a number: predict() gives what is expected")
        return probabilities(self.model, self._x(data))

    def predict(self, data: Federation) -> Array:
        """The number of the most likely class of each row, or its expected target."""
        if self.classifies:
            return np.asarray(self.predict_proba(data).argmax(axis=1))
        return np.asarray(self.model.predict(self._x(data)))

    def evaluate(self, data: Federation) -> Evaluation:
        """Loss and accuracy of every client; of numbers the squared error, and no accuracy."""
        from fedscape.learning.evaluation import Evaluation

        y, accuracy = data[self.computation.target], None
        with np.errstate(invalid="ignore"):
            if self.classifies:
                proba = self.predict_proba(data)
                inside = (y >= 0) & (y < proba.shape[1])
                own = proba[np.arange(len(y)), np.where(inside, y, 0).astype(np.int64)]
                loss = -np.log(np.maximum(np.where(inside, own, 0.0), _FAR))
                hits = inside & (proba.argmax(axis=1) == y)
                accuracy = data.segment_sum(hits.astype(float)) / data.sizes
            else:
                loss = (self.predict(data) - y) ** 2
            return Evaluation(data.ids, data.sizes, data.segment_sum(loss) / data.sizes, accuracy)

    def common(self) -> TabularModel:
        """The same: no client keeps anything."""
        return self

    def _x(self, data: Federation) -> Array:
        from fedscape.tabular.binning import column_values

        return column_values(data, self.computation.features)


def is_done(computation: Any, state: Arrays) -> bool:
    """Whether the rounds have nothing left to learn: all trees are grown, or the steps of a GLM are short."""
    from fedscape.tabular.growing import TreeRounds

    if isinstance(computation, TreeRounds):
        return int(state["trees"]) >= computation.n_trees
    return bool(computation.is_done(state))


def rounds_for(name: str, trees: int) -> int:
    """The default number of rounds: one for each level of each tree, 100 for a GLM.

    >>> rounds_for("trees", 20), rounds_for("glm", 20)
    (100, 100)
    """
    return trees * DEPTH if name == "trees" else 100
