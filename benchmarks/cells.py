"""Cells of a table run side by side: the most important first, each row written at once, an end in time.

A cell is a dictionary of plain values that says what to run; what comes of it are rows, the cell with what was found.
Rows lie in a file of JSON lines: a run that is stopped loses none, and one that goes on skips the cells it finds there.
Each says under `origin` when, at which commit and on what machine it was made.
"""

from __future__ import annotations

import json
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np

from table import half_width, origin_of

Row = dict[str, Any]


class TimeUp(Exception):
    """The time limit came before the cell was done."""


def check_time(until: float) -> None:
    """Leave the cell if its time is over."""
    if time.time() > until:
        raise TimeUp


def read(files: str) -> list[Row]:
    """The rows of these files, names joined by commas; a file that is not there has none."""
    paths = [Path(name) for name in files.split(",") if name and Path(name).exists()]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines() if line.strip()]


def run_cells(
    plan: Callable[[list[Row]], list[Row]],
    work: Callable[[Row, float], list[Row]],
    *,
    out: str,
    workers: int = 0,
    limit: float = 1e9,
) -> list[Row]:
    """All rows, when the plan is done or the time is over.

    Parameters
    ----------
    plan
        From the rows so far, the cells that can be run, the most important first; run and running ones may be in it.
    work
        From (cell, when to stop), its rows.
    out
        The file; rows that it has already count.
    workers
        Processes; 0 runs in this one.
    limit
        Seconds. Cells that are not done by then leave no row.
    """
    until, rows = time.time() + limit, read(out)
    before, begun, where = list(rows), set(), origin_of([])

    def is_new(cell: Row) -> bool:
        return _key(cell) not in begun and not _is_known(cell, before)

    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with open(out, "a") as file, _Pool(workers) as pool:
        while True:
            ready = filter(is_new, plan(rows))
            while pool.has_room and time.time() < until and (cell := next(ready, None)) is not None:
                begun.add(_key(cell))
                pool.submit(_caught, work, cell, until)
            for found in pool.finished(until + 10):
                found = [{**row, "origin": where} for row in found]
                for row in found:
                    file.write(json.dumps(row, default=float) + "\n")
                    file.flush()
                    print("#", json.dumps(row, default=_short)[:300], flush=True)
                rows += found
            if not pool.going and (time.time() > until or not any(map(is_new, plan(rows)))):
                return rows


def _key(cell: Row) -> str:
    return json.dumps(cell, sort_keys=True)


def _short(value: Any) -> float:
    return round(float(value), 4)


def _is_known(cell: Row, rows: list[Row]) -> bool:
    return any(all(row.get(name) == value for name, value in cell.items()) for row in rows)


def _caught(work: Callable[[Row, float], list[Row]], cell: Row, until: float) -> list[Row]:
    """The rows of a cell; one that fails says why and does not stop the others."""
    try:
        return work(cell, until)
    except TimeUp:
        return []
    except Exception as error:
        traceback.print_exc(limit=-4)
        return [{**cell, "error": f"{type(error).__name__}: {error}"[:300]}]


class _Pool:
    """Processes that take a cell each; a process that dies takes the cells in flight with it, not the rest."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.going: list[Future[list[Row]]] = []
        self.pool = self._new()

    def _new(self) -> ProcessPoolExecutor | None:
        spawned = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, mp_context=spawned) if self.workers else None

    @property
    def has_room(self) -> bool:
        return len(self.going) < max(self.workers, 1)

    def submit(self, function: Callable[..., list[Row]], *arguments: Any) -> None:
        if self.pool is not None:
            self.going.append(self.pool.submit(function, *arguments))
            return
        done: Future[list[Row]] = Future()
        done.set_result(function(*arguments))
        self.going.append(done)

    def finished(self, latest: float) -> Iterator[list[Row]]:
        """What came of the cells that are done; after `latest` the others are given up."""
        done, left = wait(self.going, timeout=max(latest - time.time(), 0.0), return_when=FIRST_COMPLETED)
        self.going = list(left) if done else []
        for future in done:
            try:
                yield future.result()
            except BrokenProcessPool:
                self.going, self.pool = [], self._new()

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is None:
            return
        for process in list((self.pool._processes or {}).values()):
            process.terminate()
        self.pool.shutdown(wait=False, cancel_futures=True)


_PROGRAMS: dict[Any, Any] = {}


def share_programs(local: Any, kind: Any) -> None:
    """Let this LocalSGD use the programs made for one of its kind: rates and first weights are no part of a program."""
    from fedscape.learning.trainer import trainer_of  # with torch, which not every benchmark of cells needs

    trainer: Any = trainer_of(local)
    if trainer.strategy in ("compiled", "recorded"):
        trainer.programs = _PROGRAMS.setdefault(kind, trainer.programs)


def percent(values: list[float]) -> str:
    """Mean of shares and its interval, in percent."""
    if not values:
        return ""
    half = f" +/- {100 * half_width(values):.2f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.2f}{half}"
