"""Fix `--help` where Typer and Click disagree."""

from __future__ import annotations

from typing import Any

import click
import typer.core
import typer.main


class Argument(typer.core.TyperArgument):
    """An argument whose help is printed: Click 8.5 has its own help attribute, which Typer 0.20 leaves empty."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._text = "" if self.help else kwargs.get("help") or ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:  # type: ignore[override]
        record = super().get_help_record(ctx)
        return None if record is None else (record[0], "  ".join(part for part in (self._text, record[1]) if part))


def mend() -> None:
    """Print the help of arguments, without markup, in all commands that are built after this call."""
    vars(typer.main)["TyperArgument"] = Argument
    typer.core.HAS_RICH = False  # else brackets are escaped for a formatter that is not used
