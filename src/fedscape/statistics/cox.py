"""Proportional hazards by sums: what raises or lowers the risk of an event, from times that never leave their site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import chi2, norm

from fedscape.core.arrays import offsets_of
from fedscape.core.engine import Engine, as_engine
from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_number, check_whole
from fedscape.errors import DataError, PrivacyError
from fedscape.statistics.survival import (
    Concordance,
    EventTimes,
    Rows,
    TimeScale,
    intervals,
    newton_sums,
    risk_sums,
    survival_rows,
    valid_survival,
)
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import Privacy

TIES = ("efron", "breslow")
STRATA = (None, "clients")


@dataclass(frozen=True)
class Heterogeneity:
    """Whether clients' coefficients differ by more than chance.

    `q` is the sum over clients of U' I^-1 U, score and information of each at the common coefficients: Cochran's Q of
    their one-step estimates. Without heterogeneity it is chi-squared with `freedom` degrees; `share` is I^2, the part
    of the variation between clients that is not chance.

    >>> Heterogeneity(30.0, 20).share.__round__(3), round(Heterogeneity(30.0, 20).p, 3)
    (0.333, 0.07)
    """

    q: float
    freedom: int

    @property
    def share(self) -> float:
        """I^2: (Q - freedom) / Q, 0 at the least."""
        return max(0.0, (self.q - self.freedom) / self.q) if self.q > 0 else 0.0

    @property
    def p(self) -> float:
        """How often chance alone gives as much."""
        return float(chi2.sf(self.q, self.freedom)) if self.freedom > 0 else 1.0


_LOST = 1e-6  # of the information at zero: beyond it a coefficient is on its way to infinity


class CoxRegression(Estimator):
    """Cox's proportional hazards model of all clients' rows: h(t | x) = h0(t) exp(x' beta).

    The partial likelihood needs, at each event time, sums over all who are still at risk: of w = exp(x' beta), of w x
    and of w x x'. Clients send these for each interval between the times of a grid, with the events and their sums of
    x. The server adds them from the last time down, which gives every risk set of the pooled rows, and takes a Newton
    step. On a grid that holds every event time the answer is that of the pooled rows, to rounding.

    What the server learns: with `times` given, sums over the clients in each interval, and no time that is not on the
    grid. With times=None the clients first add up how many events fall on each multiple of `resolution`: the sum tells
    when events were, not where. A site's own times stay with it. But where a grid is as fine as days and an interval
    holds one patient, its sums are that patient's row. Give a coarser grid, secure sums, or strata="clients". With that
    each client compares its own rows only (a baseline hazard of its own) and sends its log-likelihood, score and
    information: no time at all.

    Parameters
    ----------
    times
        The grid: rising times, the first not above any event. A time between two counts as the lower one. Rounding
        errors are none: a time a billionth of the gap below the next one is that one.
    resolution
        The width of the grid where `times` is not given: a time between two multiples of it counts as the lower one.
        None is 1, for days in whole numbers, and refuses events at other times. A private fit cannot look: it needs
        `resolution` or `times`, if there are no strata.
    ties
        "efron" or "breslow": how events at the same time are handled.
    strata
        None: one baseline hazard. "clients": one for each client.
    ridge
        ridge / 2 |beta|^2 is taken off the log-likelihood.
    features, time, event
        A column of several numbers, or names of columns; the time of the event or of leaving; 1 for an event, 0 for
        leaving before it.
    rounds, tol
        The most Newton steps; they end when the log-likelihood can rise by less than `tol`.

    Learns `coefficients_` [d], `standard_errors_` [d], `covariance_`, `p_` (two-sided, Wald), `log_likelihood_`,
    `n_events_`, and, without strata, `times_` and `baseline_`: Breslow's cumulative hazard at x = 0. With strata
    `heterogeneity_`.

    >>> fed = Federation({"x": [[0.0], [1.0], [0.0], [1.0], [1.0]], "time": [5, 2, 4, 3, 6], "event": [1, 1, 0, 1, 1]},
    ...                  [0, 2, 5])
    >>> cox = CoxRegression().fit(fed)
    >>> cox.coefficients_.round(3).tolist(), cox.standard_errors_.round(3).tolist()
    ([0.564], [1.229])
    """

    name = "cox"

    block_clients = 8  # a client sends d x d numbers for each time

    def __init__(
        self,
        *,
        times: Array | Sequence[float] | None = None,
        resolution: float | None = None,
        ties: str = "efron",
        strata: str | None = None,
        ridge: float = 0.0,
        features: str | Sequence[str] = "x",
        time: str = "time",
        event: str = "event",
        rounds: int = 25,
        tol: float = 1e-16,
    ) -> None:
        self.times = times
        self.resolution = resolution
        self.ties = ties
        self.strata = strata
        self.ridge = ridge
        self.features = features
        self.time = time
        self.event = event
        self.rounds = rounds
        self.tol = tol
        check_whole("rounds", rounds, least=1)
        if ties not in TIES or strata not in STRATA:
            raise DataError(f"ties must be one of {TIES} and strata one of {STRATA}, not {ties!r} and {strata!r}")
        if (
            check_number("resolution", 1.0 if resolution is None else resolution) <= 0
            or check_number("ridge", ridge) < 0
        ):
            raise DataError(f"resolution must be above 0 and ridge at least 0, not {resolution} and {ridge}")
        if times is not None:
            grid = np.asarray(times, dtype=np.float64)
            if grid.ndim != 1 or not len(grid) or not np.isfinite(grid).all() or (np.diff(grid) <= 0).any():
                raise DataError(f"times must be finite numbers that rise, one at least, not {times}")

    # -- a round -------------------------------------------------------------------------------------------------------

    def start(self, seed: int) -> Arrays:
        none = np.zeros(0)  # until the first sums tell how many features there are
        numbers = {"log_likelihood": np.full((), -1e300), "gain": np.full((), 1e300), "events": np.zeros(())}
        spread = {"q": np.zeros(()), "freedom": np.zeros(()), "information": np.zeros((0, 0)), "hazard": none}
        spread["first"] = np.zeros((0, 0))  # the information at zero
        return {"beta": none, **_of_server({"before": none, **numbers, **spread})}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        rows = self._rows(clients)
        return self._sums(state, rows, np.repeat(np.arange(len(clients)), clients.sizes), len(clients)), {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        if self.strata is not None:
            return None
        rows = self._rows(clients)
        return {n: v[0] for n, v in self._sums(state, rows, np.zeros(len(rows.x), dtype=np.int64), 1).items()}

    def _rows(self, clients: Federation) -> Rows:
        return survival_rows(clients, self.features, self.time, self.event)

    def _sums(self, state: Arrays, rows: Rows, owner: Array, n: int) -> Arrays:
        beta = state["beta"] if state["beta"].size else np.zeros(rows.x.shape[1])
        if self.strata is not None:
            return newton_sums(rows, beta, owner, n, efron=self.ties == "efron")
        if self.times is None:
            raise DataError("times must be a grid for rounds of CoxRegression: fit() finds one, or give times=")
        times = np.asarray(self.times, dtype=np.float64)
        return risk_sums(rows, beta, times, owner, n, efron=self.ties == "efron", width=self._width)

    @property
    def _width(self) -> float:
        return 1.0 if self.resolution is None else self.resolution

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        parts = self._parts(total)
        d = len(parts["score"])
        beta = state["beta"] if state["beta"].size else np.zeros(d)
        value = parts["log_likelihood"] - self.ridge / 2 * beta @ beta
        facts = {"events": parts["events"], "q": parts["q"], "freedom": parts["freedom"], "hazard": parts["hazard"]}
        if value < state["server.log_likelihood"] - 1e-9 * (1 + abs(value)):  # too far: half way back
            return {**state, "beta": (beta + state["server.before"]) / 2}
        score = parts["score"] - self.ridge * beta
        information = (parts["information"] + parts["information"].T) / 2 + self.ridge * np.eye(d)
        move = _solved(information, score)
        first = state["server.first"] if state["server.first"].size else information
        likelihood = {"log_likelihood": np.asarray(value), "gain": np.asarray(abs(score @ move) / 2)}
        learned = {"before": beta, "information": information, "first": first, **likelihood, **facts}
        return {"beta": beta + move, **_of_server(learned)}

    def _parts(self, total: Arrays) -> Arrays:
        """Log-likelihood, score and information of the sums."""
        zero = np.zeros(())
        if self.strata is not None:
            return {**{n: np.asarray(v, dtype=np.float64) for n, v in total.items()}, "hazard": np.zeros(0)}
        s0, s1, s2 = (np.flip(np.cumsum(np.flip(total[n], 0), 0), 0) for n in ("risk", "risk_x", "risk_xx"))
        value, score, information = float(total["events_xb"]), total["events_x"].copy(), np.zeros(s2.shape[1:])
        counts = np.maximum(np.rint(total["events"]), 0).astype(np.int64)
        hazard = np.zeros(len(counts))
        for g in np.flatnonzero(counts):
            for tied in range(counts[g]):
                part = tied / counts[g] if self.ties == "efron" else 0.0
                a0, a1, a2 = (
                    (s[g] - part * total[n][g]) if part else s[g]
                    for s, n in ((s0, "tied"), (s1, "tied_x"), (s2, "tied_xx"))
                )
                if a0 <= 0:  # noise says so
                    continue
                value, score = value - np.log(a0), score - a1 / a0
                information += a2 / a0 - np.outer(a1, a1) / a0**2
            hazard[g] = counts[g] / s0[g] if s0[g] > 0 else 0.0
        return {"log_likelihood": np.asarray(value), "score": score, "information": information, "hazard": hazard,
                "events": np.asarray(counts.sum(), dtype=np.float64), "q": zero, "freedom": zero}  # fmt: skip

    # -- a fit ---------------------------------------------------------------------------------------------------------

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        rounds = CoxRegression(**{**self.get_params(), "times": self._grid(engine, how)})
        state = self._run(
            rounds,
            engine,
            how,
            n_rounds=self.rounds,
            done=lambda old, new: bool(new["server.gain"] <= self.tol),
            measure=0,
        )
        state = {name.removeprefix("server."): values for name, values in state.items()}
        if not state["events"] >= 1:
            raise DataError(f"the column {self.event!r} must hold an event, a 1, for some row; it holds none")
        if how.privacy is None and self.ridge == 0:
            _check_bounded(state["beta"], state["information"], state["first"])
        self.coefficients_ = state["beta"]
        self.covariance_ = np.linalg.pinv(state["information"], hermitian=True)
        self.standard_errors_ = np.sqrt(np.maximum(np.diag(self.covariance_), 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            self.p_ = 2 * norm.sf(np.abs(self.coefficients_ / self.standard_errors_))
        self.log_likelihood_, self.n_events_ = float(state["log_likelihood"]), int(state["events"])
        if self.strata is None:
            self.times_, self.baseline_ = np.asarray(rounds.times), np.cumsum(state["hazard"])
        else:
            freedom = max(int(state["freedom"]) - len(self.coefficients_), 0)
            self.heterogeneity_ = Heterogeneity(float(state["q"]), freedom)

    def _grid(self, engine: Engine, how: Fit) -> Array | None:
        """The times of the grid: those given, or the multiples of the resolution at which there are events."""
        if self.strata is not None or self.times is not None:
            return None if self.times is None else np.asarray(self.times, dtype=np.float64)
        width, strict = self._width, self.resolution is None
        if strict and how.privacy is not None:
            raise PrivacyError("a private fit needs resolution= or times=: when events happen is a secret")
        survey = TimeScale(time=self.time, event=self.event, resolution=width, strict=strict)
        scale = self._run(survey, engine, how.phase(".scale"), n_rounds=1, measure=0)
        if strict and scale["between"] > 0:
            raise DataError(
                f"{scale['between']:,.0f} events of the column {self.time!r} are not at a whole number: give the width "
                "of the grid as resolution=, such as 0.01 for years with two digits, or the grid itself as times="
            )
        digits = np.flatnonzero(scale["digits"] > 0.5)
        reach = 2 ** int(digits.max(initial=0))
        counting = EventTimes(reach, time=self.time, event=self.event, resolution=width)
        counts = self._run(counting, engine, how.phase(".times"), n_rounds=1, measure=0)["counts"]
        times = np.flatnonzero(counts > 0.5) * width
        if not len(times):
            raise DataError(f"the column {self.event!r} must hold an event, a 1, for some row; it holds none")
        return times

    # -- what it says --------------------------------------------------------------------------------------------------

    def predict(self, x: Array) -> Array:
        """The log of each row's hazard relative to x = 0: [rows]."""
        self._check_fitted("coefficients_")
        return np.asarray(np.asarray(x, dtype=np.float64) @ self.coefficients_)

    def interval(self, level: float = 0.95) -> Array:
        """Wald intervals of the coefficients: [d, 2]."""
        self._check_fitted("coefficients_")
        away = norm.ppf((1 + level) / 2) * self.standard_errors_
        return np.stack([self.coefficients_ - away, self.coefficients_ + away], axis=1)

    def score(
        self, data: Engine | Federation, *, privacy: Privacy | None = None, ledger: Ledger | None = None
    ) -> float:
        """The mean over clients of the concordance of their own rows: which of two has the event first.

        Only pairs of one client are compared, so clients send two sums. A client without a comparable pair is left out.
        """
        return float(self.concordance(data, privacy=privacy, ledger=ledger)["of_clients"])

    def concordance(
        self, data: Engine | Federation, *, privacy: Privacy | None = None, ledger: Ledger | None = None
    ) -> dict[str, float]:
        """`of_clients`: the mean over clients of their own concordance; `pooled`: over the pairs of all clients.

        NaN where no client has two rows of which one is known to have its event first. A model that was fitted
        privately needs `privacy`; the release is booked in the ledger of the fit, or this one.
        """
        self._check_fitted("coefficients_")
        judge = Concordance(self.coefficients_, features=self.features, time=self.time, event=self.event)
        asker, how = self._asking("a score", privacy, ledger)
        state = asker._run(judge, as_engine(data), how, n_rounds=1, measure=0)
        parts = {"of_clients": ("index", "judged"), "pooled": ("right", "pairs")}
        return {
            name: float(state[a]) / max(float(state[b]), 1.0) if state[b] > 0 else np.nan
            for name, (a, b) in parts.items()
        }

    def heterogeneity(self, data: Engine | Federation) -> Heterogeneity:
        """Whether clients' coefficients differ, from a fit with strata="clients" to these."""
        self._asking("a test of heterogeneity", None, None)
        apart = CoxRegression(**{**self.get_params(), "strata": "clients", "times": None})
        return apart.fit(data, progress=False).heterogeneity_

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        good = valid_survival(clients, self.features, self.time, self.event)
        if self.times is None:
            return good
        begun = intervals(clients[self.time], np.asarray(self.times, dtype=np.float64), self._width) >= 0
        return np.asarray(good & (begun | (clients[self.event] == 0)))

    def coded_columns(self) -> Sequence[str]:
        return (self.event,)

    @classmethod
    def examples(cls) -> Sequence[tuple[CoxRegression, Federation]]:
        rng = np.random.default_rng(6)
        offsets = offsets_of(rng.integers(0, 9, 14))
        n = offsets[-1]
        columns = {"x": rng.normal(size=(n, 2)), "time": rng.integers(1, 12, n), "event": rng.integers(0, 2, n)}
        fed, grid = Federation(columns, offsets), [1, 2, 4, 6, 8]
        return [
            (cls(times=grid), fed),
            (cls(times=grid, ties="breslow", ridge=0.1), fed),
            (cls(strata="clients", ridge=0.1), fed),
        ]


def _check_bounded(beta: Array, information: Array, first: Array) -> None:
    """Refuse a direction in which the likelihood rises for ever: what was known of it at zero is lost on the way."""
    values, vectors = np.linalg.eigh(first)
    good = values > 1e-10 * max(float(values.max(initial=0.0)), 1e-300)
    scaled = vectors[:, good] / np.sqrt(values[good])
    left, ways = np.linalg.eigh(scaled.T @ information @ scaled)
    if left.size and left[0] < _LOST:
        way = np.abs(scaled @ ways[:, 0]) * np.sqrt(np.maximum(np.diag(first), 0.0))
        most = int(np.argmax(way))
        raise DataError(
            f"some features order the events, and their coefficients grow without end, most that of feature {most} "
            f"({beta[most]:.3g} so far): give ridge=, such as 1, or leave such features out"
        )


def _of_server(learned: Arrays) -> Arrays:
    """What clients are not sent: a step needs the coefficients alone."""
    return {f"server.{name}": values for name, values in learned.items()}


def _solved(information: Array, score: Array) -> Array:
    """The Newton step; directions in which nothing is known do not move."""
    values, vectors = np.linalg.eigh(information)
    good = values > 1e-10 * max(float(values.max(initial=0.0)), 1e-300)
    return np.asarray(vectors[:, good] @ ((vectors[:, good].T @ score) / values[good]))
