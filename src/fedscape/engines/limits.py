"""A bound on what this process may allocate for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def allocated() -> int | None:
    """Bytes that this process has allocated, mapped files not among them; None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData"))


@contextlib.contextmanager
def bounded(more: int) -> Iterator[None]:
    """Within it this process can allocate so many bytes more than it has now; then MemoryError. Only Linux can."""
    import resource

    now = allocated()
    if now is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    least = [now + more, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(least), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
