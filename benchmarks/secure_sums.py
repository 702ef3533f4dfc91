"""What do masked sums cost: client and server seconds, bytes up, whoever drops out?

100 clients with a million int64 each, k = 20 neighbours; 0, 10 and 30 of them have shared their keys when they drop
out, the worst case for the server. Client seconds are the median over clients of all three messages; server seconds
those of the total: adding, joining shares, taking masks away. 30 dead are more than k = 20 is safe for, so that row has
the neighbours that `derive` asks for. The last row is two servers, of which the second expands the masks.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedscape.secure.parameters import derive
from fedscape.secure.protocol import Client, Frame, Roster
from fedscape.secure.server import Server
from fedscape.secure.sums import bytes_besides
from fedscape.secure.two_servers import BYTES, Round, SecondServer, mask
from table import arguments, report

SESSION = b"a benchmark run."


class Clock:
    """Processor seconds by name: others on the machine do not count."""

    def __init__(self) -> None:
        self.seconds: dict[Any, float] = {}

    def __call__(self, name: Any, work: Callable[..., Any], *arguments: Any) -> Any:
        begin = time.process_time()
        result = work(*arguments)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - begin
        return result


def ring(n: int, length: int, dead: int, neighbours: int | None) -> dict[str, Any]:
    """One round of SecureSum."""
    parameters = derive(n, dropouts=max(dead, n // 10) / n, colluders=0.02, neighbours=neighbours)
    clients = [Client(os.urandom(32), SESSION) for _ in range(n)]
    frame = Frame(Roster.checked(SESSION, [c.advertise_keys() for c in clients]), 0, tuple(range(n)), parameters)
    server, x, clock = Server(frame), np.arange(length, dtype=np.uint64), Clock()
    for u in range(n):
        clock("server", server.take_shares, u, clock(u, clients[u].share_keys, frame))
    for u in range(n - dead):
        masked = clock(u, clients[u].masked_input, frame, x, server.received_by(u))
        clock("server", server.take_masked, u, masked)
    living, gone = server.lists()
    for w in living:
        clock("server", server.take_unmasking, w, clock(w, clients[w].unmask, frame, living, gone))
    total = clock("server", server.total)
    assert np.array_equal(total, x * np.uint64(n - dead))
    client = statistics.median(clock.seconds[u] for u in living)
    return row(f"SecureSum, k = {parameters.neighbours}", dead, client, clock.seconds["server"], length, parameters)


def two_servers(n: int, length: int) -> dict[str, Any]:
    """One round of TwoServers."""
    helper, x, clock = SecondServer(), np.arange(length, dtype=np.uint64), Clock()
    round_ = Round(SESSION, 0, length, parties=n, least=3)
    total, packages = np.zeros(length, dtype=np.uint64), []
    for u in range(n):
        masked, package = clock(u, mask, x, helper.public, round_.context, os.urandom(32))
        packages.append(package)
        clock("server", lambda masked=masked: np.add(total, masked, out=total))
    masks = clock("server", helper.sum_masks, round_, packages)
    assert np.array_equal(total - masks, x * np.uint64(n))
    client = statistics.median(clock.seconds[u] for u in range(n))
    return row("TwoServers", 0, client, clock.seconds["server"], length, None)


def row(how: str, dead: int, client: float, server: float, length: int, parameters: Any) -> dict[str, Any]:
    besides = BYTES if parameters is None else bytes_besides(parameters)
    times = {"client s": f"{client:.4f}", "server s": f"{server:.3f}"}
    return {"how": how, "dead": dead, **times, "words up, bytes": 8 * length, "besides, bytes": besides}


def main() -> None:
    quick = arguments(__doc__).quick
    n, length, k = (20, 10_000, None) if quick else (100, 1_000_000, 20)
    ring(n, length, 0, k)  # to warm up
    rows = [ring(n, length, dead, k if dead <= n // 10 else None) for dead in (0, n // 10, 3 * n // 10)]
    report("secure_sums", [*rows, two_servers(n, length)], note=f"{n} clients x {length:,} int64")


if __name__ == "__main__":
    main()
