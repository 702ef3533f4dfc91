"""Reports of a study: one self-contained HTML file, and figures for notebooks."""

from __future__ import annotations

from fedscape.report.page import render, summary
from fedscape.report.plots import plot_forest, plot_kinds, plot_map, plot_methods, plot_skew

__all__ = ["plot_forest", "plot_kinds", "plot_map", "plot_methods", "plot_skew", "render", "summary"]
