"""A mixture over kinds of devices, by sums: when they come, how long they stay, how fast they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from fedscape.core.engine import Engine
from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.twin.dates import FAR
from fedscape.twin.laws import (
    LEAST,
    PARTS,
    activity_posterior,
    ending_rates,
    gamma_shape,
    lognormal_law,
    lognormal_posterior,
    moments,
    rates,
    ratio,
    spread_laws,
)
from fedscape.twin.tables import AGES, LENGTHS, Tables, tabulate
from fedscape.types import Array, Arrays, Kept

EXTRAS = ("work", "bandwidth", "finished")


class DevicePopulation(Estimator):
    """EM for kinds of devices from their logs: a sum over devices a round, so it can be private.

    While absent, a device of kind k arrives at g daily[k, hour] weekly[k, day] recency[k, age] an hour. Hour and day
    are its own, age is the time since it left, g ~ Gamma(shape[k], shape[k]) is its own activity. A session ends at a
    rate by kind, part of the day in which it began, and its age. Speeds are log-normal, with an effect of the device. A
    round updates one of daily, weekly and recency (ECM), and everything else; the scale of g goes into daily (PX-EM).

    Parameters
    ----------
    n_kinds
        Number of kinds of devices.
    zones
        Time zones that devices may be in, in hours ahead of the log's clock. Only their differences can be learned.
    tick
        Seconds to which times are known; 1800 for a table of half-hours.
    ages, lengths
        Hours at which the rates of return and of ending change.
    extras
        Which columns are modelled as well: of "work", "bandwidth", "finished".
    n_data
        Number of kinds of data, if the column `data` holds them.
    smoothing
        Occurrences added to every rate, at the rate of the whole day, of all parts of it, or of all kinds.
    n_init, rounds, tol, seed
        Starts one after the other (by default 4, and 1 under privacy); rounds at most; the gain in mean
        log-likelihood over three rounds below which to stop; the seed of the starts.

    Learns `state_`, the arrays of the laws, and `log_likelihood_`, the mean over devices.

    >>> from fedscape.twin.events import sessions
    >>> log = sessions([0, 0, 1], [9e4, 2e5, 8e4], [9.3e4, 2.1e5, 9e4], window=(0.0, 6e5))
    >>> DevicePopulation(1, rounds=9).fit(log, progress=False).state_["daily"].shape
    (1, 24)
    """

    name = "device-population"

    block_clients = 256

    def __init__(
        self,
        n_kinds: int = 3,
        *,
        zones: Sequence[int] = (0,),
        tick: float = 0.0,
        ages: Sequence[float] = AGES,
        lengths: Sequence[float] = LENGTHS,
        extras: Sequence[str] = (),
        n_data: int = 0,
        smoothing: float = 1.0,
        n_init: int | None = None,
        rounds: int = 90,
        tol: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.n_kinds = n_kinds
        self.zones = tuple(zones)
        self.tick = tick
        self.ages = tuple(ages)
        self.lengths = tuple(lengths)
        self.extras = tuple(extras)
        self.n_data = n_data
        self.smoothing = smoothing
        self.n_init = n_init
        self.rounds = rounds
        self.tol = tol
        self.seed = seed

    def start(self, seed: int) -> Arrays:
        """Kinds that come between once in three days and six times a day, most in different hours.

        With odd seeds, where speeds are known, kinds come alike and differ in speed alone.
        """
        self._check()
        k, rng = self.n_kinds, Key(seed, purpose="kinds of devices").generator()
        apart = 0.0 if k == 1 or (seed % 2 and {"work", "bandwidth"} & set(self.extras)) else 1.0
        level = np.exp(apart * np.linspace(-1.5, 1.5, k)) if k > 1 else np.ones(1)
        peak = rng.uniform(0, 24, k)[:, None]
        daily = 0.06 * level[:, None] * np.exp(0.5 * apart * np.cos((np.arange(24) - peak) * np.pi / 12))
        stay = np.exp(apart * rng.uniform(-0.7, 0.7, k)) if k > 1 else np.ones(1)
        state = {
            "weights": np.full((k, len(self.zones)), 1 / (k * len(self.zones))),
            "daily": daily,
            "weekly": np.ones((k, 7)),
            "recency": np.ones((k, len(self.ages) + 1)),
            "shape": np.ones(k),
            "ends": np.repeat(stay, PARTS * (len(self.lengths) + 1)).reshape(k, PARTS, -1),
        }
        for name in ("work", "bandwidth"):
            if name in self.extras:
                places = rng.permutation(np.linspace(-1, 1, k))  # see spread_laws; wide, so that all fit all speeds
                state[name] = np.stack([places, np.full(k, 10.0), np.ones(k)], axis=1)
        if "finished" in self.extras:
            state["finished"] = np.full(k, 0.5)
        if self.n_data:
            state["data"] = np.full((k, self.n_data), 1 / self.n_data)
        return state

    def _check(self) -> None:
        for name in ("n_kinds", "rounds"):
            check_whole(name, getattr(self, name), least=1)
        check_whole("n_data", self.n_data, least=0)
        if self.n_init is not None:
            check_whole("n_init", self.n_init, least=1)
        if unknown := set(self.extras) - set(EXTRAS):
            raise DataError(f"extras must be of {', '.join(EXTRAS)}, not {', '.join(sorted(unknown))}")
        for name in ("smoothing", "tick"):
            if not 0 <= getattr(self, name) < np.inf:
                raise DataError(f"{name} must be at least 0, not {getattr(self, name)}")
        if not self.zones or any(zone != int(zone) or abs(zone) > 24 for zone in self.zones):
            raise DataError(f"zones must be whole hours ahead of the log's clock, at most 24, not {self.zones}")
        for name, edges in (("ages", self.ages), ("lengths", self.lengths)):
            if not all(a < b < np.inf for a, b in zip((0.0, *edges), edges, strict=False)):
                raise DataError(f"{name} must rise from above 0, in hours, not {edges}")

    def _tables(self, clients: Federation) -> Tables:
        return tabulate(clients, tick=self.tick, ages=np.array(self.ages), lengths=np.array(self.lengths))

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        tables = self._tables(clients)
        likelihood, means, logs, extra = self._expect(state, clients, tables)
        share = np.exp(likelihood - logsumexp(likelihood, axis=(1, 2), keepdims=True))  # [devices, K, Z]
        share *= (clients.sizes > 0)[:, None, None]
        counts: list[Array] = []
        weighted: list[Array] = []
        ends: list[Array] = []
        present: list[Array] = []
        for z, zone in enumerate(self.zones):
            own = share[:, :, z, None]
            counts.append(own * _margins(_local(tables.arrivals, zone))[:, None, :])
            weighted.append(own * means[:, :, z, None] * _expected(_local(tables.absent, zone), state))
            for into, table in ((ends, tables.ends), (present, tables.present)):
                into.append(own[..., None] * _by_part(table, zone)[:, None])
        sent = {
            "kinds": share,
            "arrivals": np.sum(counts, axis=0),
            "absent": np.sum(weighted, axis=0),
            "activity": np.stack([(share * means).sum(axis=2), (share * logs).sum(axis=2)], axis=2),
            "ends": np.sum(ends, axis=0),
            "present": np.sum(present, axis=0),
        }
        of_kind = share.sum(axis=2)[..., None]
        return {**sent, **{name: of_kind * values for name, values in extra.items()}}, {}

    def _expect(self, state: Arrays, clients: Federation, tables: Tables) -> tuple[Array, Array, Array, Arrays]:
        """Log-likelihood with the weight of [devices, kinds, zones], moments of the activity, what extras send."""
        shape = (len(clients), self.n_kinds, len(self.zones))
        expected, fixed = np.zeros(shape), np.zeros(shape)
        rate = rates(state["daily"], state["weekly"], state["recency"])
        log_rate, widths = np.log(rate), moments(self.lengths)
        moment = np.isfinite(widths)
        width = np.where(moment, widths, 0.0)  # a session that ends in a moment lives through none of it
        chance = np.where(moment, -np.expm1(-state["ends"] * np.where(moment, widths, 1.0)), state["ends"])
        log_ends = np.log(np.maximum(chance, LEAST))
        for z, zone in enumerate(self.zones):
            arrivals, absent = _local(tables.arrivals, zone), _local(tables.absent, zone)
            expected[:, :, z] = _products(absent, rate)
            fixed[:, :, z] = _products(arrivals, log_rate)
            ends = _by_part(tables.ends, zone)
            fixed[:, :, z] += _products(ends, log_ends)
            fixed[:, :, z] -= _products(_by_part(tables.present, zone) - ends * width, state["ends"])
        number = np.broadcast_to(tables.arrivals.sum(axis=(1, 2))[:, None, None], shape)
        activity = activity_posterior(number, expected, state["shape"])
        fixed += activity.log_likelihood + np.log(np.maximum(state["weights"], LEAST))
        extra: Arrays = {}
        for name in ("work", "bandwidth"):
            if name in self.extras:
                likelihood, extra[name] = lognormal_posterior(log_sums(clients, name), state[name])
                fixed += likelihood[:, :, None]
        if "finished" in self.extras:
            counted = _outcomes(clients)
            chance = np.stack([state["finished"], 1 - state["finished"]], axis=1)  # [K, 2]
            fixed += (counted @ np.log(np.maximum(chance, LEAST)).T)[:, :, None]
            extra["finished"] = np.repeat(counted[:, None], self.n_kinds, axis=1)
        if self.n_data:
            kind = data_kinds(clients, self.n_data)
            fixed += (kind @ np.log(np.maximum(state["data"], LEAST)).T)[:, :, None]
            extra["data"] = np.repeat(kind[:, None], self.n_kinds, axis=1)
        return fixed, activity.mean, activity.mean_log, extra

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        """Log-likelihood of each device's log; 0 for one without rows."""
        likelihood = logsumexp(self._expect(state, clients, self._tables(clients))[0], axis=(1, 2))
        return {"log_likelihood": np.where(clients.sizes > 0, likelihood, 0.0)}

    def posteriors(self, state: Arrays, clients: Federation) -> tuple[Array, Array, Array]:
        """Given each device's own log, for each kind and zone: its probability, and shape and rate of the activity."""
        tables = self._tables(clients)
        likelihood, mean, _, _ = self._expect(state, clients, tables)
        shape = tables.arrivals.sum(axis=(1, 2))[:, None, None] + state["shape"][:, None]
        return np.exp(likelihood - logsumexp(likelihood, axis=(1, 2), keepdims=True)), shape, shape / mean

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        new, s = dict(state), self.smoothing
        kinds = np.maximum(total["kinds"], 0.0) + s
        devices, scale = np.maximum(total["kinds"].sum(axis=1), 0.0), np.ones(self.n_kinds)
        if kinds.sum() > 1e-9:
            new["weights"] = kinds / kinds.sum()
        if (mask := devices > 1e-9).any():
            mean = total["activity"] / np.where(mask, devices, 1.0)[:, None]
            scale = np.where(mask, np.clip(mean[:, 0], 0.1, 10.0), 1.0)
            shape = gamma_shape(np.ones(self.n_kinds), mean[:, 1] - np.log(scale))
            new["shape"] = np.where(mask, shape, state["shape"])
        self._update_rhythm(new, total, key.round % 3)
        new["daily"] = new["daily"] * scale[:, None]
        ends, present = np.maximum(total["ends"], 0.0), np.maximum(total["present"], 0.0)
        old, widths = state["ends"], moments(self.lengths)
        mean = old.mean(axis=(0, 1))
        all_kinds = ending_rates(ends.sum(axis=(0, 1)), present.sum(axis=(0, 1)), np.ones(1), s, mean, widths)
        parts = ends.sum(axis=1), present.sum(axis=1)
        whole_day = ending_rates(*parts, all_kinds[None], s, old.mean(axis=1), widths)
        new["ends"] = ending_rates(ends, present, whole_day[:, None], s, old, widths)
        for name in ("work", "bandwidth"):
            if name in self.extras:
                law = lognormal_law(total[name], state[name])
                new[name] = law if key.round else spread_laws(law, state[name][:, 0], total[name][:, 4])
        if "finished" in self.extras:
            number = np.maximum(total["finished"], 0.0) + s
            fallback = np.stack([state["finished"], 1 - state["finished"]], axis=1)
            number = np.where(number.sum(axis=1, keepdims=True) > 1e-9, number, fallback)
            new["finished"] = number[:, 0] / number.sum(axis=1)
        if self.n_data:
            number = np.maximum(total["data"], 0.0) + s
            number = np.where(number.sum(axis=1, keepdims=True) > 1e-9, number, state["data"])
            new["data"] = number / number.sum(axis=1, keepdims=True)
        return new

    def _update_rhythm(self, new: Arrays, total: Arrays, turn: int) -> None:
        """Update one of the three factors; the scale moves into `daily`."""
        at = np.cumsum([0, 24, 7, len(self.ages) + 1])
        number, exposure = (total[name][:, at[turn] : at[turn + 1]] for name in ("arrivals", "absent"))
        name = ("daily", "weekly", "recency")[turn]
        level = np.ones((self.n_kinds, 1))
        if turn == 0:
            level = ratio(number.sum(axis=1), exposure.sum(axis=1), np.ones(1), 0.0, new["daily"].mean(axis=1))[:, None]
        new[name] = ratio(number, exposure, level, self.smoothing, new[name])
        if turn:
            unit = new[name].mean(axis=1) if turn == 1 else new[name][:, -1]
            new[name] = new[name] / unit[:, None]
            new["daily"] = new["daily"] * unit[:, None]

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return np.asarray((np.abs(clients["start"]) < FAR) & (np.abs(clients["end"]) < FAR))

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        self._check()
        best: tuple[float, Arrays] | None = None
        for number in range(self._n_starts(self.n_init, how)):
            begin, part = len(self.history_), how.phase(f".{number}")
            recent: list[float] = []

            def settled(old: Arrays, new: Arrays, begin: int = begin, recent: list[float] = recent) -> bool:
                if "log_likelihood" not in self.history_.columns or len(self.history_) - begin < 12:
                    return False
                gains = self.history_["log_likelihood"][-4:]
                return bool(gains[-1] - gains[0] < self.tol)

            state = self._run(
                self, engine, part, n_rounds=self.rounds, seed=self.seed + number, state=None, done=settled
            )
            score = self.history_["log_likelihood"][-1] if how.privacy is None else float("nan")
            if best is None or score > best[0]:
                best = (float(score), state)
        assert best is not None
        self.log_likelihood_, self.state_ = best

    @classmethod
    def examples(cls) -> Sequence[tuple[DevicePopulation, Federation]]:
        from fedscape.twin.events import sessions

        rng = np.random.default_rng(4)
        who, start, end = [], [], []
        for device in range(20):
            t = rng.exponential(2e4)
            while t < 5e5:
                who.append(device)
                start.append(t)
                end.append(t := t + rng.exponential(4e3 * (1 + device % 2)))
                t += rng.exponential(4e4 / (1 + device % 3))
        columns = {
            "work": rng.lognormal(3, 1, len(who)),
            "bytes": rng.lognormal(14, 1, len(who)),
            "transfer": rng.lognormal(1, 1, len(who)),
            "finished": rng.integers(0, 2, len(who)),
            "data": np.asarray(who) % 2,
        }
        plain = sessions(who, start, end, window=(0.0, 5.2e5), ids=np.arange(21))
        full = sessions(who, start, end, window=(0.0, 5.2e5), columns=columns)
        return [
            (cls(2, smoothing=0.0, ages=(1.0, 4.0), lengths=(0.5, 2.0)), plain),
            (
                cls(
                    2, smoothing=0.0, ages=(1.0, 4.0), lengths=(1.0,), zones=(0, 8), tick=60.0, extras=EXTRAS, n_data=2
                ),
                full,
            ),
        ]


def _local(table: Array, zone: int) -> Array:
    """Hours of the week [devices, 168, ages] as local days and hours: [devices, 7, 24, ages]."""
    return np.roll(table, zone, axis=1).reshape(len(table), 7, 24, table.shape[2])


def _by_part(table: Array, zone: int) -> Array:
    """Hours of the start [devices, 24, lengths] as parts of the local day: [devices, parts, lengths]."""
    local = np.roll(table, zone, axis=1)
    return np.asarray(local.reshape(len(table), PARTS, 24 // PARTS, table.shape[2]).sum(axis=2))


def _products(tables: Array, rate: Array) -> Array:
    """Tables of devices times those of kinds, added up: [devices, kinds]."""
    return np.asarray(np.einsum("nx,kx->nk", tables.reshape(len(tables), -1), rate.reshape(len(rate), -1)))


def _margins(table: Array) -> Array:
    """Sums over all but hour, day and age, one after the other: [devices, 24 + 7 + ages]."""
    return np.concatenate([table.sum(axis=(1, 3)), table.sum(axis=(2, 3)), table.sum(axis=(1, 2))], axis=1)


def _expected(absent: Array, state: Arrays) -> Array:
    """Exposures of each factor, times the rates of the two others: [devices, kinds, 24 + 7 + ages]."""
    daily, weekly, recency = state["daily"], state["weekly"], state["recency"]
    hourly = np.einsum("nwha,ka->nkwh", absent, recency)
    parts = [
        np.einsum("nkwh,kw->nkh", hourly, weekly),
        np.einsum("nkwh,kh->nkw", hourly, daily),
        np.einsum("nwha,kwh->nka", absent, weekly[:, :, None] * daily[:, None, :]),
    ]
    return np.concatenate(parts, axis=2)


def log_sums(clients: Federation, name: str) -> Array:
    """Number, sum and sum of squares of log seconds a unit of work, or of log bytes a second: [devices, 3]."""
    with np.errstate(all="ignore"):
        if name == "work":
            units = clients["units"].astype(float) if "units" in clients else 1.0
            values = np.log(clients["work"].astype(float) / units)
        else:
            values = np.log(clients["bytes"].astype(float) / clients["transfer"].astype(float))
    use = np.isfinite(values) & (clients["watch"] == 0)
    values = np.where(use, values, 0.0)
    return clients.segment_sum(np.stack([use.astype(float), values, values**2], axis=1))


def _outcomes(clients: Federation) -> Array:
    """How many sessions ended well, and how many did not: [devices, 2]."""
    ended, session = clients["finished"], clients["watch"] == 0
    return clients.segment_sum(np.stack([session & (ended == 1), session & (ended == 0)], axis=1).astype(float))


def data_kinds(clients: Federation, n: int) -> Array:
    """The kind of data of each device as indicators [devices, n]; zeros where it is not known."""
    codes = np.where(np.abs(clients["data"]) < 2.0**31, clients["data"], -1).astype(np.int64)  # NaN is unknown
    if codes.max(initial=-1) >= n:
        raise DataError(f"the column 'data' goes up to {codes.max()}, but there are {n} kinds of data")
    known = clients.segment_sum((codes[:, None] == np.arange(n)).astype(float))
    return np.asarray(known / np.maximum(known.sum(axis=1, keepdims=True), 1.0))
