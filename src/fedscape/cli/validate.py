"""Checks of the training options, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedscape.cli.finetuning import check_fine_tuning
from fedscape.cli.options import free
from fedscape.errors import DataError
from fedscape.methods import METHODS, Options, check_options, find, names
from fedscape.methods import check_private as refuse_exact

if TYPE_CHECKING:
    from fedscape.cli.training import Request


#: Options of networks, and of trees and GLMs: one given to the other is refused.
_NETWORK = (
    *("model", "lr", "epochs", "batch_size", "proximal", "q", "server_lr", "standardise", "shape", "device"),
    *("strategy", "group_size", "schedule", "prior", "modes", "base", "lora", "lora_layers"),
)
_TABULAR = ("trees", "family", "ranges")


def check_request(name: str, request: Request) -> None:
    """Refuse an unknown method, options it does not take, privacy it does not support, and zero rounds."""
    if name not in names(command=True):
        raise DataError(f"--method must be one of {', '.join(names(command=True))}, not {name!r}")
    method = find(name, command=True)
    tabular = method.family == "tabular"
    for option in _NETWORK if tabular else _TABULAR:
        if option in request.typed:
            takers = "networks" if tabular else f"--method {' or '.join(names('tabular'))}"
            raise DataError(f"--{option.replace('_', '-')} goes with {takers}, not with {name}")
    for option, value in (("rounds", request.rounds), ("every", request.every), ("trees", request.trees)):
        if value is not None and value < 1:
            raise DataError(f"--{option} must be at least 1, not {value}")
    if request.trees is not None and "trees" not in method.takes:
        raise DataError(f"--trees goes with --method trees, not with {name}")
    check_options(method, Options(q=request.q, server_lr=request.server_lr), proximal=request.proximal)
    if request.epsilon is not None:
        refuse_exact(method)
    elif request.ranges is not None:
        raise DataError("--ranges goes with --epsilon, the budget to train within")
    check_schedule(name, request.schedule, request.modes, request.prior)
    check_fine_tuning(name, request)


def check_private(
    epsilon: float | None,
    delta: float | None,
    clip: float | None,
    standardise: bool,
    fill: str | None,
    find: float | None = None,
) -> None:
    """Refuse options that --epsilon does not cover, and --delta, --clip or --find without --epsilon."""
    if epsilon is None:
        for name, value in (("delta", delta), ("clip", clip), ("find", find)):
            if value is not None:
                raise DataError(f"--{name} needs --epsilon, the privacy budget")
        return
    if find is not None and not 0 < find < 1:
        raise DataError(f"--find must be a share of the budget above 0 and below 1, such as 0.2, not {find}")
    if standardise and find is None:
        raise DataError(
            "--standardise takes exact means over all rows, which --epsilon does not cover: scale the features first, "
            "or find scales with part of the budget, as with --find 0.2"
        )
    if fill == "mean" or (fill == "median" and find is None):
        raise DataError(
            f"--fill {fill} takes the exact {fill} of all rows, which --epsilon does not cover: declare a number, such "
            "as --fill 0, or --fill drop; --find 0.2 finds a --fill median with part of the budget"
        )
    from fedscape.privacy.ranges import LENGTH, NOISE, check_positive, check_share

    check_positive("--epsilon", epsilon, NOISE, error=DataError)
    if clip is not None:
        check_positive("--clip", clip, LENGTH, error=DataError)
    if delta is not None:
        check_share("--delta", delta, error=DataError)


def check_schedule(method: str, schedule: str | None, modes: str | None, prior: str | None) -> None:
    """Refuse --prior and --modes without a schedule, and temporal methods without one."""
    if prior is not None and "prior" not in METHODS[method].takes:
        with_prior = ", ".join(name for name in names(command=True) if "prior" in METHODS[name].takes)
        raise DataError(f"--prior needs --schedule and one of {with_prior}, not {method}")
    if schedule is not None:
        return
    if METHODS[method].family == "temporal":
        raise DataError(f"{method} needs --schedule, the availability of clients, such as cosine:p=1,T=256")
    if modes is not None:
        raise DataError("--modes needs --schedule")


def check_out(out: Path | None, resume: bool, force: bool) -> None:
    """Refuse to overwrite a run, or to resume without a folder."""
    if not resume:
        free(out, force)
    elif out is None:
        raise DataError("--resume needs --out, the folder of the run to resume")


def whole_numbers(text: str, name: str) -> list[int]:
    """Parse whole numbers: 0,1 is [0, 1]."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise DataError(f"--{name} must be comma-separated whole numbers, such as 0,1, not {text!r}") from None


def fractions(text: str, name: str) -> list[float]:
    """Parse numbers: 0.01,0.1 is [0.01, 0.1]."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise DataError(f"--{name} must be comma-separated numbers, such as 0.01,0.1, not {text!r}") from None
    if not all(0 <= number < float("inf") for number in numbers):
        raise DataError(f"--{name} must be numbers of at least 0, such as 0.01,0.1, not {text!r}")
    return numbers
