"""Valid ranges of privacy parameters: outside them there is no noise, or floats overflow."""

from __future__ import annotations

import numpy as np

from fedscape.errors import FedscapeError, PrivacyError

NOISE = (1e-9, 1e9)  # multipliers and epsilons
LENGTH = (1e-12, 1e12)  # clips and scales


def check_positive(
    name: str, value: object, limits: tuple[float, float], *, error: type[FedscapeError] = PrivacyError
) -> None:
    """Refuse a value that is not a number within the limits; True, NaN, infinity and texts are refused too.

    >>> check_positive("clip", 1.0, LENGTH)
    """
    low, high = limits
    if not _is_number(value) or not low <= value <= high:  # type: ignore[operator]
        raise error(f"{name} must be a positive number, not {value!r}: from {low:g} to {high:g}")


def check_share(name: str, value: object, *, zero: bool = False, error: type[FedscapeError] = PrivacyError) -> None:
    """Refuse a value that is not a number between 0 and 1; with `zero`, 0 is allowed.

    >>> check_share("delta", 0.0, zero=True)
    """
    if not _is_number(value) or not (0 < value < 1 or (zero and value == 0)):  # type: ignore[operator]
        raise error(f"{name} must be {'from 0 to below 1' if zero else 'between 0 and 1'}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
