"""Turn a table into training and test rows, and the options for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
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
    from fedscape.statistics.undeclared import Discovery

_PATTERN = re.compile(r"[*?\[]")

Features = Annotated[
    str | None,
    typer.Option(help="Feature columns (comma-separated), or patterns such as p*; by default all that are usable."),
]
Target = Annotated[str, typer.Option("--column", help="The column of classes to learn.")]
Standardise = Annotated[
    bool, typer.Option("--standardise", help="Scale numeric features to mean 0 and standard deviation 1.")
]
Fill = Annotated[
    str | None, typer.Option(help="Missing numbers: mean or median of the training rows, drop (the row), or a number.")
]
Shape = Annotated[str | None, typer.Option(help="The shape of a row's features, such as 28,28 for an image.")]
Classes = Annotated[
    str | None,
    typer.Option(
        "--names", help="The classes (comma-separated), or a file with one per line; rows of others are left out."
    ),
]
Test = Annotated[float, typer.Option(help="Share of each client's rows to hold out.")]


def read_rows(
    source: str,
    *,
    client: str | None,
    features: str | None,
    target: str,
    overrules: Overrules,
) -> tuple[Federation, Reading, list[str]]:
    """Read the rows that have a label; also return how the table was read, and remarks to print."""
    from fedscape.learning.cells import missing_in

    named = None if features is None or _PATTERN.search(features) else listed(features)
    if named is not None and not named:
        raise DataError("--features must name at least one column")
    table, reading = datasets.read_table(source, client=client, target=target, features=named, overrules=overrules)
    if features is not None and named is None:
        reading = replace(reading, features=_matched(table, features, target))
    lines = reading.lines()
    if table[target].ndim != 1:
        return table, reading, lines
    labelled = ~missing_in(table, target)
    return (table if labelled.all() or not labelled.any() else table.where(labelled)), reading, lines


def named_rows(fed: Federation, target: str, names: str | None) -> tuple[Federation, list[str]]:
    """Keep the rows of the classes in --names; also return a remark on those left out."""
    class_names = overrules(names=names).names
    return (fed, []) if class_names is None else only_classes(fed, target, class_names)


def only_classes(fed: Federation, target: str, class_names: Sequence[str]) -> tuple[Federation, list[str]]:
    """Keep the rows of these classes; also return a remark on those left out."""
    from fedscape.learning.cells import first_texts

    named = declare_classes(fed, target, class_names)
    others = int((named[target] < 0).sum())
    if others == named.n_rows:
        raise DataError(f"none of the classes in --names, or found, occurs in {target!r}: {first_texts(class_names)}")
    remarks = [f"{plural(others, 'row')} of classes not in --names: left out"] if others else []
    return (named.where(named[target] >= 0) if others else named), remarks


def check_named_features(fed: Federation, reading: Reading, target: str) -> None:
    """Refuse private training on columns that were chosen by their values: one row can make a column a feature."""
    if len([name for name in fed.columns if name != target]) > 1:
        names = ",".join(f'"{name}"' if "," in name else name for name in reading.features)
        raise DataError(
            "which columns are features follows from the rows, which --epsilon does not cover: name them, as with "
            f"--features {names or 'a,b'}"
        )


def check_declared_rows(fed: Federation, reading: Reading, target: str, *, classes: bool = True) -> None:
    """Refuse private training if classes or categories are inferred from the rows: that would leak about clients."""
    from fedscape.learning.fitting import feature_kinds

    if classes and not fed.is_declared(target):
        raise DataError(
            f"the classes of {target!r} are inferred from the rows, which --epsilon does not cover: declare them with "
            "--names a,b,c, or spend part of the budget to find them, as with --find 0.2"
        )
    kinds = feature_kinds(reading)
    inferred = [name for name in reading.features if kinds[name] == "category" and not fed.is_declared(name)]
    if inferred:
        raise DataError(
            f"the categories of {', '.join(inferred)} are inferred from the rows, which --epsilon does not cover: "
            f"leave them out with --ignore {','.join(inferred)}, or find them with part of the budget, as with "
            "--find 0.2"
        )


def inferred_kinds(fed: Federation, reading: Reading, numeric: str | None) -> list[str]:
    """A remark for a private run whose features are numbers because rows suggest it."""
    single = [name for name in reading.features if fed[name].ndim == 1 and name not in listed(numeric)]
    if all(fed.is_declared(name) for name in single):
        return []
    return ["which features are numbers follows from all rows, which --epsilon does not cover: --numeric declares it"]


def _matched(fed: Federation, features: str, target: str) -> tuple[str, ...]:
    """Expand names and patterns to columns, those of a pattern in table order."""
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
    discovery: Discovery | None = None,
    inputs: Inputs | None = None,
) -> tuple[Federation, Federation, Inputs, list[str]]:
    """Split into training and test inputs; also return the preprocessing, fitted or given, and remarks to print."""
    from fedscape.learning.fitting import class_names, feature_kinds, learn_inputs
    from fedscape.learning.run import held_out

    learners, rest = held_out(fed, test=test, seed=seed)
    reused = inputs is not None
    inputs = inputs or learn_inputs(
        learners,
        features=reading.features,
        target=target,
        fill=fill_of(fill),
        standardise=standardise,
        shape=_shape(shape),
        kinds=feature_kinds(reading),
        classes=class_names(fed, target),
        client=client,
        scales=None if discovery is None else discovery.scales,
    )
    parts = [inputs.apply(part) for part in (learners, rest)]
    lines = [] if reused else inputs.remarks()
    for where, part in zip(("to train on", "held out"), parts, strict=True):
        if reused:
            inputs.check_labels(learners if where == "to train on" else rest, part)
        lines += [f"rows {where}: {remark}" for remark in part.remarks()]
        if not part.rows.n_rows:
            raise DataError(f"no rows are left {where}: each lacks a feature; fill them in with --fill mean")
    return parts[0].rows, parts[1].rows, inputs, lines


def say_lines(lines: list[str], quiet: bool) -> None:
    """Print remarks, after all checks have passed: a refusal is a single line."""
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
        sizes = [int(part) for part in text.lower().replace("x", ",").split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1:
        raise DataError(f"--shape must be comma-separated whole numbers, such as 28,28, not {text!r}")
    return sizes


def network_of(
    model: str, rows: Federation, inputs: Inputs, seed: int, *, private: bool = False
) -> tuple[Any, dict[str, Any]]:
    """Build a network for these inputs; also return its arguments."""
    from fedscape.learning import models
    from fedscape.learning.run import OF_CODES, arguments_for

    if model in OF_CODES and not inputs.as_stored:
        raise DataError(f"{model} reads character codes unchanged: drop --standardise and --fill, and name one column")
    if model in OF_CODES and private:
        raise DataError(
            f"the size of {model} is the largest code of the rows, which --epsilon does not cover: train it with "
            f"fs.rounds, as models.{model}(80), start from a trained one with --base, or take another --model"
        )
    arguments = arguments_for(model, rows, features=inputs.column, target=inputs.target)
    return getattr(models, model)(**arguments, seed=seed), arguments
