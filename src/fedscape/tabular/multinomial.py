"""Logistic regression of several classes, by sums."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.estimator import Fit
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import check_declared_classes
from fedscape.core.validate import all_valid, check_whole, column_names, valid_numbers
from fedscape.errors import DataError, PrivacyError
from fedscape.tabular.design import Columns, Ranges, solve
from fedscape.tabular.estimator import TableEstimator
from fedscape.tabular.losses import target_values, valid_targets
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    import numpy.typing as npt

    from fedscape.core.engine import Engine

MOST = 2**22  # numbers that a client sends
_LONGEST = 1.0  # root mean square of a step's linear predictor
_LEAST = 1e-6  # curvature of a row whose class is sure


class MultinomialGLM(TableEstimator):
    """Logistic regression of several classes over all clients' rows: softmax of one linear predictor a class.

    A client sends, for each class k, its part of the gradient X'(y_k - p_k) and of the curvature 2 X' diag(p_k (1 -
    p_k)) X. These blocks bound the whole Hessian from above, which is diagonally dominant. A round is a Newton step
    without the blocks between classes: exact for two classes, of linear convergence for more.

    Parameters
    ----------
    n_classes
        How many classes there are; by default those of the target's names, or its largest code.
    features, target
        Columns; features are one column of any trailing shape or several.
    intercept
        Whether each class has one.
    l2
        Half of it times the squared coefficients (not the intercepts') is taken from the log-likelihood: 1 / C of
        scikit-learn's LogisticRegression.
    ranges
        The least and greatest value of each feature column, to which values are cut; features are then in units of
        half their range, and `l2` too. A private fit needs them.
    rounds, tol
        At most this many rounds; stop when the step is shorter than this in units of the errors.

    Learns `coefficients_` [classes, features] and `intercepts_` [classes], up to a constant over the classes where l2
    is 0; `feature_names_`, `classes_` and `converged_`.

    >>> fed = Federation({"x": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "y": [0, 0, 1, 1, 2, 2]}, [0, 2, 6])
    >>> MultinomialGLM(l2=0.1).fit(fed).predict([[0.5], [2.5], [4.5]]).tolist()
    [0, 1, 2]
    """

    name = "multinomial-glm"
    block_clients = 16  # a client sends classes x p x p numbers

    def __init__(
        self,
        n_classes: int | None = None,
        *,
        features: str | Sequence[str] = "x",
        target: str = "y",
        intercept: bool = True,
        l2: float = 0.0,
        ranges: Ranges | None = None,
        rounds: int = 100,
        tol: float = 1e-6,
    ) -> None:
        self.n_classes = n_classes
        self.features = features
        self.target = target
        self.intercept = intercept
        self.l2 = l2
        self.ranges = ranges
        self.rounds = rounds
        self.tol = tol

    def _columns(self) -> Columns:
        names = column_names(self.features, target=self.target)
        return Columns(names, self.target, None, None, self.intercept, self.ranges)

    # -- a round -------------------------------------------------------------------------------------------------------

    def start(self, seed: int) -> Arrays:
        check_whole("n_classes", self.n_classes or 0, least=2)
        check_whole("rounds", self.rounds, least=1)
        if not self.l2 >= 0:
            raise DataError(f"l2 must not be negative, got {self.l2!r}")
        empty = {"coefficients": np.zeros((self.n_classes or 0, 0)), "server.gram": np.zeros((0, 0))}
        return empty | {"server.move": np.full((), 1e300)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        x, gap, weight = self._working(state, clients)
        cuts = list(pairwise(clients.offsets))
        information = [(weight[a:b, :, None] * x[a:b, None]).transpose(1, 2, 0) @ x[a:b] for a, b in cuts]
        score = [gap[a:b].T @ x[a:b] for a, b in cuts]
        k, p = gap.shape[1], x.shape[1]
        return {"information": np.reshape(information, (-1, k, p, p)), "score": np.reshape(score, (-1, k, p))}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        x, gap, weight = self._working(state, clients)
        information = np.stack([(x * own[:, None]).T @ x for own in weight.T])
        return {"information": information, "score": gap.T @ x}

    def _working(self, state: Arrays, clients: Federation) -> tuple[Array, Array, Array]:
        """Features [rows, p], y - p and 2 p (1 - p) of each class, [rows, classes]."""
        x = self._columns().x(clients)
        k, coefficients = int(self.n_classes or 0), state["coefficients"]
        if k * x.shape[1] ** 2 > MOST:
            raise DataError(
                f"{k:,} classes of {x.shape[1]:,} features are {k * x.shape[1] ** 2:,} numbers a client, at most "
                f"{MOST:,} are sent: use fewer features, trees or a network"
            )
        y = target_values(clients, self.target, "softmax", k).astype(np.int64)
        if coefficients.size and coefficients.shape[1] != x.shape[1]:
            raise DataError(f"the features have {x.shape[1]} numbers a row, the model {coefficients.shape[1]}")
        p = softmax(x @ coefficients.T) if coefficients.size else np.full((len(x), k), 1 / k)
        return x, (y[:, None] == np.arange(k)) - p, 2 * np.maximum(p * (1 - p), _LEAST)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        information, score = total["information"], total["score"]
        old = state["coefficients"] if state["coefficients"].size else np.zeros_like(score)
        penalty = np.full(score.shape[1], float(self.l2))
        if self.intercept:
            penalty[-1] = 0.0
        new, wholes = np.empty_like(score), []
        for k, (block, slope) in enumerate(zip(information, score, strict=True)):
            whole = (block + block.T) / 2 + np.diag(penalty)
            new[k] = old[k] + solve(whole, slope - penalty * old[k])
            wholes.append(whole)
        gram = state["server.gram"]
        if not gram.size:  # all classes are alike in the first round: what they add up to is X'X
            gram = information.sum(axis=0) / (2 * (1 - 1 / len(score)))
        new = old + self._held(new - old, gram)
        new -= new.mean(axis=0)  # the same for all classes changes no probability, and has the least penalty
        move = sum(max(float(step @ whole @ step), 0.0) for step, whole in zip(new - old, wholes, strict=True))
        return {"coefficients": new, "server.gram": gram, "server.move": np.asarray(np.sqrt(move))}

    def _held(self, steps: Array, gram: Array) -> Array:
        """Steps that move linear predictors by no more than one unit: a rare class has little curvature at first."""
        rows = float(gram[-1, -1]) if self.intercept else 0.0
        if rows <= 0:
            return steps
        squares = np.einsum("kp,pq,kq->k", steps, gram, steps) / rows
        longest = np.sqrt(np.maximum(squares, 0.0))
        return np.asarray(steps * np.minimum(1.0, _LONGEST / np.maximum(longest, 1e-300))[:, None])

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        columns = self._columns()
        numbers = [valid_numbers(clients[name]) for name in columns.features]
        return all_valid(*numbers, valid_targets(clients[self.target], "softmax", int(self.n_classes or 0)))

    def coded_columns(self) -> Sequence[str]:
        return (self.target,)

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """With ranges every |x| is at most one: |y - p| is at most 2 in L1, 2 p (1 - p) too, 1/2 in squares."""
        p = state["coefficients"].shape[1]
        if clients is not None:
            p = len(self._columns().names(clients))
        if self.ranges is None or not p:
            return None
        spare = 2 * _LEAST * int(self.n_classes or 0)  # where the least curvature is added
        return (2.0 + spare) * p**2 + 2.0 * p if norm == 1 else float(np.sqrt((0.5 + spare) * p**2 + 2.0 * p))

    # -- learning ------------------------------------------------------------------------------------------------------

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        clients, private = engine.clients, how.privacy is not None
        if not isinstance(clients, Federation):
            raise DataError("classes and columns are those of a Federation: use an engine that knows them")
        if private and self.ranges is None:
            raise PrivacyError("a private fit needs ranges={column: (least, greatest)}: where values lie is a secret")
        if private and self.n_classes is None:
            check_declared_classes(clients, self.target)
        n_classes = self.n_classes or max(clients.categories(self.target), 2)
        work = type(self)(**{**self.get_params(), "n_classes": n_classes})
        state = self._run(
            work, engine, how, n_rounds=self.rounds, measure=0,
            done=lambda old, new: not private and self.is_done(new),
        )  # fmt: skip
        self._take(state, clients)

    def is_done(self, state: Arrays) -> bool:
        """Whether the last step was short enough to stop."""
        return bool(state["server.move"] <= self.tol)

    def of_state(self, state: Arrays, clients: Federation) -> MultinomialGLM:
        """A model with the coefficients of a state of the rounds."""
        model = type(self)(**self.get_params())
        model._take(state, clients)
        return model

    def _take(self, state: Arrays, clients: Federation) -> None:
        columns = self._columns()
        values, n = state["coefficients"], state["coefficients"].shape[1] - self.intercept
        centre, half = columns.units([int(np.prod(clients[name].shape[1:])) for name in columns.features])
        self.coefficients_ = values[:, :n] / half
        first = values[:, -1] if self.intercept else np.zeros(len(values))
        self.intercepts_ = first - self.coefficients_ @ centre
        self.feature_names_ = columns.names(clients)
        self.classes_ = tuple(clients.names.get(self.target, ()))
        self.converged_ = self.is_done(state)

    def predict_proba(self, x: npt.ArrayLike) -> Array:
        """The probability of each class, [rows, classes], for features [rows, f] in the order of `feature_names_`."""
        self._check_fitted("coefficients_")
        rows = np.asarray(x, dtype=float)
        rows = rows.reshape(len(rows), int(np.prod(rows.shape[1:])))
        if rows.shape[1] != self.coefficients_.shape[1]:
            raise DataError(f"x has {rows.shape[1]} features a row, the model {self.coefficients_.shape[1]}")
        return softmax(rows @ self.coefficients_.T + self.intercepts_)

    def predict(self, x: npt.ArrayLike) -> Array:
        """The number of the most likely class of each row."""
        return np.asarray(self.predict_proba(x).argmax(axis=1))

    @classmethod
    def examples(cls) -> Sequence[tuple[MultinomialGLM, Federation]]:
        rng = np.random.default_rng(9)
        offsets = offsets_of(rng.integers(0, 7, 30))
        x = rng.uniform(-1, 1, (int(offsets[-1]), 2))
        kind = np.clip(np.floor(x[:, 0] + rng.normal(1.5, 0.5, len(x))), 0, 2).astype(int)
        fed = Federation({"x": x, "y": kind}, offsets)
        settings: dict[str, Any] = {"l2": 0.5}
        return [(cls(3, **settings), fed), (cls(3, ranges={"x": (-1.0, 1.0)}, intercept=False, **settings), fed)]


def softmax(margin: Array) -> Array:
    """Probabilities [rows, classes] of linear predictors.

    >>> softmax(np.array([[0.0, 0.0], [900.0, 0.0]])).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    shifted = np.exp(margin - margin.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
