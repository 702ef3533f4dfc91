"""Data: embedded federations, loaders for the full files, and the generators of the papers' synthetic federations."""

from fedscape.datasets import generators
from fedscape.datasets.card import card
from fedscape.datasets.loading import info, load, names
from fedscape.datasets.sources import read, read_table, write

__all__ = ["card", "generators", "info", "load", "names", "read", "read_table", "write"]
