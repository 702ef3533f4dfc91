"""Whole rounds of the protocol in one process, for tests."""

from __future__ import annotations

import os

import numpy as np

from fedscape.secure.parameters import derive
from fedscape.secure.protocol import Client, Frame, Roster
from fedscape.secure.server import Server

SESSION = b"a run of a test."


def cohort(n: int, *, index: int = 0, **settings) -> tuple[list[Client], Frame]:
    settings = {"dropouts": 0.34, "colluders": 0.0, **settings}
    clients = [Client(os.urandom(32), SESSION) for _ in range(n)]
    roster = Roster.checked(SESSION, [client.advertise_keys() for client in clients])
    return clients, Frame(roster, index, tuple(range(n)), derive(n, **settings))


def vectors(n: int, length: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, (n, length), dtype=np.uint64)


def up_to_masked(clients, frame, x, *, early=(), late=()) -> Server:
    """A round in which `early` never answer and `late` have shared their keys when they drop out."""
    server = Server(frame)
    for u, client in enumerate(clients):
        if u not in early:
            server.take_shares(u, client.share_keys(frame))
    for u, client in enumerate(clients):
        if u not in early and u not in late:
            server.take_masked(u, client.masked_input(frame, x[u], server.received_by(u)))
    return server


def unmasked(server: Server, clients, frame, *, silent=()) -> np.ndarray:
    living, dead = server.lists()
    for w in living:
        if w not in silent:
            server.take_unmasking(w, clients[w].unmask(frame, living, dead))
    return server.total()
