"""How fast is one EM round, against vectorised SciPy, and does it grow with the number of clients alone?

Two tables: microseconds per client and round for fedscape and for SciPy on a tenth of the clients, in one process; and
seconds and memory from 10^4 to 10^7 clients whose counts are memory-mapped.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from scipy.special import gammaln, logsumexp, psi

from fedscape import Federation, Key, Local
from fedscape.core.rounds import frozen
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.start import Survey
from table import arguments, report

C, K, N = 62, 3, 500


def draw(n: int, seed: int) -> np.ndarray:
    """Counts [n, C] of three kinds of clients of 1 to 500 rows."""
    rng = np.random.default_rng(seed)
    alpha = np.stack((np.full(C, 0.5), rng.gamma(1.0, 1.0, C) + 0.05, rng.gamma(2.0, 3.0, C)))
    out = np.empty((n, C), dtype=np.uint16)
    for begin in range(0, n, 50_000):
        m = min(50_000, n - begin)
        shares = rng.standard_gamma(alpha[rng.integers(0, K, m)]) + 1e-300
        shares /= shares.sum(axis=1, keepdims=True)
        out[begin : begin + m] = rng.multinomial(rng.integers(1, N + 1, m), shares)
    return out


def scipy_round(counts: np.ndarray, tau: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Algorithm 2's E-step and sums, vectorised: the sums of w, u and v."""
    n, a0 = counts.sum(axis=1)[:, None], alpha.sum(axis=1)
    each = np.log(tau) + gammaln(a0) - gammaln(a0 + n) + (gammaln(counts[:, None] + alpha) - gammaln(alpha)).sum(axis=2)
    w = np.exp(each - logsumexp(each, axis=1, keepdims=True))
    u = (w[..., None] * (psi(counts[:, None] + alpha) - psi(alpha))).sum(axis=0)
    return w.sum(axis=0), u, (w * (psi(n + a0) - psi(a0))).sum(axis=0)


def against_scipy(n: int) -> None:
    counts = draw(n, 0).astype(np.int32)
    fed = Federation({"y": counts}, np.arange(n + 1))
    survey = Survey((K,), C)
    reach = survey.update(survey.start(0), Local(fed).run(survey, survey.start(0), np.arange(n), Key(0)).total, Key(0))[
        "reach"
    ]
    rows = []
    state, times = None, {}
    for solver in ("exact", "newton", "fixed_point"):
        work = TailCountEM((K,), reach, sizes=None, solver=solver)
        state = frozen(work.start(0))
        for threads in (1, 2):
            engine = Local(fed, threads=threads)
            engine.run(work, state, np.arange(2000), Key(0))  # compile, and build the tables
            best = np.inf
            for _ in range(3):
                began = time.perf_counter()
                reply = engine.run(work, state, np.arange(n), Key(0))
                work.update(state, reply.total, Key(0))
                best = min(best, time.perf_counter() - began)
            times[solver, threads] = best / n * 1e6
            rows.append(
                {
                    "what": f"fedscape, {solver}",
                    "threads": threads,
                    "us per client": times[solver, threads],
                    "bytes up": reply.bytes_up,
                }
            )
    alpha = state["mean"] / state["dispersion"][:, None]
    part, chunk = counts[: n // 10].astype(float), 5000
    best = np.inf
    for _ in range(2):
        began = time.perf_counter()
        sums = [scipy_round(part[b : b + chunk], state["weights"], alpha) for b in range(0, len(part), chunk)]
        best = min(best, time.perf_counter() - began)
    slow = best / len(part) * 1e6
    total = Local(fed).run(work, state, np.arange(len(part)), Key(0)).total
    u = sum(s[1] for s in sums) * alpha
    worst = float(np.abs(total["first"].T / u - 1).max())
    rows.append({"what": "SciPy, vectorised", "threads": 1, "us per client": slow, "bytes up": (K * (C + 2)) * 8})
    for row in rows:
        row["times faster"] = slow / row["us per client"]
    note = (
        f"{n:,} clients, C={C}, K={K}, n up to {N}; largest relative difference of the sums {worst:.1e}; "
        f"the paper's sums with a bin for each size: {K * (C + 2 + N) * 8:,} bytes"
    )
    report("mdm_speed", rows, note=note)


class Peak(threading.Thread):
    """The most anonymous memory (not the mapped file) this process has while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.done = 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.01):
            self.most = max(self.most, anonymous())


def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def growth(sizes: tuple[int, ...], folder: str) -> None:
    base, rows = draw(min(max(sizes), 200_000), 1), []
    work = TailCountEM((K,), np.append(np.full(C, 384), 512), sizes=None)
    state = frozen(work.start(0))
    for n in sizes:
        path = os.path.join(folder, "counts.npy")
        mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=(n, C))
        for begin in range(0, n, len(base)):
            mapped[begin : begin + len(base)] = base[: n - begin]
        mapped.flush()
        del mapped
        fed = Federation({"y": np.load(path, mmap_mode="r")}, np.arange(n + 1))
        engine, cohort = Local(fed, threads=2), np.arange(n)
        engine.run(work, state, cohort[:2000], Key(0))
        before, peak = anonymous(), Peak()
        peak.start()
        began = time.perf_counter()
        engine.run(work, state, cohort, Key(0))
        took = time.perf_counter() - began
        peak.done.set()
        peak.join()
        rows.append(
            {
                "clients": n,
                "seconds": took,
                "us per client": took / n * 1e6,
                "file, MB": n * C * 2 / 1e6,
                "memory added, MB": (peak.most - before) / 1e6,
            }
        )
        del fed, engine
    report("mdm_speed_growth", rows, note="one exact round on two threads; counts uint16 and memory-mapped")


def main() -> None:
    args = arguments(__doc__, most=10_000_000)
    against_scipy(50_000 if args.quick else 1_000_000)
    print()
    sizes = (10_000, 100_000) if args.quick else tuple(n for n in (10**4, 10**5, 10**6, 10**7) if n <= args.most)
    with tempfile.TemporaryDirectory() as folder:
        growth(sizes, folder)


if __name__ == "__main__":
    main()
