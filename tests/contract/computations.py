"""Finds every Computation of the package; nothing has to be registered."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache

import fedscape
from fedscape import Computation, Estimator, Federation
from fedscape.core.computation import stable_name


def computations() -> Iterator[type[Computation]]:
    for info in pkgutil.walk_packages(fedscape.__path__, "fedscape."):
        if (
            info.name.endswith("__main__") or ".fast.triton" in info.name
        ):  # the latter can be imported where there is Triton only
            continue
        module = importlib.import_module(info.name)
        for _, found in inspect.getmembers(module, inspect.isclass):
            if (
                issubclass(found, Computation)
                and found not in (Computation, Estimator)
                and found.__module__ == info.name
            ):
                yield found


@cache
def examples() -> list[tuple[str, Computation, Federation]]:
    """All examples of all of them; some take a fit to make."""
    return [
        (f"{stable_name(kind)}-{number}", computation, federation)
        for kind in computations()
        for number, (computation, federation) in enumerate(kind.examples())
    ]
