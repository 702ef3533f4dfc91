"""FedBN: each client has its own normalisation layers, everything else is common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.learning.layers import Module, initialised
from fedscape.learning.local import LocalSGD
from fedscape.personal.fedem import small_example
from fedscape.personal.fedper import FedPer

_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._NormBase)


class FedBN(FedPer):
    """Clients share all but the scales and shifts of the normalisation layers: Li et al. 2021.

    For clients whose features differ (other scanners, other cameras). The paper uses BatchNorm. Its running statistics
    are not a mean over clients, and LocalSGD refuses them. Here GroupNorm, LayerNorm and InstanceNorm have a scale and
    shift per client. A new client trains these few numbers on its rows.

    Parameters
    ----------
    local
        How a client trains; the model must have a normalisation layer with parameters.
    initial
        "given" or "seed".

    >>> from fedscape.learning import cross_entropy
    >>> model = nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.ReLU(), nn.Linear(6, 2))
    >>> FedBN(LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2)).head_names
    ['1.weight', '1.bias']
    """

    name = "fedbn"
    newcomers: ClassVar[str | None] = "the common layers, normalised as they began"

    def __init__(self, local: LocalSGD, *, initial: str = "given") -> None:
        super().__init__(local, head=_norm_names(local), initial=initial)

    @classmethod
    def examples(cls) -> Sequence[tuple[FedBN, Federation]]:
        fed, _, two = small_example()
        deep = nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.Tanh(), nn.Linear(6, 3)).to(torch.float64)
        local = replace(two, model=initialised(deep, 1))
        return [(cls(local), fed), (cls(replace(local, strategy="vmap"), initial="seed"), fed)]


def _norm_names(local: LocalSGD) -> tuple[str, ...]:
    layers = [path for path, layer in local.model.named_modules() if isinstance(layer, _NORMS)]
    names = tuple(n for n in local.names if n.rpartition(".")[0] in layers)
    if not names:
        raise DataError(
            f"model must have a normalisation layer with trained scale and shift for FedBN, such as "
            f"torch.nn.GroupNorm, it has {', '.join(local.names)}: without one FedBN is FedAvg"
        )
    return names


def with_norm(model: Module) -> Module:
    """A stack of layers with a normalisation after its first linear layer.

    >>> [type(layer).__name__ for layer in with_norm(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)))]
    ['Linear', 'GroupNorm', 'ReLU', 'Linear']
    """
    first = next(i for i, layer in enumerate(model) if isinstance(layer, nn.Linear))
    return nn.Sequential(*model[: first + 1], nn.GroupNorm(1, model[first].out_features), *model[first + 1 :])
