"""A node's accounting: every answer is entered in its ledger before any row is read, and the total cost is bounded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from fedscape.core.sampling import All
from fedscape.engines.flower.terms import Terms
from fedscape.engines.flower.wire import Unreadable
from fedscape.errors import PrivacyError
from fedscape.privacy.accounting import Entry, epsilon_of
from fedscape.privacy.ledger import Group, Ledger
from fedscape.privacy.release import Release

#: How a node's ledger names a contribution that leaves without the node's own noise.
UNNOISED = "protected only by the server"

Groups = dict[Group, list[tuple[Entry, int]]]


class Book:
    """The node's ledger, checked against the owner's terms. Terms may change: the file itself has no budget."""

    def __init__(self, ledger: Ledger, terms: Terms) -> None:
        self.ledger, self.terms = ledger, terms

    def enter(
        self,
        *,
        run: str,
        index: int,
        summary: str,
        digest: str,
        releases: Mapping[str, Release | None],
        plain: bool,
        masked: bool = False,
    ) -> None:
        """Enter an answer before it is computed, or refuse it; a lost answer counts too."""
        entries = {
            (kind, name): _entry(release, entry, summary, masked)
            for kind, release in releases.items()
            if release is not None
            for name, entry in release.privacy.entries(All(), 1).items()
        }
        groups = groups_of(self.ledger)
        for entry in entries.values():
            groups.setdefault(_group(entry), []).append((entry, 1))
        if entries:
            check_budget(self.terms, groups)
        if plain:
            self._count_unnoised()
            self.ledger.note(f"no noise: {UNNOISED}: {summary}", run=run, round_=index, digest=digest)
        for (kind, name), entry in entries.items():
            about = json.dumps([kind, name, entry], sort_keys=True)
            own = hashlib.sha256(f"{run} {about}".encode()).hexdigest()[:16]
            self.ledger.reserve(own, {f"{kind} {name}": entry}, 1, begin=index)
            self.ledger.release(own, index, f"{kind} {name}", digest)

    def _count_unnoised(self) -> None:
        if self.terms.unnoised is not None and unnoised(self.ledger) >= self.terms.unnoised:
            raise Unreadable("one more answer without noise than the owner allows")


def unnoised(ledger: Ledger) -> int:
    """Number of answers that left without any promised noise."""
    return sum(line["kind"] == "note" for line in ledger.entries())


def groups_of(ledger: Ledger) -> Groups:
    """All entries so far, by (unit, relation, place)."""
    entered: dict[tuple[str, str], tuple[Entry, int]] = {}
    for line in ledger.entries():
        if line["kind"] in ("reserve", "return"):
            key = line["run"], line["mechanism"]
            entry, number = entered.get(key, (line.get("entry", {}), 0))
            entered[key] = entry, number + (line["count"] if line["kind"] == "reserve" else -line["count"])
    groups: Groups = {}
    for entry, number in entered.values():
        if number:
            groups.setdefault(_group(entry), []).append((entry, number))
    return groups


def spent_by_group(terms: Terms, groups: Groups) -> dict[Group, float]:
    """Epsilon of each group at the terms' delta."""
    return {group: epsilon_of(members, terms.delta) for group, members in sorted(groups.items())}


def spent_in_all(terms: Terms, groups: Groups) -> float:
    """One epsilon for everything, at the terms' delta: the sum over groups, each with an equal share of delta."""
    return sum(epsilon_of(members, terms.delta / len(groups)) for members in groups.values())


def check_budget(terms: Terms, groups: Groups) -> None:
    """Refuse releases that would exceed the owner's budgets."""
    if terms.epsilon is not None:
        for group, spent in spent_by_group(terms, groups).items():
            if spent > terms.epsilon:
                raise PrivacyError(
                    f"{' / '.join(group)} would reach epsilon {spent:.4g} at delta {terms.delta:g}, beyond the "
                    f"owner's epsilon = {terms.epsilon:g}"
                )
    if terms.total_epsilon is not None:
        total = spent_in_all(terms, groups)
        if total > terms.total_epsilon:
            raise PrivacyError(
                f"all groups together would reach epsilon {total:.4g} at delta {terms.delta:g}, beyond the owner's "
                f"total_epsilon = {terms.total_epsilon:g}"
            )


def _entry(release: Release, entry: Mapping[str, Any], summary: str, masked: bool) -> dict[str, Any]:
    """An entry with the request, and who is trusted to add the noise."""
    note = {}
    if release.privacy.place == "central":
        note["note"] = UNNOISED + (", which sees masked sums" if masked else "")
    elif release.privacy.place == "distributed" and masked:
        note["note"] = (
            f"masked: any sum that can be opened holds {release.min_clients} parts of the noise, which is all"
        )
    elif release.privacy.place == "distributed":  # the number of clients is the server's claim
        note["note"] = f"protected if {release.min_clients} clients add their part of the noise"
    return {**entry, **note, "asked": summary}


def _group(entry: Entry) -> Group:
    return entry["unit"], entry["relation"], entry["place"]
