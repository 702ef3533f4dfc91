"""Group rows by client with tasks on all machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fedscape.engines.ray.cluster import Cluster
from fedscape.formats.files import Name
from fedscape.formats.lake import scan as scan_here

T = TypeVar("T")


class Tasks:
    """Tasks of a cluster, for `formats.shuffle`; all machines must see the source and the target."""

    stopped = None  # Ray ends tasks that are not needed

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.number = cluster, cluster.workers

    def map(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """The results of the items, in order."""
        return self.cluster.map(work, items)


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
        Further options of `formats.lake.scan`; `memory` is that of one task.
    """
    cluster = Cluster(address, workers, 1, 0.0, None)
    try:
        scan_here(where, path, client=client, tasks=Tasks(cluster), **how)
    finally:
        cluster.leave()
