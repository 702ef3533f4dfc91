"""From a table to rows for training, and the options that say how."""

from __future__ import annotations

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import listed, overrules
from fedscape.core.federation import Federation
from fedscape.errors import DataError, plural
from fedscape.formats.kinds import Overrules
from fedscape.formats.modelled import declare_classes
from fedscape.formats.reading import Reading

if TYPE_CHECKING:
    from fedscape.learning.inputs import Inputs

_PATTERN = re.compile(r"[*?\[]")

Features = Annotated[
    str | None,
    typer.Option(help="Columns of features with commas between, or patterns such as p*; by default all that can be."),
]
Target = Annotated[str, typer.Option("--column", help="The column of classes to learn.")]
Standardise = Annotated[bool, typer.Option("--standardise", help="Give every number mean 0 and deviation 1.")]
Fill = Annotated[
    str | None, typer.Option(help="Missing numbers: mean or median of the training rows, drop the row, or a number.")
]
Shape = Annotated[str | None, typer.Option(help="The shape of a row's features, such as 28,28 for an image.")]
Classes = Annotated[
    str | None,
    typer.Option("--names", help="Which classes there are, commas between, or a file of lines; others are left out."),
]
Test = Annotated[float, typer.Option(help="The share of each client's rows that is held out.")]


def read_rows(
    source: str,
    *,
    client: str | None,
    features: str | None,
    target: str,
    overrules: Overrules,
) -> tuple[Federation, Reading, list[str]]:
    """The rows that have a label, how the table was read, and what is to be said about it first."""
    from fedscape.learning.cells import missing_in

    named = None if features is None or _PATTERN.search(features) else listed(features)
    if named is not None and not named:
        raise DataError("--features must name at least one column")
    found, reading = datasets.read_table(source, client=client, target=target, features=named, overrules=overrules)
    if features is not None and named is None:
        reading = replace(reading, features=_matched(found, features, target))
    lines = reading.lines()
    if found[target].ndim != 1:
        return found, reading, lines
    known = ~missing_in(found, target)
    return (found if known.all() or not known.any() else found.where(known)), reading, lines


def named_rows(fed: Federation, target: str, names: str | None) -> tuple[Federation, list[str]]:
    """The rows of the classes that someone names with --names, and what is to be said of those left out."""
    called = overrules(names=names).names
    if called is None:
        return fed, []
    named = declare_classes(fed, target, called)
    others = int((named[target] < 0).sum())
    if others == named.n_rows:
        raise DataError(f"--names names no class that {target!r} has: {', '.join(called)}")
    said = [f"{plural(others, 'row')} of classes that --names does not name: left out"] if others else []
    return (named.where(named[target] >= 0) if others else named), said


def check_declared_rows(fed: Federation, reading: Reading, target: str, *, classes: bool = True) -> None:
    """Refuse a private training where classes or categories follow from the rows: they would tell of clients."""
    from fedscape.learning.fitting import feature_kinds

    if classes and not fed.is_declared(target):
        raise DataError(
            f"the classes of {target!r} follow from the rows, and which there are --epsilon does not cover: name them "
            "with --names a,b,c"
        )
    kinds = feature_kinds(reading)
    learned = [name for name in reading.features if kinds[name] == "category" and not fed.is_declared(name)]
    if learned:
        raise DataError(
            f"the categories of {', '.join(learned)} follow from the rows, and which there are --epsilon does not "
            f"cover: leave them out with --ignore {','.join(learned)}"
        )


def _matched(fed: Federation, features: str, target: str) -> tuple[str, ...]:
    """The columns that names and patterns stand for, those of a pattern in the order of the table."""
    names: list[str] = []
    for part in listed(features):
        matched = [name for name in fed.columns if fnmatchcase(name, part) and name != target]
        if not matched:
            have = ", ".join(list(fed.columns)[:20])
            raise DataError(f"--features {part} matches no column; the columns are: {have}")
        names += [name for name in matched if name not in names]
    return tuple(names)


def split_rows(
    fed: Federation,
    reading: Reading,
    *,
    target: str,
    fill: str | None,
    standardise: bool,
    shape: str | None,
    test: float,
    seed: int,
    client: str | None,
) -> tuple[Federation, Federation, Inputs, list[str]]:
    """Inputs to train on, inputs to test on, what made them of the table, and what is to be said about that."""
    from fedscape.learning.fitting import class_names, feature_kinds, learn_inputs
    from fedscape.learning.run import held_out

    learners, rest = held_out(fed, test=test, seed=seed)
    inputs = learn_inputs(
        learners,
        features=reading.features,
        target=target,
        fill=fill_of(fill),
        standardise=standardise,
        shape=_shape(shape),
        kinds=feature_kinds(reading),
        classes=class_names(fed, target),
        client=client,
    )
    parts = [inputs.apply(part) for part in (learners, rest)]
    lines = inputs.remarks()
    for where, part in zip(("to train on", "held out"), parts, strict=True):
        lines += [f"rows {where}: {remark}" for remark in part.remarks()]
        if not part.rows.n_rows:
            raise DataError(f"no rows are left {where}: every one lacks a feature; fill them in with --fill mean")
    return parts[0].rows, parts[1].rows, inputs, lines


def say_lines(lines: list[str], quiet: bool) -> None:
    """Say what was found and done, before the work begins: what is refused is refused in one line."""
    if not quiet:
        for line in lines:
            typer.echo(line, err=True)


def fill_of(text: str | None) -> str | float | None:
    """What stands for missing numbers, as --fill says it."""
    from fedscape.learning.fitting import FILLS

    if text is None or text in FILLS:
        return text
    try:
        return float(text)
    except ValueError:
        raise DataError(f"--fill must be one of {', '.join(FILLS)} or a number, not {text!r}") from None


def _shape(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        made = [int(part) for part in text.lower().replace("x", ",").split(",")]
    except ValueError:
        made = [0]
    if min(made) < 1:
        raise DataError(f"--shape must be whole numbers with commas between, such as 28,28, not {text!r}")
    return made


def network_of(model: str, rows: Federation, inputs: Inputs, seed: int) -> tuple[Any, dict[str, Any]]:
    """The network that fits these inputs, and the arguments it was made with."""
    from fedscape.learning import models
    from fedscape.learning.run import arguments_for

    if model == "char_lstm" and not inputs.as_stored:
        raise DataError("char_lstm reads codes of characters as they are: no --standardise, --fill or joined columns")
    given = arguments_for(model, rows, features=inputs.column, target=inputs.target)
    return getattr(models, model)(**given, seed=seed), given
