"""One typed decorator for the compiled inner loops."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

F = TypeVar("F", bound=Callable[..., Any])

_COMPILING = threading.RLock()  # a kernel that calls kernels compiles them too
_plain = threading.local()


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Run kernels as plain Python in this thread: for a process that lives for one small step.

    >>> with uncompiled():
    ...     kernel(lambda x: x + 1)(1)
    2
    """
    before = getattr(_plain, "on", False)
    _plain.on = True
    try:
        with np.errstate(over="ignore"):  # compiled, whole numbers wrap around in silence
            yield
    finally:
        _plain.on = before


def compiles() -> bool:
    """Whether this thread runs kernels compiled; see `uncompiled`."""
    return not getattr(_plain, "on", False)


@functools.cache
def has_compiler() -> bool:
    """Whether Numba is installed: a machine that only trains may have NumPy and torch alone.

    >>> has_compiler()
    True
    """
    return find_spec("numba") is not None


class WarmUp:
    """Counts the work of this process until loading a compiled loop pays; results are the same before and after.

    Parameters
    ----------
    enough
        Units of work that take as long as the loop takes to load.

    >>> warm_up = WarmUp(enough=10)
    >>> warm_up.pays(6), warm_up.pays(6)
    (False, True)
    """

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.done = 0

    def pays(self, work: int) -> bool:
        """Count this much more work; whether compiled code is worth loading by now."""
        self.done += work
        return self.done > self.enough and compiles() and has_compiler()


def kernel(function: F) -> F:
    """Compile a plain loop with Numba on its first call: serial, without the GIL, cached on disk.

    Numba itself is imported at that first call, so that `import fedscape` stays quick; where there is none, the loop
    runs as the plain Python it is. Kernels are serial because the engine's threads already run them over blocks. Where
    no cache folder can be written, each process recompiles the kernel. It may call other kernels.

    >>> @kernel
    ... def double(x):
    ...     return 2 * x
    >>> double(21)
    42
    """
    compiled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def first_call(*args: Any) -> Any:
        if not compiles():  # also where it is compiled already: plain Python looks where it reads
            return function(*args)
        return (compiled[0] if compiled else ready())(*args)

    def ready() -> Callable[..., Any]:
        with _COMPILING:
            if not compiled:
                compiled.append(_compile(function))
        return compiled[0]

    vars(first_call)["compiled"] = ready
    return cast(F, first_call)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        import numba
    except ImportError:
        return uncompiled()(function)
    function = _calling_compiled(cast(FunctionType, function))
    try:
        return cast(Callable[..., Any], numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:  # no folder for the cache can be written, or the source is not in a file
        return cast(Callable[..., Any], numba.njit(nogil=True)(function))


def _calling_compiled(function: FunctionType) -> FunctionType:
    """The same function, which calls the compiled form of kernels: compiled code can call nothing else."""
    space = function.__globals__
    called = {n: vars(space[n])["compiled"]() for n in function.__code__.co_names if "compiled" in _marks(space.get(n))}
    if not called:
        return function
    linked = FunctionType(function.__code__, {**space, **called}, function.__name__, function.__defaults__)
    linked.__module__, linked.__qualname__ = function.__module__, function.__qualname__
    return linked


def _marks(thing: Any) -> dict[str, Any]:
    return vars(thing) if isinstance(thing, FunctionType) else {}
