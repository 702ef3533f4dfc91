"""A temporary bound on the memory of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def allocated() -> int | None:
    """Bytes allocated by this process, without mapped files; None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


@contextlib.contextmanager
def bounded(more: int) -> Iterator[None]:
    """Limit this process to `more` additional bytes in this context, then raise MemoryError. Linux only."""
    now = allocated()
    if now is None:
        yield
        return
    import resource  # Windows has none

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = [now + more, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(least), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
