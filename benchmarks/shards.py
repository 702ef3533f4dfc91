"""Long benchmarks in pieces: tasks over worker processes or machines, each result written as soon as it is there.

A result is one line of FOLDER/NAME.jsonl (with `--shard i/n` NAME.i-of-n.jsonl). A task whose line is there already is
not run again, so a run that was cut short goes on where it was. `collected` reads the lines of all shards.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from table import RESULTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--workers`, `--shard`, `--out` and `--merge`."""
    parser.add_argument("--workers", type=int, default=1, help="processes on this machine")
    parser.add_argument("--shard", default="0/1", help="which part of the tasks: i/n")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the partial results")
    parser.add_argument("--merge", action="store_true", help="run nothing, make the table of what is there")


def run(
    name: str, work: Callable[[Any], dict[str, Any]], tasks: Iterable[list[Any]], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """Results of the tasks, lists that JSON can say; the longest should come first."""
    every = list(tasks)
    part, parts = map(int, given.shard.split("/"))
    mine = [] if given.merge else every[part::parts]
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / (f"{name}.jsonl" if parts == 1 else f"{name}.{part}-of-{parts}.jsonl")
    done = {json.dumps(line["task"]) for line in collected(name, given.out)}
    left = [task for task in mine if json.dumps(task) not in done]
    with path.open("a") as file:

        def keep(task: list[Any], result: dict[str, Any]) -> None:
            file.write(json.dumps({"task": task, **result}, default=float) + "\n")
            file.flush()

        if given.workers > 1:
            method = get_context("spawn")
            numbers = method.Value("i", 0)
            with ProcessPoolExecutor(given.workers, method, _one_core, (numbers,)) as pool:
                running = {pool.submit(work, task): task for task in left}
                for future in as_completed(running):
                    keep(running[future], future.result())
        else:
            for task in left:
                keep(task, work(task))
    wanted = {json.dumps(task) for task in every}
    return [line for line in collected(name, given.out) if json.dumps(line["task"]) in wanted]


def _one_core(numbers: Any) -> None:
    """Give a worker one core of its own, so that its engines start one thread."""
    if hasattr(os, "sched_setaffinity"):
        with numbers.get_lock():
            mine, numbers.value = numbers.value, numbers.value + 1
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[mine % len(cores)]})


def collected(name: str, folder: Path) -> list[dict[str, Any]]:
    """All lines of a benchmark in a folder; one that was cut off is left out."""
    lines = []
    for path in sorted([folder / f"{name}.jsonl", *folder.glob(f"{name}.*-of-*.jsonl")]):
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
    return lines
