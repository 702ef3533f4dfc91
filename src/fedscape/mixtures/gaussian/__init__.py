"""Gaussian mixtures over the rows of all clients."""
