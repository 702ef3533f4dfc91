"""Start from the network of an earlier run, and train adapters in place of all weights: --base and --lora."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscape.cli.options import listed
from fedscape.errors import DataError
from fedscape.methods import METHODS

if TYPE_CHECKING:
    from fedscape.cli.training import Request
    from fedscape.learning.inputs import Inputs

Base = Annotated[
    Path | None,
    typer.Option(help="Folder of an earlier run with one model for all: start from its weights, with its inputs."),
]
Lora = Annotated[int | None, typer.Option(help="Train low-rank adapters of this rank in place of all weights.")]
LoraLayers = Annotated[
    str | None,
    typer.Option(help="With --lora: linear layers (comma-separated patterns), as query,value; all by default."),
]

#: What a base decides.
_DECIDED = ("model", "features", "standardise", "fill", "shape")
#: Methods with several models for all: without adapters they would begin alike, and stay so.
_SEVERAL = ("ifca", "fedem", "fedgmm")


@dataclass(frozen=True)
class Beginning:
    """The network that a run starts from, how to make it again, and its inputs."""

    network: Any
    architecture: str
    arguments: dict[str, Any]
    inputs: Inputs


def check_fine_tuning(name: str, request: Request) -> None:
    """Refuse --base and --lora where they have no effect, and what --base decides."""
    family = METHODS[name].family
    for option, value in (("base", request.base), ("lora", request.lora)):
        if value is not None and family == "temporal":
            raise DataError(f"--{option} goes with methods of one network, not with the branches of {name}")
    check_base(request.base, request.lora, request.lora_layers, request.typed)
    if request.base is not None and name in _SEVERAL and request.lora is None:
        raise DataError(f"all models of {name} would begin as that of --base and stay alike: add --lora 8")


def check_base(base: Path | None, lora: int | None, layers: str | None, typed: frozenset[str]) -> None:
    """Refuse layers of adapters without adapters, and what a base decides; `typed` are options on the command line."""
    if layers is not None and lora is None:
        raise DataError("--lora-layers needs --lora, the rank of the adapters")
    for option in () if base is None else _DECIDED:
        if option in typed:
            raise DataError(f"--{option} is as the model in --base has it: leave it out")


def base_of(path: Path, target: str) -> Beginning:
    """The network in the folder of a run; one that is not the same for all clients is refused."""
    from fedscape.personal.methods import Common
    from fedscape.trained.export import networks_of
    from fedscape.trained.model import load_network

    saved = load_network(path)
    if not isinstance(saved.model.method, Common):
        raise DataError(
            f"{path} was trained by {saved.method}, which has no model that is one for all: --base needs one"
        )
    if saved.inputs.target != target:
        raise DataError(f"the model in {path} learned the column {saved.inputs.target!r}: pass --column for it")
    [(_, network)] = networks_of(saved)
    return Beginning(network.train(), saved.about["architecture"], dict(saved.about["arguments"]), saved.inputs)


def with_adapters(network: Any, lora: int | None, layers: str | None, seed: int) -> tuple[Any, list[str]]:
    """The network with adapters, if --lora asks for them; also a line that says what is sent."""
    if lora is None:
        return network, []
    from fedscape.learning import Adapted

    adapted = Adapted(network, lora, layers=["*"] if layers is None else listed(layers), seed=seed)
    sent = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    line = f"adapters of rank {lora}: {sent:,} numbers are trained and sent, {100 * adapted.share:.1f}% of"
    return adapted, [f"{line} the {adapted.n_full:,} of the network"]
