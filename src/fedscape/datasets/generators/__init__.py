"""The synthetic federations of the papers, each with its ground truth, all from a seed."""

from fedscape.datasets.generators.counts import dirichlet_multinomial, mdm_a2, mdm_table1
from fedscape.datasets.generators.labels import fedgmm_bayes, fedgmm_partial, fedgmm_synthetic
from fedscape.datasets.generators.pair import gaussian_pair
from fedscape.datasets.generators.regression import hlcr_synthetic
from fedscape.datasets.generators.splits import (
    sketch_by_class,
    sketch_dirichlet,
    sketch_dirichlet_uniform,
    sketch_uneven,
)

__all__ = [
    "dirichlet_multinomial",
    "fedgmm_bayes",
    "fedgmm_partial",
    "fedgmm_synthetic",
    "gaussian_pair",
    "hlcr_synthetic",
    "mdm_a2",
    "mdm_table1",
    "sketch_by_class",
    "sketch_dirichlet",
    "sketch_dirichlet_uniform",
    "sketch_uneven",
]
