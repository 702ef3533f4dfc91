"""Training methods by name: one table, and one way from a name to a trained model."""

from __future__ import annotations

from fedscape.methods.method import FAMILIES, Columns, Method, Options
from fedscape.methods.table import METHODS, check_options, check_private, find, make, names
from fedscape.methods.training import Course, train

__all__ = [
    "FAMILIES",
    "METHODS",
    "Columns",
    "Course",
    "Method",
    "Options",
    "check_options",
    "check_private",
    "find",
    "make",
    "names",
    "train",
]
