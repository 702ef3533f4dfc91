"""Privacy over a whole run: its secret, its clip, its lines in the ledger."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.errors import PrivacyError
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import AdaptiveClip, Arrays, Privacy
from fedscape.privacy.release import Release, release_key
from fedscape.random import Array, Key
from fedscape.sampling import Sampler, marked

if TYPE_CHECKING:
    from fedscape.computation import Computation
    from fedscape.engine import Engine, Reply

_ENTRIES_AHEAD = ("local", "distributed")  # here clients release by sending, before the server sees a sum


@dataclass(frozen=True)
class Opened:
    """The releases of one round, not yet made, and how the ledger will know them."""

    sum: Release
    metrics: Release | None
    round: int
    digests: Mapping[str, str]

    def without(self, absent: str) -> Opened:
        """The same releases of those who reported: another sum, so other noise and another entry."""
        for release in (self.sum, self.metrics):
            if release is not None:
                release.key = hmac.digest(release.key, absent.encode(), "sha256")
        digests = {name: hashlib.sha256(f"{d} {absent}".encode()).hexdigest() for name, d in self.digests.items()}
        return replace(self, digests=digests)


class Guard:
    """Holds a run to its promise: nothing leaves that is not clipped, noised and written down before.

    The secret is 32 bytes from the operating system. It keys the noise of each release together with everything the
    release depends on, so that a round which is run again repeats its noise and is the same release; and it keys who
    takes part, because a sample that can be foretold amplifies nothing.
    """

    def __init__(
        self, privacy: Privacy, measure_privacy: Privacy | None, ledger: Ledger, sampler: Sampler, engine: Engine
    ) -> None:
        if measure_privacy is not None and isinstance(measure_privacy.clip, AdaptiveClip):
            raise PrivacyError("measure_privacy needs a fixed clip")
        if measure_privacy is not None and (measure_privacy.unit, measure_privacy.place) != ("client", "central"):
            raise PrivacyError("measure_privacy needs unit='client' and place='central'")
        if marked(sampler, "reads_data"):
            raise PrivacyError(
                f"{type(sampler).__name__} chooses clients by their data, which no accountant covers: "
                "use Poisson or FixedSize"
            )
        self.privacy, self.measure_privacy, self.ledger = privacy, measure_privacy, ledger
        self.sampler, self.engine = sampler, engine
        self.run = os.urandom(8).hex()
        self.secret = privacy.new_secret()
        self.clip = privacy.first_clip

    def __repr__(self) -> str:
        return f"{self.privacy!r}, metrics {self.measure_privacy!r}"

    @property
    def measures(self) -> bool:
        """Whether metrics may be measured."""
        return self.measure_privacy is not None

    def cohort_key(self, key: Key) -> Key:
        """Who takes part is drawn with the secret, not with the seed."""
        seed = int.from_bytes(hmac.digest(self.secret, b"cohort", "sha256")[:8], "little")
        return Key(seed, key.round, "cohort")

    def reserve(self, begin: int, end: int, measure: int) -> None:
        """Set aside the releases of these rounds, or refuse the run."""
        n = len(self.engine.clients.keys)
        self.ledger.reserve(self.run, self.privacy.entries(self.sampler, n), max(0, end - begin), begin=begin)
        if measure > 0 and self.measure_privacy is not None:
            metrics = {"metrics": self.measure_privacy.entries(self.sampler, n)["sum"]}
            self.ledger.reserve(self.run, metrics, sum(t % measure == 0 for t in range(begin, end)), begin=begin)

    def open(self, computation: Computation, state: Arrays, cohort: Array, index: int, measure: bool) -> Opened:
        """Prepare the releases of a round; those that clients make themselves are written down here."""
        bound = computation.row_bound(state, self.privacy.norm) if self.privacy.unit == "row" else None
        if computation.reveals and self.privacy.place != "local":
            raise PrivacyError(f"{type(computation).__name__} reveals rows, which only place='local' protects")
        release, digest = self._release(self.privacy, self.clip, "sum", computation, state, cohort, index, bound)
        digests = dict.fromkeys(self.privacy.entries(self.sampler, len(cohort)), digest)
        metrics = None
        if measure and self.measure_privacy is not None:
            own = self.measure_privacy
            parts = (own, own.first_clip, "metrics", computation, state, cohort, index, None)
            metrics, digests["metrics"] = self._release(*parts)
        opened = Opened(release, metrics, index, digests)
        if self.privacy.place in _ENTRIES_AHEAD:
            self._write(opened)
        return opened

    def _release(
        self,
        privacy: Privacy,
        clip: float,
        name: str,
        computation: Computation,
        state: Arrays,
        cohort: Array,
        index: int,
        bound: float | None,
    ) -> tuple[Release, str]:
        about = [name, repr(privacy), clip, computation.digest(), index, sorted(state)]
        who = np.sort(self.engine.clients.keys[cohort])
        values = [state[array].tobytes() + str(state[array].shape).encode() for array in sorted(state)]
        key, digest = release_key(self.secret, json.dumps(about).encode(), who.tobytes(), *values)
        counted = privacy.counts_clients(self.sampler)
        return Release(privacy, clip, key, counted, self.engine.min_clients, bound), digest

    def released(self, opened: Opened, reply: Reply) -> tuple[Arrays, Arrays]:
        """Write the releases down, then make them: the noisy total, and the means of the noisy metrics."""
        if reply.absent:
            opened = opened.without(reply.absent)
        if self.privacy.place not in _ENTRIES_AHEAD:
            self._write(opened)
        sums = {n: v for n, v in reply.total.items() if n not in ("clients", "ids")}
        total = opened.sum.on_total(sums, reply.clients)
        if "ids" in reply.total:
            total["ids"] = reply.total["ids"]
        if isinstance(self.privacy.clip, AdaptiveClip) and opened.sum.inside is not None:
            self.clip = self.privacy.clip.next(self.clip, share=opened.sum.inside)
        if opened.metrics is None or not reply.metrics:
            return total, {}
        noisy = opened.metrics.on_total(reply.metrics, reply.clients)
        number = float(noisy.pop("clients"))
        return total, {name: values / number for name, values in noisy.items()}

    def _write(self, opened: Opened) -> None:
        for mechanism, digest in opened.digests.items():
            self.ledger.release(self.run, opened.round, mechanism, digest)

    def close(self) -> None:
        """Hand back what was reserved and not used."""
        self.ledger.hand_back(self.run)

    def saved(self) -> dict[str, Any]:
        """What a checkpoint must hold to go on with the same noise and the same ledger."""
        return {"run": self.run, "secret": self.secret.hex(), "clip": self.clip, "ledger": self.ledger.anchor()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on with the secret of the run; a ledger that has not seen the checkpoint's last line is refused."""
        self.ledger.check_anchor(saved["ledger"])
        self.run, self.secret, self.clip = saved["run"], bytes.fromhex(saved["secret"]), float(saved["clip"])
