"""What does Ray cost on one machine: a round of the mixture over millions of clients, with two workers and on `Local`?

Both map the same files; rounds alternate, so that other work on the machine hits both; the smallest time counts. CPU
time is that of this process and all it started, Ray's own processes included: a busy machine does not blur it.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from fedscape import Federation, Key, Local, Ray
from fedscape.core.rounds import frozen
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from mdm_speed import C, K, draw
from table import arguments, report


def write(folder: str, n: int) -> str:
    """A saved Federation of n clients' counts, made without holding them."""
    base = draw(min(n, 200_000), 1)
    mapped = np.lib.format.open_memmap(f"{folder}/counts.npy", mode="w+", dtype=np.uint16, shape=(n, C))
    for begin in range(0, n, len(base)):
        mapped[begin : begin + len(base)] = base[: n - begin]
    Federation({"y": mapped}, np.arange(n + 1)).save(f"{folder}/clients")
    os.unlink(f"{folder}/counts.npy")
    return f"{folder}/clients"


def own_memory() -> int:
    """The most anonymous memory that any worker of this process's cluster has now."""
    most = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = status.read_text().splitlines()
            if (status.parent / "cmdline").read_bytes().startswith(b"ray::Shard"):
                most = max(most, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")))
        except (OSError, StopIteration):
            continue
    return most


def cpu() -> float:
    """Seconds of CPU of this process and its descendants so far."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used[pid] for pid in family)


def timed(engine: Local | Ray, work: TailCountEM, state: dict, cohort: np.ndarray) -> tuple[float, float, dict]:
    began, spent = time.perf_counter(), cpu()
    reply = engine.run(work, state, cohort, Key(0))
    work.update(state, reply.total, Key(0))
    return time.perf_counter() - began, cpu() - spent, reply.total


def compare(n: int, workers: int, repeats: int) -> dict:
    work = TailCountEM((K,), np.append(np.full(C, 384), 512), sizes=None)
    state, cohort = frozen(work.start(0)), np.arange(n)
    with tempfile.TemporaryDirectory() as folder:
        path = write(folder, n)
        began = time.perf_counter()
        with Ray(path, workers=workers) as far:
            started = time.perf_counter() - began
            near = Local(Federation.load(path, verify=False), threads=workers)
            for engine in (near, far):
                timed(engine, work, state, cohort)  # compile, build the tables, bring the files into memory
            here, there, spent = [], [], np.zeros(2)
            for _ in range(repeats):
                took, used, expected = timed(near, work, state, cohort)
                here.append(took)
                spent[0] += used
                took, used, total = timed(far, work, state, cohort)
                there.append(took)
                spent[1] += used
                same = all(np.asarray(total[name]).tobytes() == np.asarray(expected[name]).tobytes() for name in total)
            memory = own_memory()
    ratios = np.array(there) / np.array(here)
    return {
        "clients": n,
        "workers": workers,
        "Local, s": min(here),
        "Ray, s": min(there),
        "overhead": f"{min(there) / min(here) - 1:.1%}",
        "median of pairs": f"{np.median(ratios) - 1:.1%}",
        "Local, CPU s": spent[0] / repeats,
        "Ray, CPU s": spent[1] / repeats,
        "overhead, CPU": f"{spent[1] / spent[0] - 1:.1%}",
        "same bytes": same,
        "start, s": started,
        "memory of a worker, MB": memory / 1e6,
    }


def main() -> None:
    args = arguments(__doc__, clients=10_000_000, workers=2, repeats=5)
    sizes = (200_000,) if args.quick else (args.clients // 10, args.clients)
    rows = [compare(n, args.workers, 3 if args.quick else args.repeats) for n in sizes]
    busy = f"load average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    note = f"one exact round of {K} components over {C} categories, counts uint16 and memory-mapped; {busy}"
    report("ray_scale", rows, note=note)


if __name__ == "__main__":
    main()
