"""Simulated clients as partitions of flwr_datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr_datasets.partitioner import Partitioner

from fedscape.errors import DataError
from fedscape.simulate.partition import Plan, Policy, plan
from fedscape.simulate.recipes import FromMixture, Recipe


class PopulationPartitioner(Partitioner):  # type: ignore[misc]  # flwr_datasets is not typed here
    """A `flwr_datasets` Partitioner with simulated clients as partitions.

    Parameters
    ----------
    population
        A fitted MixtureOfDirichletMultinomials, or any recipe of `fedscape.simulate`.
    num_partitions
        Number of clients.
    partition_by
        The modelled column of categories.
    seed
        The same seed gives the same partitions of the same dataset.
    policy
        As for `fedscape.simulate.clients`.

    >>> from fedscape.simulate import Dirichlet
    >>> PopulationPartitioner(Dirichlet(0.3), num_partitions=10).num_partitions
    10
    """

    def __init__(
        self,
        population: Any,
        *,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 42,
        policy: Policy = "refuse",
    ) -> None:
        super().__init__()
        self._recipe: Recipe = population if hasattr(population, "draw") else FromMixture(population)
        if hasattr(self._recipe, "prepare"):
            raise DataError(
                f"{type(self._recipe).__name__} changes rows, partitions only choose them: use simulate.clients()"
            )
        self._num_partitions = num_partitions
        self._partition_by = partition_by
        self._seed = seed
        self._policy = policy
        self._plan: Plan | None = None

    @property
    def plan(self) -> Plan:
        """The rows of each partition, computed at first use."""
        if self._plan is None:
            column = self.dataset.select_columns([self._partition_by])
            self._plan = plan(
                self._recipe,
                column,
                n_clients=self._num_partitions,
                column=self._partition_by,
                seed=self._seed,
                policy=self._policy,
            )
        return self._plan

    @property
    def partition_id_to_indices(self) -> dict[int, list[int]]:
        """The rows of every partition."""
        return {number: self.plan.indices(number).tolist() for number in range(self._num_partitions)}

    def load_partition(self, partition_id: int) -> Any:
        """The rows of one partition as a `datasets.Dataset`."""
        if not 0 <= partition_id < self._num_partitions:
            raise DataError(f"partition_id must be from 0 to {self._num_partitions - 1}, not {partition_id}")
        return self.dataset.select(np.asarray(self.plan.indices(partition_id)))

    @property
    def num_partitions(self) -> int:
        """The number of partitions."""
        return self._num_partitions
