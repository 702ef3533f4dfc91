"""A result as one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def render(result: Mapping[str, Any]) -> str:
    return ""


def summary(result: Mapping[str, Any]) -> str:
    return ""
