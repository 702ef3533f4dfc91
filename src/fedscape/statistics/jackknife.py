"""Intervals of a number from its values without each of the clients."""

from __future__ import annotations

import numpy as np

from fedscape.types import Array


def jackknife_interval(value: float, without: Array) -> tuple[float, float]:
    """95% interval of a number over clients, from its values `without` each: Student's t, corrected for skewness.

    Where a few clients move the number far up, Student's interval ends too early above, and likewise below. So that end
    is moved outwards by Johnson's correction (1978), skewness (1 + 2 t^2) / (6 sqrt(n)) standard errors. The other end
    stays.

    >>> values = np.array([1.0, 2.0, 3.0, 4.0])
    >>> low, high = jackknife_interval(2.5, (values.sum() - values) / 3)
    >>> round(low, 3), round(high, 3)
    (0.446, 4.554)
    """
    from scipy.special import stdtrit

    n = len(without)
    moved = without.mean() - without  # by each client
    squares = float((moved**2).sum())
    if n < 2 or squares == 0:
        return (value, value) if n > 1 else (-np.inf, np.inf)
    error = np.sqrt((n - 1) / n * squares)
    quantile = float(stdtrit(n - 1, 0.975))
    skewness = float((moved**3).mean()) / (squares / n) ** 1.5
    longer = skewness * (1 + 2 * quantile**2) / (6 * np.sqrt(n))
    return float(value - error * (quantile + max(-longer, 0.0))), float(value + error * (quantile + max(longer, 0.0)))
