"""How soon is training at full speed, in a first process and in a second, which finds the programs of the first?

On a GPU by "recorded" programs (`--strategy compiled` for torch's compiler, the only one on a CPU). Each pair of
processes has a folder of its own (FEDSCAPE_PROGRAMS): the first finds it empty, the second what the first left. The
network is the two-convolution CNN on 28 x 28, clients of one size. Seconds of a busy machine mean little;
the processor time of the process, without that of the C++ compilers it starts, and the ratios mean more.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import torch

from table import arguments, report

PROCESS = """
import json, sys, time, numpy as np, torch, fedscape as fs
from fedscape.learning import FedAvg, cross_entropy, models
from torch._dynamo.utils import counters
rng, device = np.random.default_rng(0), "cuda" if torch.cuda.is_available() else "cpu"
columns = {"x": rng.integers(0, 256, (80, 28, 28), dtype=np.uint8), "y": rng.integers(0, 10, 80)}
fed = fs.Federation(columns, np.arange(0, 81, 20))
net = models.cnn((1, 28, 28), 10, dropout=False)
local = fs.LocalSGD(net, cross_entropy, lr=0.01, epochs=1, batch_size=10, strategy=sys.argv[1], device=device)
began, used = time.perf_counter(), time.process_time()
loop = fs.rounds(FedAvg(local), fs.Local(fed, threads=1), n_rounds=3, measure=0)
next(loop)
first, processor = time.perf_counter() - began, time.process_time() - used
*_, last = loop
cache = {n: counters["inductor"]["fxgraph_cache_" + n] for n in ("hit", "miss")}
state = b"".join(v.tobytes() for v in last.state.values()).hex()
print(json.dumps({"s": first, "processor s": processor, "later s": last.seconds, **cache, "state": state}))
"""


def first_round(strategy: str, folder: str) -> dict[str, Any]:
    """What a new process says of its first round."""
    env = {**os.environ, "FEDSCAPE_PROGRAMS": folder}
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        env.pop(name, None)
    command = [sys.executable, "-W", "ignore", "-c", PROCESS, strategy]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def main() -> None:
    args = arguments(__doc__, repeats=3, strategy="recorded" if torch.cuda.is_available() else "compiled")
    pairs = []
    for _ in range(1 if args.quick else args.repeats):
        with tempfile.TemporaryDirectory() as folder:
            pairs.append([first_round(args.strategy, folder) for _ in range(2)])
    rows = []
    for number, process in enumerate(("first", "second")):
        each = [pair[number] for pair in pairs]
        line: dict[str, Any] = {"process": process, "starts": len(each)}
        line |= {name: statistics.median(e[name] for e in each) for name in ("s", "processor s")}
        line |= {"programs found": each[0]["hit"], "compiled": each[0]["miss"]}
        for name in ("s", "processor s"):
            ratios = [pair[0][name] / pair[number][name] for pair in pairs]
            line[f"times the first, {name}"] = f"{statistics.median(ratios):.1f} [{min(ratios):.1f}, {max(ratios):.1f}]"
        rows.append(line)
    same = all(len({e["state"] for e in pair}) == 1 for pair in pairs)
    report("program_start", rows, note=f"Both processes end with the same bytes: {'yes' if same else 'NO'}.")


if __name__ == "__main__":
    main()
