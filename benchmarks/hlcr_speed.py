"""What does a round of latent class regression cost an entity, against the recursion and batched Cholesky?

Three tables: 16,384 entities, K = 16, F = 10, 20 events each, beside the event-by-event recursion in NumPy and batched
factorisations in torch; the cost against events, entities, K and F; and one round over 1,000,000 entities with the
memory it takes beside the data.
"""

from __future__ import annotations

import resource
import time

import numpy as np

from fedscape import Federation, Local, rounds
from fedscape.mixtures.latent_class.classes import classes_of, opened
from fedscape.mixtures.latent_class.kernels import triangle, unpacked
from fedscape.mixtures.latent_class.rounds import ClassAssignment
from fedscape.mixtures.latent_class.table import Table, groups_of, sums_of
from table import arguments, report


def data(agents: int, entities: int, events: int, f: int, seed: int) -> Federation:
    rng = np.random.default_rng(seed)
    n = agents * entities * events
    x = rng.standard_normal((n, f))
    entity = np.tile(np.repeat(np.arange(entities, dtype=np.int32), events), agents)
    y = x[:, 0] * (1 + entity % 4) + rng.standard_normal(n)
    return Federation({"x": x, "y": y, "entity": entity}, np.arange(agents + 1) * entities * events)


def model(f: int, k: int) -> ClassAssignment:
    return ClassAssignment(Table(intercept=False), f, k, alpha=16.0, beta=4.0, sigma=1.0, delta=1.0)


def cost(fed: Federation, f: int, k: int, entities: int, threads: int, repeats: int = 7) -> tuple[float, float]:
    """Microseconds per entity and round by the clock and of the processor, the best of some rounds after the first."""
    took, used, before = [], [], time.process_time()
    for r in rounds(model(f, k), Local(fed, threads=threads), n_rounds=repeats + 2, measure=0):
        now = time.process_time()
        took.append(r.seconds)
        used.append(now - before)
        before = now
    return min(took[2:]) / entities * 1e6, min(used[2:]) / entities * 1e6


def recursion(fed: Federation, state, f: int, k: int, n_entities: int, events: int) -> float:
    """Theorem 1 event by event (Algorithm 1 with p before the update) for some entities, microseconds each."""
    law = classes_of(opened(state["sums"], f), 1.0, np.ones(f))
    c = opened(state["sums"], f).first
    begin = time.perf_counter()
    for e in range(n_entities):
        rows = slice(e * events, (e + 1) * events)
        for j in range(k):
            inverse, b, total = law.covariance[j].copy(), c[j].copy(), 0.0
            for row, target in zip(fed["x"][rows], fed["y"][rows], strict=True):
                move = inverse @ row
                variance = 1.0 + row @ move
                total -= 0.5 * (np.log(2 * np.pi * variance) + (target - b @ move) ** 2 / variance)
                inverse -= np.outer(move, move) / variance
                b += row * target
    return (time.perf_counter() - begin) / n_entities * 1e6


def batched(fed: Federation, state, f: int, k: int, threads: int) -> float:
    """All entities' densities by torch's batched Cholesky, statistics given, microseconds an entity."""
    import torch

    torch.set_num_threads(threads)
    rows = sums_of(Table(intercept=False), fed, groups_of(fed, "entity"), state)
    p = triangle(f)
    law, found = classes_of(opened(state["sums"], f), 1.0, np.ones(f)), opened(state["sums"], f)
    second, first = torch.from_numpy(unpacked(rows[:, :p], f)), torch.from_numpy(rows[:, p : p + f])
    precision, c = torch.from_numpy(law.precision), torch.from_numpy(found.first.copy())
    begin = time.perf_counter()
    for chunk in range(0, len(rows), 1024):
        part = slice(chunk, chunk + 1024)
        low = torch.linalg.cholesky(precision[None] + second[part, None])
        right = (c[None] + first[part, None])[..., None]
        solved = torch.linalg.solve_triangular(low, right, upper=False)
        (solved**2).sum(dim=(2, 3)), low.diagonal(dim1=2, dim2=3).log().sum(dim=2)
    return (time.perf_counter() - begin) / len(rows) * 1e6


def against_others(agents: int, seed: int) -> None:
    fed, entities = data(agents, 128, 20, 10, seed), agents * 128
    state = [r.state for r in rounds(model(10, 16), fed, n_rounds=2, measure=0)][-1]
    rows = []
    for threads in (1, 2):
        mine, used = cost(fed, 10, 16, entities, threads)
        row = {"threads": threads, "fedscape, a whole round": mine, "of it processor time, all threads": used}
        row["torch, batched Cholesky alone"] = batched(fed, state, 10, 16, threads)
        row["NumPy recursion"] = recursion(fed, state, 10, 16, 8, 20)
        row["torch / fedscape"] = row["torch, batched Cholesky alone"] / mine
        rows.append({**row, "recursion / fedscape": row["NumPy recursion"] / mine})
    report("hlcr_speed", rows, note=f"us per entity and round; {entities:,} entities, K = 16, F = 10, 20 events each")


def curves(agents: int, seed: int) -> None:
    base = {"events": 20, "agents": agents, "K": 16, "F": 10}
    changes = {
        "events": (5, 20, 80),
        "agents": (agents // 4, agents, 4 * agents),
        "K": (1, 4, 16, 64),
        "F": (2, 5, 10, 20, 40),
    }
    rows = []
    for name, values in changes.items():
        for value in values:
            s = {**base, name: value}
            fed = data(s["agents"], 128, s["events"], s["F"], seed)
            us, used = cost(fed, s["F"], s["K"], s["agents"] * 128, 2, repeats=3)
            shown = {
                "changed": "entities" if name == "agents" else name,
                "to": value * (128 if name == "agents" else 1),
            }
            rows.append({**shown, "us per entity and round": us, "processor time, both threads": used})
    note = f"two threads; otherwise 20 events, {agents * 128:,} entities, K = 16, F = 10"
    report("hlcr_speed_curves", rows, note=note)


def million(agents: int, seed: int) -> None:
    fed = data(agents, 100, 5, 5, seed)
    mib = sum(v.nbytes for v in fed.columns.values()) / 2**20
    next(rounds(model(5, 16), fed.take(slice(0, 64)), n_rounds=1, measure=0))  # compile
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = [r.seconds for r in rounds(model(5, 16), Local(fed, threads=2), n_rounds=2, measure=0)]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    row = {"entities": agents * 100, "events": fed.n_rows, "columns, MiB": mib, "seconds a round": took[-1]}
    report("hlcr_speed_million", [{**row, "peak memory above before, MiB": after - before}], note="K = 16, F = 5")


def main() -> None:
    args = arguments(__doc__)
    agents = 16 if args.quick else 128
    million(100 if args.quick else 10_000, args.seed)  # first, because peak memory never falls
    print()
    against_others(agents, args.seed)
    print()
    curves(agents, args.seed)


if __name__ == "__main__":
    main()
