"""Types of the sections images and sequences of a study's result."""

from __future__ import annotations

from typing import Any, TypedDict

from fedscape.studies.schema_learn import Interval


class MeanImage(TypedDict):
    """The mean image of a category, in coarse tiles of ten shades."""

    category: str
    rows: int
    shades: list[list[int]]


class Images(TypedDict):
    """The section images: sums over them. `alike` is the part of brightness and contrast between clients."""

    column: str
    shape: list[int]
    brightness: Interval
    contrast: Interval
    alike: list[float]
    means: list[MeanImage]


class Sequences(TypedDict):
    """The section sequences: bits per character of models that predict the next one."""

    column: str
    context: int
    letters: int
    rows: int
    models: list[dict[str, Any]]
