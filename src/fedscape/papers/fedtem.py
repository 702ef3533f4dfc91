"""FedTEM, FedTKM and semi-cyclic SGD as printed in Zhu et al. 2022, where they differ from the toolkit's defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.learning.fedavg import FedAvg
from fedscape.learning.local import LocalSGD
from fedscape.temporal.baselines import SemiCyclic
from fedscape.temporal.curves import Blocks, Linear
from fedscape.temporal.fedtem import FedTEM, small_example
from fedscape.temporal.fedtkm import FedTKM
from fedscape.temporal.priors import Prior
from fedscape.types import Array

#: Names for `temporal_as_printed`.
PRINTED = ("fedtem", "fedtkm", "fedtkm-constant", "scsgd")


class ConstantFedTKM(FedTKM):
    """FedTKM with the constant eta of Section 3.2; `FedTKM` has the eta of (27), which is zero between the modes.

    The parameters are those of FedTKM; `rate` is eta itself.

    >>> import numpy as np
    >>> fed, step, _ = small_example()
    >>> even = np.array([0.5, 0.5])
    >>> ConstantFedTKM(step, rate=0.2).eta(even), FedTKM(step, rate=0.2).eta(even)
    (0.2, 0.0)
    """

    name = "fedtkm-constant"

    def eta(self, shares: Array) -> float:
        """The same step size in every round."""
        return self.rate

    @classmethod
    def examples(cls) -> Sequence[tuple[FedTKM, Federation]]:
        fed, one, _ = small_example()
        return [(cls(one, Linear(4)), fed)]


def temporal_as_printed(name: str, local: LocalSGD, prior: Prior, **how: Any) -> FedAvg:
    """A method as printed in the paper, as a computation for `rounds`.

    Parameters
    ----------
    name
        "fedtem": (10) averages the clients' variances and leaves out the scatter of their means; modes learn in all
        hours from the clients of one round. "fedtkm": eta by (27). "fedtkm-constant": constant eta, as in Section 3.2.
        "scsgd": one branch in the first half of each period, the other in the second.
    local
        How a client trains; its model is a MultiBranch.
    prior
        The prior of the server; semi-cyclic SGD uses only its period.
    how
        As for the method's class: `strength`, `smoothing`, `server`, `weighting`, `initial`.

    >>> fed, step, _ = small_example()
    >>> temporal_as_printed("fedtem", step, Linear(8)).scatter
    'within_clients'
    """
    kinds: dict[str, Callable[[], FedAvg]] = {
        "fedtem": lambda: FedTEM(local, prior, scatter="within_clients", hours="all", inertia=0.0, **how),
        "fedtkm": lambda: FedTKM(local, prior, hours="all", inertia=0.0, **how),
        "fedtkm-constant": lambda: ConstantFedTKM(local, prior, hours="all", inertia=0.0, **how),
        "scsgd": lambda: SemiCyclic(local, Blocks(_period(prior)), **_plain(how)),
    }
    if name not in kinds:
        raise DataError(f"name must be one of {', '.join(PRINTED)}, not {name!r}")
    return kinds[name]()


def _period(prior: Prior) -> float:
    period = getattr(prior, "period", None)
    if period is None:
        raise DataError(f"semi-cyclic SGD needs a prior with a period, such as Linear(256), not {prior!r}")
    return float(period)


def _plain(how: dict[str, Any]) -> dict[str, Any]:
    """Settings without those of equation (4): semi-cyclic SGD does not train the other branch."""
    return {key: value for key, value in how.items() if key not in ("strength", "smoothing")}
