"""A progress bar over rounds: on a terminal, and only there."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import numpy as np

from fedscape.computation import Round


def shown(rounds: Iterable[Round], *, n_rounds: int, label: str, progress: bool | None = None) -> Iterator[Round]:
    """Pass rounds through while a bar shows the round, the first metric and the time left.

    Parameters
    ----------
    rounds
        What `fedscape.rounds` gives.
    n_rounds
        How many there will be at most.
    label
        What is running.
    progress
        True or False forces the bar on or off; by default it is on when standard error is a terminal.

    >>> list(shown([], n_rounds=0, label="nothing", progress=False))
    []
    """
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from rounds
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[metric]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True, force_terminal=progress), transient=True) as bar:
        task = bar.add_task(label, total=n_rounds, metric="")
        for done in rounds:
            bar.update(task, completed=done.index + 1, metric=_first_metric(done))
            yield done


def _first_metric(done: Round) -> str:
    for name, values in done.metrics.items():
        return f"{name} {float(np.min(values)):.4g}"
    return "abandoned" if done.abandoned else ""
