"""Group rows by client with tasks on all machines of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from fedscape.engines.ray.cluster import Cluster
from fedscape.formats.files import Name
from fedscape.formats.lake import scan as scan_here

T = TypeVar("T")


class Tasks:
    """Tasks of a cluster, for `formats.shuffle`; all machines must see the source and the target."""

    stopped: Callable[[], bool] | None = None  # Ray ends tasks that are not needed

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.number = cluster, cluster.workers

    def map(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """The results of the items, in order."""
        return self.cluster.map(work, items)


def _absolute(where: Any) -> Any:
    """Local paths as every process finds them, whatever its working folder."""
    if isinstance(where, str | os.PathLike):
        path = os.fspath(where)
        return path if "://" in path else os.path.abspath(path)
    return [_absolute(each) for each in where] if isinstance(where, list | tuple) else where


def scan(
    where: Any,
    path: Name,
    *,
    client: str,
    address: str | None = None,
    workers: int | None = None,
    **how: Any,
) -> None:
    """Group the rows of files by client into fedscape's own folder, in tasks on a cluster.

    Parameters
    ----------
    where
        As for `Federation.scan`: files that all machines can read. Frames and relations are read by this process, and
        only grouped by tasks.
    path
        The folder to create, on a file system that all machines share.
    client
        The client column.
    address, workers
        As for `Ray`; each task takes one core.
    how
        Further options of `formats.lake.scan`, in which a query has its `connection`; `memory` is that of one task.
    """
    with tasks_on(address, workers) as tasks:
        where = where if how.get("connection") is not None else _absolute(where)
        scan_here(where, path, client=client, tasks=tasks, **how)


@contextmanager
def tasks_on(address: str | None, workers: int | None) -> Iterator[Tasks]:
    """Tasks of a cluster, with `address` and `workers` as for `Ray`; each takes one core."""
    cluster = Cluster(address, workers, 1, 0.0, None)
    try:
        yield Tasks(cluster)
    finally:
        cluster.leave()
