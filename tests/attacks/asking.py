"""A server that asks one node by hand, through the real ClientApp."""

from __future__ import annotations

from fedscape.core import codec
from fedscape.engines.flower import LocalGrid, client_app, computations, wire
from fedscape.engines.flower.library import Message
from fedscape.engines.flower.node_store import log_entries
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.release import Release


class Asker:
    """One node; `bytes` is the last reply as it crossed."""

    def __init__(self, fed, folder, *, config=None, load=None, **how):
        self.fed, self.folder, self.number, self.bytes = fed, folder, 0, b""
        app = client_app(load or (lambda context: self.fed), folder=folder, **how)
        self.grid = LocalGrid(app, [config or {}])

    def ask(self, computation, *, state=None, run="0" * 32, privacy=None, cohort=None, **header):
        self.number += 1
        release = None if privacy is None else Release(privacy, privacy.clip, b"", False, 1, row_bound(privacy))
        about = {
            "format": wire.FORMAT,
            "op": "run",
            "run": run,
            "number": self.number,
            "closed": -1,
            "computation": computations.described(computation),
            "key": [0, self.number, "step"],
            "measure": False,
            "release": wire.release_written(release),
            "measure_release": None,
            **header,
        }
        begin = computation.start(0) if state is None else state
        arrays = {f"state/{name}": values for name, values in begin.items()}
        arrays["cohort"] = self.fed.ids if cohort is None else cohort
        return self.send(codec.pack(arrays, about))

    def send(self, blob):
        order = wire.Order(0, "0" * 16, self.number)
        message = Message(wire.enclose(blob, order), dst_node_id=1, message_type="query.fedscape")
        self.grid.push_messages([message])
        self.bytes = wire.disclose(self.grid.deliver(message)[0].content, 2**30)
        arrays, about = wire.read(self.bytes)
        assert about.pop("request") == wire.digest(blob)
        return arrays, about

    @property
    def releases(self):
        return sum(line["kind"] == "release" for line in Ledger(self.folder / "ledger.jsonl").entries())

    @property
    def log(self):
        return log_entries(self.folder)


def row_bound(privacy):
    """The server's own word, which is not sent: a node finds its own."""
    return privacy.clip if privacy.unit == "row" else None
