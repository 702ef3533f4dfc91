"""Progress on standard error: a bar on a terminal, a line a minute elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from fedscape.core.rounds import Round

EVERY = 60.0  # seconds between two lines
_UNDER_WAY: list[Work] = []  # in this process, the innermost last: that one alone speaks

Tell = Callable[[float, str], None]  # how much is done, and what is being done


@dataclass
class Work:
    """What is being done, and how far it is.

    >>> Work("FedEM", total=20, done=5).line(seconds=60)
    'FedEM: 5 of 20, 1 min so far, about 3 min left'
    """

    label: str
    total: float | None = None
    done: float = 0.0
    remark: str = ""
    unit: str = ""
    began: float = field(default_factory=time.monotonic)

    def tell(self, done: float, remark: str = "") -> None:
        """Note how much is done and what is being done."""
        self.done, self.remark = done, remark

    def line(self, *, seconds: float) -> str:
        """Progress after this many seconds, and the estimated time left."""
        parts = [f"{duration(seconds)} so far"]
        if self.total is not None:
            share = f"{100 * self.done / self.total:.0f}%" if self.unit == "%" else f"{self.done:g} of {self.total:g}"
            parts.insert(0, share)
            if self.done > 0:
                parts.append(f"about {duration(seconds * (self.total - self.done) / self.done)} left")
        return f"{self.label}: {', '.join([*parts, self.remark] if self.remark else parts)}"


def duration(seconds: float) -> str:
    """Format a duration for people.

    >>> duration(42), duration(342), duration(7500)
    ('42 s', '6 min', '2 h 5 min')
    """
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def working(
    label: str,
    *,
    total: float | None = None,
    unit: str = "",
    progress: bool | None = None,
    bar: bool = True,
    every: float = EVERY,
) -> Iterator[Tell]:
    """Show work while the block runs; gives a function to say how much of it is done, and what is being done.

    Parameters
    ----------
    label
        What is being done.
    total
        How much there is to do; None where nobody knows.
    unit
        "%" shows the share that is done instead of a number.
    progress
        True shows a bar, False nothing; by default a bar on a terminal, elsewhere lines.
    bar
        Whether a terminal gets a bar; False is for work that other work with a bar goes on inside.
    every
        Seconds between two lines.

    >>> with working("counting", total=2, progress=False) as tell:
    ...     tell(1, "the first")
    """
    if progress is False:
        yield lambda done, remark: None
        return
    work = Work(label, total, unit=unit)
    _UNDER_WAY.append(work)
    try:
        with _bar(work, progress) if bar and (progress or sys.stderr.isatty()) else _lines(work, every) as tell:
            yield tell
    finally:
        _UNDER_WAY.remove(work)


@contextmanager
def _lines(work: Work, every: float) -> Iterator[Tell]:
    """Print a line at this interval from a thread: one round may take longer."""
    stop = threading.Event()

    def speak() -> None:
        while not stop.wait(every):
            if _UNDER_WAY[-1] is work:
                sys.stderr.write(f"{work.line(seconds=time.monotonic() - work.began)}\n")
                sys.stderr.flush()

    speaker = threading.Thread(target=speak, daemon=True)
    speaker.start()
    try:
        yield work.tell
    finally:
        stop.set()
        speaker.join()


@contextmanager
def _bar(work: Work, force: bool | None) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    share = "{task.percentage:>3.0f}%" if work.unit == "%" else "{task.completed:g}/{task.total:g}"
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        *([] if work.total is None else [TextColumn(share)]),
        TextColumn("{task.fields[remark]}"),
        TimeElapsedColumn(),
        *([] if work.total is None else [TextColumn("left"), TimeRemainingColumn()]),
    )
    console = Console(stderr=True, force_terminal=force)
    # what is printed meanwhile goes above the bar, but never from a file that is written to onto the terminal
    with Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as shown_bar:
        task = shown_bar.add_task(work.label, total=work.total, remark="")

        def tell(done: float, remark: str = "") -> None:
            shown_bar.update(task, completed=done, remark=remark)

        yield tell


def shown(rounds: Iterable[Round], *, n_rounds: int, label: str, progress: bool | None = None) -> Iterator[Round]:
    """Pass rounds through while the round, the first metric and the time left are shown.

    Parameters
    ----------
    rounds
        What `fedscape.rounds` gives.
    n_rounds
        How many there will be at most.
    label
        What is running.
    progress
        As for `working`.

    >>> list(shown([], n_rounds=0, label="nothing", progress=False))
    []
    """
    with working(label, total=n_rounds, progress=progress) as tell:
        for done in rounds:
            tell(done.index + 1, _first_metric(done))
            yield done


def _first_metric(done: Round) -> str:
    for name, values in done.metrics.items():
        return f"{name} {float(np.min(values)):.4g}"
    return "abandoned" if done.abandoned else ""
