"""Rounds of training by Flower's simulation: its processes load the clients once and train them one after the other."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedscape import Federation
from fedscape.learning import LocalSGD, evaluate


@functools.lru_cache(maxsize=1)
def loaded(path: str, device: str) -> dict[str, torch.Tensor]:
    with np.load(path) as data:
        return {name: torch.from_numpy(data[name]).to(device) for name in data.files}


def client_app(path: str, local: LocalSGD) -> Any:
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        data, place = loaded(path, local.device), int(context.node_config["partition-id"])
        rows = np.arange(int(data["offsets"][place]), int(data["offsets"][place + 1]))
        model = local.model.to(local.device)
        model.load_state_dict(message.content["model"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=local.lr)
        np.random.default_rng(place).shuffle(rows)
        for begin in range(0, len(rows), local.batch_size):
            batch = torch.from_numpy(rows[begin : begin + local.batch_size]).to(local.device)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(data["x"][batch]), data["y"][batch]).backward()
            optimiser.step()
        state = {name: values.cpu() for name, values in model.state_dict().items()}
        return Message(RecordDict({"model": ArrayRecord(state)}), reply_to=message)

    return app


def by_flower(local: LocalSGD, fed: Federation, n_rounds: int, threads: int) -> tuple[list[float], float]:
    """Seconds of each round, and the accuracy at the end on the clients' rows; one client on each of the threads.

    On a GPU the threads, which are processes of Flower's, share it.
    """
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    server, times, weights = ServerApp(), [], {n: p.detach().clone() for n, p in local.model.state_dict().items()}

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < len(fed):
            time.sleep(0.1)
        for _ in range(n_rounds):
            began = time.perf_counter()
            asked = [
                Message(RecordDict({"model": ArrayRecord(weights)}), node, "train") for node in grid.get_node_ids()
            ]
            replies = [m.content["model"].to_torch_state_dict() for m in grid.send_and_receive(asked)]
            assert len(replies) == len(fed)
            for name in weights:  # all clients have as many rows
                weights[name] = sum(reply[name] for reply in replies) / len(replies)
            times.append(time.perf_counter() - began)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clients.npz"
        np.savez(path, x=fed["x"], y=fed["y"], offsets=fed.offsets)
        share = {"num_gpus": 1.0 / threads} if local.on_gpu else {}
        options = {
            "client_resources": {"num_cpus": 1.0, **share},
            "init_args": {"num_cpus": threads, **({"num_gpus": 1} if share else {})},
        }
        run_simulation(server, client_app(str(path), local), len(fed), backend_config=options)
    state = {f"model.{n}": p.numpy() for n, p in weights.items()}
    return times, evaluate(local, state, fed).summary()["accuracy_pooled"]
