"""Options for training on a schedule: day and night clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedscape.core.federation import Federation
from fedscape.errors import DataError

if TYPE_CHECKING:
    from fedscape.methods import Options
    from fedscape.types import Array


def of_modes(fed: Federation, text: str | None, target: str) -> tuple[Federation, Array]:
    """Split clients by mode: cut rows at `COLUMN:a,b,...`, by default at the middle class."""
    import numpy as np

    from fedscape.temporal import by_mode

    name, _, rest = (text or f"{target}:{fed.categories(target) // 2}").partition(":")
    try:
        ends = [float(part) for part in rest.split(",")]
    except ValueError:
        raise DataError(f"--modes must be a column and where to cut it, such as y:10, not {text!r}") from None
    if name not in fed.columns or fed[name].ndim != 1:
        raise DataError(
            f"--modes needs a column with one number per row, not {name!r}: the columns are {', '.join(fed.columns)}"
        )
    return by_mode(fed, np.searchsorted(sorted(ends), fed[name], side="right"))


def sampler_for(schedule: str, modes: Array, cohort: int) -> Any:
    """Return the sampler of this schedule."""
    from fedscape.temporal import Shifting, parse_curve

    if cohort < 1:
        raise DataError(f"--schedule needs a --cohort of at least 1, not {cohort}")
    curve = parse_curve(schedule)
    return Shifting(modes, curve, cohort, parts=curve.n_modes)


def options_on(options: Options, sampler: Any, prior: str | None) -> Options:
    """Add the assumed prior and period of the schedule."""
    from dataclasses import replace

    from fedscape.temporal import parse_prior

    curve = sampler.curve
    period = float(getattr(curve, "period", 256.0))
    return replace(options, prior=parse_prior(prior or "linear", period), period=period, modes=curve.n_modes)
