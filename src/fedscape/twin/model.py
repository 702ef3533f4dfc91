"""The twin of a population of devices: fitted to logs, it draws devices like them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscape.core.engine import Engine
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import CheckpointError, DataError
from fedscape.mixtures.dirichlet_multinomial.files import read_population, write_population
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.privacy.release import noise_sd
from fedscape.twin.devices import Devices, Laws, plain
from fedscape.twin.events import HOUR, checked, sound_only
from fedscape.twin.laws import effect_posterior, rates
from fedscape.twin.population import DevicePopulation, data_kinds, log_sums
from fedscape.twin.tables import AGES, HALF_HOURS, LENGTHS, lengths_of
from fedscape.types import Array, Arrays

SPEEDS = ("work", "bandwidth")  # the log-normal laws


@dataclass(frozen=True, eq=False)
class Twin:
    """Kinds of devices and their laws: what `fit` learns.

    `arrays` are those of `DevicePopulation`: `weights` [kinds, zones], `daily` [kinds, 24] arrivals an hour of a device
    that was away for long, `weekly` [kinds, 7], `recency` [kinds, ages], `shape`, and `ends` [kinds, parts, lengths] an
    hour. If the log has them, also `work`, `bandwidth` [kinds, 3], `finished` [kinds], `data` [kinds, kinds of data].

    >>> from fedscape.twin.events import sessions
    >>> twin = fit(sessions([0, 0, 1], [9e4, 2e5, 8e4], [9.3e4, 2.1e5, 9e4], window=(0.0, 6e5)), n_kinds=1)
    >>> len(twin.sample(5, Key(0))), twin.n_kinds
    (5, 1)
    """

    arrays: Mapping[str, Array] = field(repr=False)
    zones: tuple[int, ...] = (0,)
    tick: float = 0.0
    ages: tuple[float, ...] = AGES
    lengths: tuple[float, ...] = LENGTHS
    log_likelihood: float = float("nan")
    private: bool = False
    ledger: Ledger | None = field(repr=False, default=None)

    @property
    def n_kinds(self) -> int:
        """Number of kinds of devices."""
        return len(self.arrays["weights"])

    def population(self, log: Federation | None = None) -> DevicePopulation:
        """The computation that this twin is a state of; of a log without some columns, the part that reads the rest."""
        columns = {"work": "work", "bandwidth": "bytes", "finished": "finished"}
        extras = [n for n, column in columns.items() if n in self.arrays and (log is None or column in log)]
        n_data = self.arrays["data"].shape[1] if "data" in self.arrays and (log is None or "data" in log) else 0
        return DevicePopulation(
            self.n_kinds,
            zones=self.zones,
            tick=self.tick,
            ages=self.ages,
            lengths=self.lengths,
            extras=extras,
            n_data=n_data,
        )

    def laws(self) -> Laws:
        """The laws of sessions in seconds, as kernels read them."""
        arrays = self.arrays
        steps = arrays["recency"].shape[1], arrays["ends"].shape[2]
        if steps != (len(self.ages) + 1, len(self.lengths) + 1):
            raise DataError(
                f"a twin of {len(self.ages)} ages and {len(self.lengths)} lengths has one rate more of each, "
                f"not {steps[0]} and {steps[1]}"
            )
        hourly = rates(arrays["daily"], arrays["weekly"], np.ones((self.n_kinds, 1))).reshape(self.n_kinds, 168)
        rhythm = np.concatenate((np.zeros((self.n_kinds, 1)), np.cumsum(hourly, axis=1)), axis=1)
        return Laws(
            rhythm,
            np.ascontiguousarray(arrays["recency"], dtype=float),
            np.array(self.ages) * HOUR,
            np.ascontiguousarray(arrays["ends"] / HOUR),
            np.array(self.lengths) * HOUR,
            float(self.tick),
        )

    def sample(self, n: int, key: Key, *, data: npt.ArrayLike | None = None) -> Devices:
        """Draw n devices.

        Parameters
        ----------
        n
            How many.
        key
            What the draws are a function of.
        data
            The kind of data of each device; kinds of devices are then drawn given it. By default drawn too.
        """
        if n < 0:
            raise DataError(f"n must be at least 0, not {n}")
        rng, arrays = key.to("twin").generator(), self.arrays
        joint = np.asarray(arrays["weights"] / arrays["weights"].sum())
        codes = None if data is None else np.asarray(data)
        if codes is not None:
            whole = codes.shape == (n,) and codes.dtype.kind in "iu"
            if "data" not in arrays or not whole or not np.isin(codes, np.arange(arrays["data"].shape[1])).all():
                raise DataError(
                    f"data must be one kind of data for each of the {n:,} devices, of a twin that knows them"
                )
            by_data = joint.sum(axis=1)[:, None] * arrays["data"]  # [K, D]
            kind = _draw(by_data.T[codes], rng)
        else:
            kind = _draw(np.broadcast_to(joint.sum(axis=1), (n, self.n_kinds)), rng)
            codes = _draw(arrays["data"][kind], rng) if "data" in arrays else np.full(n, -1)
        zone = _draw(joint[kind], rng)
        shape = arrays["shape"][kind]
        devices = replace(
            plain(n, key),
            kind=kind,
            zone=np.array(self.zones, dtype=float)[zone] * HOUR,
            activity=np.maximum(rng.gamma(shape) / shape, 1e-12),
            data=codes,
            laws=self.laws(),
        )
        laws = {name: arrays[name][kind] for name in SPEEDS if name in arrays}  # [devices, 3]
        speeds = {name: np.exp(rng.normal(law[:, 0], law[:, 1])) for name, law in laws.items()}
        return self._with_speeds(devices, speeds)

    def _with_speeds(self, devices: Devices, speeds: Mapping[str, Array]) -> Devices:
        """The devices with seconds a unit of work and bandwidths as drawn, and what their kind says besides."""
        arrays, drawn = self.arrays, dict[str, Any]()
        if "work" in speeds:
            drawn |= {"seconds": speeds["work"], "within": arrays["work"][devices.kind, 2]}
        if "bandwidth" in speeds:
            drawn["bandwidth"] = speeds["bandwidth"]
        if "finished" in arrays:
            drawn["finish"] = arrays["finished"][devices.kind]
        return replace(devices, **drawn)

    def sample_like(self, log: Federation, key: Key) -> Devices:
        """Draw one device for each of the log: its kind, zone, activity and speeds given its own rows.

        A device without rows is drawn as `sample` draws it. So who comes, and how fast, stays related to whatever else
        is known of the same devices, such as the rows that they train on.
        """
        log = checked(log)
        rng, arrays, n, work = key.to("twin").generator(), self.arrays, len(log), self.population(log)
        share, shape, rate = work.posteriors(dict(arrays), log)
        both, each = _draw(share.reshape(n, -1), rng), np.arange(n)
        kind, zone = np.divmod(both, len(self.zones))
        codes = np.full(n, -1)
        if "data" in arrays:
            known = data_kinds(log, arrays["data"].shape[1]) if work.n_data else np.zeros((n, arrays["data"].shape[1]))
            codes = _draw(np.where(known.any(axis=1, keepdims=True), known, arrays["data"][kind]), rng)
        devices = replace(
            plain(n, key),
            kind=kind,
            zone=np.array(self.zones, dtype=float)[zone] * HOUR,
            activity=np.maximum(rng.gamma(shape[each, kind, 0]) / rate[each, kind, zone], 1e-12),
            data=codes,
            laws=self.laws(),
        )
        speeds = {}
        for name in (name for name in SPEEDS if name in arrays):
            sums = log_sums(log, name) if name in work.extras else np.zeros((n, 3))
            effect, variance = (each_kind[each, kind] for each_kind in effect_posterior(sums, arrays[name]))
            speeds[name] = np.exp(arrays[name][kind, 0] + effect + np.sqrt(variance) * rng.standard_normal(n))
        return self._with_speeds(devices, speeds)

    def kinds(self, log: Federation) -> Array:
        """The probability of each kind given each device's own log: [devices, kinds]. A device can do it by itself."""
        log = checked(log)
        return np.asarray(self.population(log).posteriors(dict(self.arrays), log)[0].sum(axis=2))

    def score(self, log: Federation) -> float:
        """The mean log-likelihood of devices' logs."""
        log = checked(log)
        return float(self.population(log).measure(dict(self.arrays), log)["log_likelihood"].mean())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .json file and an .npz file beside it."""
        header = {
            "zones": list(self.zones),
            "tick": self.tick,
            "ages": list(self.ages),
            "lengths": list(self.lengths),
            "log_likelihood": None if np.isnan(self.log_likelihood) else self.log_likelihood,
        }
        write_population(path, header, dict(self.arrays), what="twin", private=self.private)


def load(path: str | os.PathLike[str]) -> Twin:
    """Read a twin that `save` wrote.

    >>> load("missing.json")
    Traceback (most recent call last):
    fedscape.errors.CheckpointError: missing.json cannot be read: No such file or directory
    """
    header, arrays = read_population(path, what="twin")
    try:
        score = header["log_likelihood"]
        twin = Twin(
            arrays,
            tuple(header["zones"]),
            float(header["tick"]),
            tuple(header["ages"]),
            tuple(header["lengths"]),
            float("nan") if score is None else float(score),
            bool(header.get("private", False)),
        )
        _check_shapes(twin)
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{os.fspath(path)} does not hold the laws of a twin: save it again") from None
    return twin


def _check_shapes(twin: Twin) -> None:
    """Raise ValueError for arrays that are not those of a twin."""
    like: Arrays = twin.population().start(0)
    for name, values in like.items():
        stored = twin.arrays[name]
        if stored.shape != values.shape or not np.isfinite(stored).all():
            raise ValueError(name)


def fit(
    events: Federation | Engine,
    *,
    n_kinds: int = 3,
    zones: Sequence[int] = (0,),
    tick: float = 0.0,
    ages: Sequence[float] = AGES,
    lengths: Sequence[float] | None = None,
    extras: Sequence[str] | None = None,
    n_data: int | None = None,
    smoothing: float | None = None,
    n_init: int | None = None,
    rounds: int = 90,
    seed: int = 0,
    privacy: Privacy | None = None,
    ledger: Ledger | None = None,
    progress: bool | None = False,
) -> Twin:
    """Fit the twin of a population of devices to logs of when they were available.

    Parameters
    ----------
    events
        A Federation with a client for each device and the columns `start` and `end` (see `sessions`, `from_table`,
        `from_check_ins`), or an engine on such logs.
    n_kinds, zones, tick, ages, n_init, rounds, seed
        As for `DevicePopulation`.
    smoothing
        The same; by default 1, and under privacy the deviation of the noise: rates that the noise covers are then those
        of the whole day, or of all kinds.
    lengths
        The same; by default those of `lengths_of` for this log, which under privacy do not depend on it.
    extras, n_data
        What else is modelled; by default what the log has columns for. An engine elsewhere needs them said.
    privacy, ledger
        How each round's sum is clipped and noised, and where that is written down. The log must then say what was
        observed (`watch`, or a `window` that does not depend on rows). A device whose log is unsound counts as empty.

    >>> from fedscape.twin.events import sessions
    >>> fit(sessions([0, 1], [9e4, 8e4], [9.3e4, 9e4], window=(0.0, 6e5)), n_kinds=1).arrays["daily"].shape
    (1, 24)
    """
    if isinstance(events, Federation):
        if len(events) == 0 or (events.n_rows == 0 and privacy is None):
            raise DataError("there are no events to fit a twin to: give at least one device with an observed span")
        events = checked(events) if privacy is None else sound_only(events)
        columns = {"work": "work", "bandwidth": "bytes", "finished": "finished"}
        if extras is None:
            extras = [name for name, column in columns.items() if column in events]
        if n_data is None:
            n_data = _n_data(events, private=privacy is not None) if "data" in events else 0
        if lengths is None and privacy is None:
            lengths = lengths_of(events, tick=tick)
    population = DevicePopulation(
        n_kinds,
        zones=zones,
        tick=tick,
        ages=ages,
        lengths=lengths or (HALF_HOURS if tick >= 900 else LENGTHS),
        extras=extras or (),
        n_data=n_data or 0,
        smoothing=max(1.0, noise_sd(privacy)) if smoothing is None else smoothing,
        n_init=n_init,
        rounds=rounds,
        seed=seed,
    )
    options: dict[str, Any] = {"privacy": privacy, "ledger": ledger, "progress": progress}
    population.fit(events, **options)
    return Twin(
        population.state_,
        population.zones,
        tick,
        population.ages,
        population.lengths,
        population.log_likelihood_,
        privacy is not None,
        population.ledger_,
    )


def _n_data(events: Federation, *, private: bool) -> int:
    if private:
        raise DataError("under privacy the number of kinds of data must be declared: give n_data")
    return int(np.nanmax(events["data"], initial=-1)) + 1


def _draw(shares: Array, rng: np.random.Generator) -> Array:
    """One category of each row of shares."""
    edges = np.cumsum(shares, axis=1)
    return np.asarray((rng.random(len(shares))[:, None] * edges[:, -1:] >= edges[:, :-1]).sum(axis=1))
