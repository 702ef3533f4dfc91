"""Nodes and servers over Flower that do not believe each other: what a dishonest one tries, and what it gets."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from fedscape import Federation, Gaussian, Histogram, Ledger, checkpoint
from fedscape.engines import _wire
from fedscape.engines._flwr import Message
from fedscape.engines.flower import LocalGrid, Terms, client_app
from fedscape.privacy import Release

_spec = importlib.util.spec_from_file_location("nodes", Path(__file__).with_name("nodes.py"))
nodes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(nodes)


def unpacked(message):
    return _wire.read(_wire.disclose(message.content, 2**30))


class Node:
    """One node, asked by hand."""

    def __init__(self, fed, folder, **how):
        self.fed, self.folder = fed, folder
        self.grid = LocalGrid(client_app(lambda context: self.fed, folder=folder, **how), [{}])

    def ask(self, computation, state=None, *, number=0, closed=-1, privacy=None, parts=1, cohort=None, **header):
        release = None if privacy is None else Release(privacy, privacy.clip, b"", False, parts)
        about = {
            "format": _wire.FORMAT,
            "op": "run",
            "run": "0" * 32,
            "number": number,
            "closed": closed,
            "computation": _wire.described(computation),
            "key": [0, number, "step"],
            "measure": False,
            "release": _wire.release_written(release),
            "measure_release": None,
            **header,
        }
        begin = computation.start(0) if state is None else state
        arrays = {f"state/{name}": values for name, values in begin.items()}
        return self.send(checkpoint.pack({**arrays, "cohort": self.fed.ids if cohort is None else cohort}, about))

    def send(self, blob):
        message = Message(_wire.enclose(blob), dst_node_id=1, message_type="query.fedscape")
        self.grid.push_messages([message])
        return unpacked(self.grid.deliver(message)[0])

    def releases(self):
        return sum(line["kind"] == "release" for line in Ledger(self.folder / "ledger.jsonl").entries())


# -- a server that would like to know more -----------------------------------------------------------------------------


def test_asking_again_after_the_data_changed_gets_other_noise_and_costs_again(tmp_path):
    """The same noise on two sets of rows would give away their difference exactly."""
    node = Node(Federation({"y": [0] * 5 + [1] * 3}, [0, 8], ids=["a"]), tmp_path, terms=Terms(epsilon=1.0))
    privacy = Gaussian(clip=20.0, multiplier=20.0, place="local")
    first, about = node.ask(Histogram(3), number=5, privacy=privacy)
    assert (
        node.ask(Histogram(3), number=5, privacy=privacy)[0]["total/counts"].tolist() == first["total/counts"].tolist()
    )
    assert node.releases() == 1
    node.ask(Histogram(3), number=4, privacy=privacy)  # which drops the reply to 5
    node.fed = Federation({"y": [0] * 5 + [1] * 4}, [0, 9], ids=["a"])
    second, _ = node.ask(Histogram(3), number=5, privacy=privacy)
    difference = (second["total/counts"] - first["total/counts"]) * about["grids"]["counts"]
    assert np.abs(difference - [0, 1, 0]).max() > 1.0
    assert node.releases() == 3


def test_answers_without_noise_count_each_time_they_are_computed(tmp_path):
    node = Node(nodes.federation(2), tmp_path, terms=Terms(unnoised=2))
    for number in (5, 4):
        assert "refused" not in node.ask(Histogram(3), number=number)[1]
    assert "without noise than the owner allows" in node.ask(Histogram(3), number=5)[1]["refused"]
