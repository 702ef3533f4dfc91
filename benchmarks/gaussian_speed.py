"""How fast is one EM round of a Gaussian mixture against scikit-learn's iteration, and does memory stay flat?

Two tables: seconds of a round on the same rows in the same process (scikit-learn with the threads that BLAS has,
fedscape with two threads of blocks), and memory added by a round over memory-mapped rows.
"""

from __future__ import annotations

import os
import tempfile
import time

import numpy as np
from sklearn.mixture import GaussianMixture as Central
from threadpoolctl import threadpool_info

from fedscape import Federation, Key, Local
from fedscape.core.rounds import frozen
from fedscape.mixtures import Full
from fedscape.mixtures.gaussian.em import GaussianRounds
from mdm_speed import Peak, anonymous
from table import arguments, report

D, K = 32, 3


def draw(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    means = rng.uniform(-1, 1, (K, D))
    return rng.standard_normal((n, D)) + means[rng.integers(0, K, n)], means


def start(means: np.ndarray, shared: bool) -> GaussianRounds:
    covariances = np.stack([1.2 * np.eye(D) + 0.1] * K)
    weights = np.full(K, 1 / K)
    return GaussianRounds(weights[None], means[None], covariances[None], covariance=Full(), shared_weights=shared)


def their_round(x: np.ndarray, work: GaussianRounds) -> tuple[Central, float]:
    theirs = Central(K, max_iter=1)
    theirs.weights_, theirs.means_ = work.weights[0], work.means[0]
    theirs.covariances_ = work.covariances[0]
    theirs.precisions_cholesky_ = np.linalg.inv(np.linalg.cholesky(work.covariances[0])).transpose(0, 2, 1)
    began = time.perf_counter()
    _, log_resp = theirs._e_step(x)
    theirs._m_step(x, log_resp)
    return theirs, time.perf_counter() - began


def my_round(engine: Local, work: GaussianRounds) -> tuple[dict[str, np.ndarray], float]:
    state = frozen(work.start(0))
    began = time.perf_counter()
    reply = engine.run(work, state, np.arange(len(engine.federation)), Key(0))
    new = work.update(state, reply.total, Key(0))
    return new, time.perf_counter() - began


def blas_threads() -> int:
    """How many threads BLAS has here; OMP_NUM_THREADS sets it."""
    return max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


def against_scikit_learn(n: int, repeats: int) -> None:
    x, means = draw(n, 0)
    rows, slow = [], []
    work = start(means, True)
    for _ in range(repeats):
        theirs, took = their_round(x, work)
        slow.append(took)
    rows.append({"what": "scikit-learn, one iteration", "clients": 1, "threads": blas_threads(), "seconds": min(slow)})
    for clients, shared, threads in ((1000, True, 1), (1000, True, 2), (1000, False, 2), (n // 20, True, 2)):
        work = start(means, shared)
        ends = np.linspace(0, n, clients + 1).astype(np.int64)
        engine = Local(Federation({"x": x}, ends), threads=threads)
        my_round(engine, work)
        took = min(my_round(engine, work)[1] for _ in range(repeats))
        new = my_round(engine, work)[0]
        what = f"fedscape, {'common weights' if shared else 'weights of each client'}"
        rows.append({"what": what, "clients": clients, "threads": threads, "seconds": took})
        if shared:
            rows[-1]["largest difference"] = float(np.abs(new["covariances"][0] - theirs.covariances_).max())
    for row in rows:
        row["times faster"] = rows[0]["seconds"] / row["seconds"]
    report("gaussian_speed", rows, note=f"{n:,} rows x {D}, {K} full covariances; the best of {repeats}, one process")


def memory(sizes: tuple[int, ...]) -> None:
    rows, base = [], draw(200_000, 1)
    work = start(base[1], False)
    with tempfile.TemporaryDirectory() as folder:
        for n in sizes:
            path = os.path.join(folder, "x.npy")
            mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, D))
            for begin in range(0, n, len(base[0])):
                mapped[begin : begin + len(base[0])] = base[0][: n - begin]
            mapped.flush()
            del mapped
            engine = Local(Federation({"x": np.load(path, mmap_mode="r")}, np.arange(0, n + 1, 1000)), threads=2)
            engine.run(work, work.start(0), np.arange(10), Key(0))
            before, peak = anonymous(), Peak()
            peak.start()
            _, took = my_round(engine, work)
            peak.done.set()
            peak.join()
            added = (peak.most - before) / 1e6
            rows.append({"rows": n, "file, MB": n * D * 4 / 1e6, "seconds": took, "memory added, MB": added})
            del engine
    report("gaussian_speed_memory", rows, note="float32, memory-mapped, clients of 1,000 rows, weights of each client")


def main() -> None:
    args = arguments(__doc__)
    against_scikit_learn(100_000 if args.quick else 1_000_000, 2 if args.quick else 3)
    print()
    memory((100_000, 200_000) if args.quick else (1_000_000, 4_000_000))


if __name__ == "__main__":
    main()
