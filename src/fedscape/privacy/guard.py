"""Privacy over a full run: its secret, its clip and its ledger entries."""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedscape.core.random import Key
from fedscape.core.sampling import Sampler, marked
from fedscape.errors import PrivacyError
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import AdaptiveClip, Privacy
from fedscape.privacy.release import Release, digest_of, noise_clients
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.core.blocks import Reply
    from fedscape.core.computation import Computation
    from fedscape.core.engine import Engine


@dataclass(frozen=True)
class Opened:
    """The prepared releases of one round.

    `context` is a keyed digest of everything they depend on except the rows.
    """

    sum: Release
    metrics: Release | None
    round: int
    context: bytes


class Released(NamedTuple):
    """The public output of a round: the noisy total, means of noisy metrics, and the published number of clients."""

    total: Arrays
    metrics: Arrays
    clients: int


class Guard:
    """Enforces the privacy of a run: nothing leaves without being clipped, noised and booked first.

    The secret is 32 bytes from the operating system. It keys the noise of each release, together with everything the
    release depends on, including the exact sum. A repeated round thus repeats its noise and is the same release; any
    other sum gets fresh noise and its own entry. The secret also keys the cohort, because a predictable sample does not
    amplify.
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
        self._life = os.urandom(16)  # of this process

    def __repr__(self) -> str:
        return f"{self.privacy!r}, metrics {self.measure_privacy!r}"

    @property
    def measures(self) -> bool:
        """Whether metrics may be measured."""
        return self.measure_privacy is not None

    @property
    def _released_on_clients(self) -> bool:
        """Whether noisy answers reach the server before it can book them: they are then booked before it asks."""
        return self.privacy.place != "central" and bool(getattr(self.engine, "remote", False))

    def cohort_key(self, key: Key) -> Key:
        """The key of the cohort: from the secret, not from the seed."""
        seed = int.from_bytes(hmac.digest(self.secret, b"cohort", "sha256")[:8], "little")
        return Key(seed, key.round, "cohort")

    def reserve(self, begin: int, end: int, measure: int) -> None:
        """Reserve the releases of these rounds, or refuse the run."""
        measured = sum(t % measure == 0 for t in range(begin, end)) if measure > 0 and self.measures else 0
        counts: dict[str, int] = {}
        entries: dict[str, dict[str, Any]] = {}
        for number, kind in ((max(0, end - begin) - measured, False), (measured, True)):
            for name, entry in self._entries(kind).items() if number else ():
                entries[name], counts[name] = entry, counts.get(name, 0) + number
        self.ledger.reserve(self.run, entries, counts, begin=begin)

    def _entries(self, measured: bool) -> dict[str, dict[str, Any]]:
        """The ledger entries of a round, with or without metrics."""
        metrics = self.measure_privacy if measured else None
        entries = self.privacy.entries(self.sampler, len(self.engine.clients.keys), metrics=metrics)
        secure = getattr(self.engine, "secure", None)
        if secure is None:
            return entries
        note = f"sums are masked ({type(secure).__name__}): the server sees the total of a cohort"
        if self.privacy.place == "distributed":
            note += "; the noise is whole in the smallest sum that can be opened"
        return {name: {**entry, "note": note} for name, entry in entries.items()}

    def open(self, computation: Computation, state: Arrays, cohort: Array, index: int, measure: bool) -> Opened:
        """Prepare the releases of a round; those made on clients are booked here."""
        if computation.reveals and self.privacy.place != "local":
            raise PrivacyError(f"{type(computation).__name__} reveals rows, which only place='local' protects")
        own = self.measure_privacy if measure else None
        parts = noise_clients(self.engine, cohort) if self.privacy.place == "distributed" else 1  # it scales the noise
        about = [repr(self.privacy), self.clip, repr(own), computation.digest(), index, parts]
        who = np.sort(self.engine.clients.keys[cohort])
        context = self._digest(json.dumps(about).encode(), digest_of(state), who.tobytes())
        bound = None
        if self.privacy.unit == "row":
            rows = getattr(self.engine, "federation", None)  # only to look at the columns; clients check their own
            bound = computation.row_bound(state, self.privacy.norm, rows)
        opened = Opened(
            self._release(self.privacy, self.clip, context, bound, parts),
            None if own is None else self._release(own, own.first_clip, context, None, parts),
            index,
            context,
        )
        if self._released_on_clients:  # clients asked again by another process may add other noise
            self._write(opened, self._digest(context, self._life))
        return opened

    def _release(self, privacy: Privacy, clip: float, context: bytes, bound: float | None, parts: int) -> Release:
        counted = privacy.counts_clients(self.sampler)
        return Release(privacy, clip, self._digest(b"clients", context), counted, parts, bound)

    def _digest(self, *parts: bytes) -> bytes:
        """A keyed digest: nobody without the secret can guess its input."""
        mac = hmac.new(self.secret, digestmod="sha256")
        for part in parts:
            mac.update(len(part).to_bytes(8, "little"))
            mac.update(part)
        return mac.digest()

    def released(self, opened: Opened, reply: Reply) -> Released | None:
        """Book the releases, then make them; None if the noisy number of clients is below `min_clients`."""
        sums = {n: v for n, v in reply.total.items() if n not in ("clients", "ids")}
        exact = (digest_of(sums), digest_of(reply.metrics), str(reply.clients).encode(), reply.absent.encode())
        if not self._released_on_clients:
            self._write(opened, self._digest(b"entry", opened.context, *exact))
        opened.sum.key = self._digest(b"sum", opened.context, *exact)
        total = opened.sum.on_total(sums, reply.clients)
        if self._too_few(opened, float(total["clients"])):
            return None
        if "ids" in reply.total:
            total["ids"] = reply.total["ids"]
        if isinstance(self.privacy.clip, AdaptiveClip) and opened.sum.inside is not None:
            self.clip = self.privacy.clip.next(self.clip, share=opened.sum.inside)
        metrics: Arrays = {}
        if opened.metrics is not None and reply.metrics:
            opened.metrics.key = self._digest(b"metrics", opened.context, *exact)
            noisy = opened.metrics.on_total(reply.metrics, reply.clients)
            number = float(noisy.pop("clients"))
            metrics = {name: values / number for name, values in noisy.items()}
        return Released(total, metrics, round(float(total["clients"])))

    def _too_few(self, opened: Opened, clients: float) -> bool:
        """Whether to abandon the round; if the number is public, the engine already did."""
        return opened.sum.counted and clients < self.engine.min_clients

    def _write(self, opened: Opened, digest: bytes) -> None:
        for mechanism in self._entries(opened.metrics is not None):
            self.ledger.release(self.run, opened.round, mechanism, digest.hex())

    def close(self) -> None:
        """Return unused reservations."""
        self.ledger.hand_back(self.run)

    def saved(self) -> dict[str, Any]:
        """The checkpoint entries that resume with the same noise and the same ledger."""
        return {"run": self.run, "secret": self.secret.hex(), "clip": self.clip, "ledger": self.ledger.anchor()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Resume with the secret of the run; refuse a ledger without the checkpoint's last line."""
        self.ledger.check_anchor(saved["ledger"])
        self.run, self.secret, self.clip = saved["run"], bytes.fromhex(saved["secret"]), float(saved["clip"])
