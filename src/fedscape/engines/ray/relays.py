"""Between the driver and very many workers: each relay calls a group of them and adds up what they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedscape.engines.ray.shard import Outcome, Part, joined_outcomes
from fedscape.errors import FedscapeError

RELAYED = 64  # workers of one relay; with more than that, calls go through relays


class Relay:
    """Calls a group of workers, in a process of its own, and adds up what they return."""

    def take(self, first: int, actors: Sequence[Any]) -> None:
        """Take the workers of consecutive shards, the first of which has this number."""
        self.first, self.actors = first, actors

    def run(self, message: Any, parts: Sequence[tuple[int, Part]]) -> tuple[Outcome | FedscapeError, list[Any]]:
        """Let workers run these parts; returns their outcomes as one, and references to what clients keep."""
        import ray

        calls = [
            self.actors[shard - self.first].run.options(num_returns=2).remote(message, part) for shard, part in parts
        ]
        outcomes = ray.get([outcome for outcome, _ in calls])
        for outcome in outcomes:
            if isinstance(outcome, FedscapeError):
                return outcome, []
        return joined_outcomes([part for _, part in parts], outcomes), [kept for _, kept in calls]
