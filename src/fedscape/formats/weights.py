"""Tell columns named weight apart: survey weights or masses."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from fedscape.types import Array

MEASURED = "what something weighs, by how close its values lie"
_UNEVEN = 0.5  # deviation / mean: about 0.2 for the mass of people or cars, 0.5 to 2 for survey weights
_SURVEY_WEIGHT = re.compile(
    r"(^|[_\W])(survey|sampl(e|ing)|design|person|household|final|fnl|hh|per|asec|case|freq(uency)?|replicate)[_\W]?"
    r"(weights?|wgt|wt)\d*$|^[ph]?wgtp\d*$",
    re.I,
)
_WEIGHT = re.compile(r"(weights?|wgt|wt)", re.I)  # the full name: a survey weight or a mass
_FEW = 20  # columns with at most this many values are classes


def weight_or_mass(name: str, distinct: Array, often: Array) -> tuple[Literal["weight", "number"], str] | None:
    """Tell a survey weight from a mass, with the reason; None if neither name nor values suggest one.

    PWGTP and survey_weight are survey weights. A plain `weight` is one if its mean is 1 (normalised weights), or if a
    few rows have far larger weights than the rest. The masses of people or cars lie close to their mean.

    >>> weight_or_mass("weight", np.linspace(50, 100, 30), np.ones(30))
    ('number', 'what something weighs, by how close its values lie')
    >>> weight_or_mass("PWGTP", np.linspace(50, 100, 30), np.ones(30))
    ('weight', 'by its name')
    """
    named = bool(_SURVEY_WEIGHT.search(name))
    finite = np.isfinite(distinct)
    values, times = distinct[finite].astype(float), often[finite]
    if not (named or _WEIGHT.fullmatch(name)) or len(values) <= _FEW or values.min() < 0:
        return None
    if named:
        return "weight", "by its name"
    mean = np.average(values, weights=times)
    deviation = np.sqrt(np.average((values - mean) ** 2, weights=times))
    if abs(mean - 1) < 0.02:
        return "weight", "by its name and its mean of 1"
    if deviation > _UNEVEN * mean:
        return "weight", "by its name and how unevenly it is spread"
    return "number", MEASURED
