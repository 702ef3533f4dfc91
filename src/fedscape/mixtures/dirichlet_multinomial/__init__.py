"""Mixtures of Dirichlet-multinomials: kinds of clients by their counts."""
