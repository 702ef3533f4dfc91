"""A Grid in one process: real messages, real ClientApps, no network. For rehearsals and tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedscape.engines.flower.library import Context, Grid, RecordDict, pretend_task
from fedscape.errors import EngineError


class LocalGrid(Grid):  # type: ignore[misc]  # Flower is not typed here
    """Nodes in this process, each with its own config; messages pass through the ClientApp as on a real node.

    Parameters
    ----------
    app
        The ClientApp of all nodes.
    configs
        The config of each node, such as {"folder": ..., "partition-id": 0}.

    `down` holds the ids of nodes that do not answer; ids count from 1.

    >>> from fedscape.engines.flower.server import client_app
    >>> LocalGrid(client_app(lambda context: None, folder="node"), [{}, {}]).get_node_ids()
    [1, 2]
    """

    def __init__(self, app: Any, configs: Sequence[Mapping[str, Any]]) -> None:
        pretend_task()
        self.app = app
        self.down: set[int] = set()
        self._contexts = {
            number: Context(run_id=1, node_id=number, node_config=dict(config), state=RecordDict(), run_config={})
            for number, config in enumerate(configs, start=1)
        }
        self._waiting: dict[str, Any] = {}
        self._sent = 0

    def get_node_ids(self) -> list[int]:
        """Ids of the nodes, including those that are down: a SuperLink does not notice at once."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Queue messages; the message id is '' for an unknown node."""
        numbers = []
        for message in messages:
            self._sent += 1
            reachable = message.metadata.dst_node_id in self._contexts
            number = f"message-{self._sent}" if reachable else ""
            if reachable:
                message.metadata.__dict__["_message_id"] = number
                self._waiting[number] = message
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """The available replies to these messages."""
        replies = []
        for number in sorted(message_ids):
            if number in self._waiting and self._waiting[number].metadata.dst_node_id not in self.down:
                replies += self.deliver(self._waiting.pop(number))
        return replies

    def deliver(self, message: Any) -> list[Any]:
        """The replies to a message; fault tests override it."""
        return [self.app(message=message, context=self._contexts[message.metadata.dst_node_id])]

    def set_run(self, run: Any) -> None:
        """Nothing to set: there is one run."""

    @property
    def run(self) -> Any:
        raise EngineError("a LocalGrid belongs to no run of Flower")

    def create_message(self, *_: Any, **__: Any) -> Any:
        """Refuse: Flower has removed it, make a Message instead."""
        raise EngineError("make a flwr.app.Message instead")

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Push, and pull once."""
        return self.pull_messages(self.push_messages(messages))
