"""What `--help` prints, where Typer and Click disagree."""

from __future__ import annotations

from typing import Any

import click
import typer.core
import typer.main


class Argument(typer.core.TyperArgument):
    """An argument that says what it is: Click 8.5 has a help of its own, which Typer 0.20 leaves empty."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._said = "" if self.help else given.get("help") or ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:  # type: ignore[override]
        record = super().get_help_record(ctx)
        return None if record is None else (record[0], "  ".join(part for part in (self._said, record[1]) if part))


def mend() -> None:
    """Have all commands that are made from here on say what their arguments are, without marks of markup."""
    vars(typer.main)["TyperArgument"] = Argument
    typer.core.HAS_RICH = False  # else brackets are escaped for a formatter that is not used
