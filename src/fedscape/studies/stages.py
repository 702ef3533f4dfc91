"""The stages of a study: progress, and the seconds of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedscape.core.progress import Tell
from fedscape.core.schedule import one_library_thread

STAGES = {"describe": 1, "measure": 6, "model": 4, "simulate": 6, "learn": 80, "advise": 1}  # shares of the time
Say = Callable[[str], None]


class Stages:
    """Progress of a study, and the seconds of each stage."""

    def __init__(self, tell: Tell) -> None:
        self.seconds: dict[str, float] = {}
        self._tell = tell
        self._done = 0.0

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        self._tell(self._done, _place(name))
        with one_library_thread():
            yield
        self.seconds[name] = round(time.perf_counter() - began, 3)
        self._done += STAGES[name]

    def inside(self, name: str, steps: int) -> Say:
        count = iter(range(steps))

        def say(what: str) -> None:
            self._tell(self._done + STAGES[name] * next(count, steps) / steps, f"{_place(name)}: {what}")

        return say


def _place(name: str) -> str:
    return f"{list(STAGES).index(name) + 1}/{len(STAGES)} {name}"
