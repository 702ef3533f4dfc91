"""Parts needed only to reproduce papers: printed forms that the toolkit corrects, and formulas of single papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.papers.fedgmm import Identity, half_transformed
    from fedscape.papers.fedtem import ConstantFedTKM, temporal_as_printed
    from fedscape.papers.hlcr import (
        MENDS,
        PrintedAssignment,
        PrintedRegression,
        sequential_density,
        with_event,
        without_event,
    )
    from fedscape.papers.mdm import PrintedMixture, PrintedStart, moments_of_the_first_category, nmse
    from fedscape.papers.sketch import (
        cell_tvd,
        collision_volume,
        path_bound,
        path_tvd,
        query_bound,
        query_rows,
    )

__all__ = [
    "MENDS",
    "ConstantFedTKM",
    "Identity",
    "PrintedAssignment",
    "PrintedMixture",
    "PrintedRegression",
    "PrintedStart",
    "cell_tvd",
    "collision_volume",
    "half_transformed",
    "moments_of_the_first_category",
    "nmse",
    "path_bound",
    "path_tvd",
    "query_bound",
    "query_rows",
    "sequential_density",
    "temporal_as_printed",
    "with_event",
    "without_event",
]

__getattr__ = loader(
    __name__,
    {
        "fedgmm": ["Identity", "half_transformed"],
        "fedtem": ["ConstantFedTKM", "temporal_as_printed"],
        "hlcr": [
            "MENDS",
            "PrintedAssignment",
            "PrintedRegression",
            "sequential_density",
            "with_event",
            "without_event",
        ],
        "mdm": ["PrintedMixture", "PrintedStart", "moments_of_the_first_category", "nmse"],
        "sketch": ["cell_tvd", "collision_volume", "path_bound", "path_tvd", "query_bound", "query_rows"],
    },
)
