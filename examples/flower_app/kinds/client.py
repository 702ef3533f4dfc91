"""A node: its own clients, here a part of the embedded writers. Replace `load` by what reads yours."""

from pathlib import Path

from flwr.app import Context

from fedscape import Federation, datasets
from fedscape.engines.flower import client_app


def load(context: Context) -> Federation:
    writers = datasets.load("femnist-labels")
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    return writers.take(range(part, len(writers), parts))


def folder(context: Context) -> str:
    """Where the node keeps its terms, its ledger and its state: a folder of its own, also in a simulation."""
    return str(context.node_config.get("folder") or Path("nodes", str(context.node_config["partition-id"])))


app = client_app(load, folder=folder)
