"""From a plain result to something to read: one self-contained HTML file, and figures for notebooks."""

from __future__ import annotations

from fedscape.report.page import render, summary

__all__ = ["render", "summary"]
