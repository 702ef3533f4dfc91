"""What all commands share: a first line on a terminal, former option names, messages that name options."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import typer.core

from fedscape.core.progress import working
from fedscape.errors import FedscapeError

_QUIET = "fedscape.quiet"

#: Former names of options. They still work; help does not show them.
OLD_NAMES = {"--target": "--column", "--agent": "--client"}
#: Library arguments whose option has another name.
_OPTIONS = {"overwrite": "--force", "n_init": "--starts", "n_components": "--components", "target": "--column"}
#: Library calls in messages, and what to say on the command line.
_PHRASES = {
    " (client=)": "",
    " (column=)": "",
    " (columns=)": "",
    " (ignore=)": "",
    " (names=)": "",
    "use to_parquet()": "write a .parquet file",
    "or All()": "or --cohort 0 for all",
    "bin() turns numbers into categories": "'fedscape study' cuts numbers into bins",
    "pass its table to from_frame()": "write it again with fewer bytes a row",
}
_CALL = re.compile(r" with [a-z_]+\(\)")
_ARGUMENT = re.compile(r"\b(?P<name>[a-z][a-z_]*)=(?P<value>'[^']*'|[A-Z][a-z]+\b|[0-9.e+-]*[0-9])?")


class Command(typer.core.TyperCommand):
    """A command of fedscape; adds --quiet if the command does not define it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not any(param.name == "quiet" for param in self.params):
            text = "Print no remarks and no progress."
            self.params.append(click.Option(["--quiet"], is_flag=True, expose_value=False, callback=_keep, help=text))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = self._options()
        return super().parse_args(ctx, [_renamed(argument, options) for argument in args])

    def invoke(self, ctx: click.Context) -> Any:
        quiet = bool(ctx.params.get("quiet") or ctx.meta.get(_QUIET))
        if sys.stderr.isatty() and not quiet:
            sys.stderr.write(f"{_first_line(self, ctx)}\n")
            sys.stderr.flush()
        try:
            with working(ctx.command_path, progress=False if quiet else None, bar=False):
                return super().invoke(ctx)
        except FedscapeError as error:
            error.args = (in_options(str(error), self._options()), *error.args[1:])
            raise

    def _options(self) -> set[str]:
        return {name for param in self.params if isinstance(param, click.Option) for name in param.opts}


def _keep(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_QUIET] = value


def in_options(message: str, options: set[str], *, names: Mapping[str, str] = _OPTIONS) -> str:
    """Rewrite a library message so that it names command-line options instead of arguments.

    >>> in_options("pass policy='replace'", {"--policy"}), in_options("p=1 is large", {"--policy"})
    ('pass --policy replace', 'p=1 is large')
    """

    def option(match: re.Match[str]) -> str:
        name = names.get(match["name"], "--" + match["name"].replace("_", "-"))
        if name not in options:
            return match[0]
        value = (match["value"] or "").strip("'")
        return name if value in ("", "True", "None") else f"{name} {value}"

    for call, words in _PHRASES.items():
        message = message.replace(call, words)
    return _ARGUMENT.sub(option, _CALL.sub("", message))


def as_typed(ctx: click.Context, *, without: Sequence[str] = ()) -> str:
    """The command line with all its options, to be run in the folder of its input."""
    words, options = ctx.command_path.split(), []
    for param in ctx.command.params:
        value = ctx.params.get(param.name or "")
        if param.name in without or value is None or (value is False and param.default is False):
            continue
        if isinstance(param, click.Argument):
            words.append(Path(str(value)).name)
        else:
            for each in value if isinstance(value, list | tuple) else [value]:
                options += _typed(param, each)
    return shlex.join([*words, *options])


def _typed(param: click.Parameter, value: Any) -> list[str]:
    """An option and its value; of a path only the name, as the command is for a shell in its folder."""
    if isinstance(value, bool):
        return [param.opts[0] if value else param.secondary_opts[0]]
    return [param.opts[0], Path(str(value)).name if isinstance(param.type, click.Path) else str(value)]


def _renamed(argument: str, options: set[str]) -> str:
    name, sign, value = argument.partition("=")
    new = OLD_NAMES.get(name)
    return argument if new is None or name in options or new not in options else f"{new}{sign}{value}"


def _first_line(command: click.Command, ctx: click.Context) -> str:
    """Say what is being read, before large packages are imported."""
    arguments = [ctx.params.get(p.name or "") for p in command.params if isinstance(p, click.Argument)]
    what = " and ".join(str(a) for a in arguments if a is not None)
    return f"reading {what} ..." if what else f"{ctx.command_path} ..."
