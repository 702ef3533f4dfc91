"""What `--find` looks up for a private run: names and scales that nobody declared, paid for with part of its budget."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedscape.cli.rows import only_classes
from fedscape.core.checkpoint import replace_file
from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats.modelled import declare_classes
from fedscape.methods import METHODS

if TYPE_CHECKING:
    from fedscape.cli.training import Request
    from fedscape.formats.reading import Reading
    from fedscape.privacy.ledger import Ledger
    from fedscape.statistics.undeclared import Discovery, Undeclared

FILE = "found.json"


def undeclared(request: Request, fed: Federation, reading: Reading, ranges: set[str], number: bool) -> Undeclared:
    """The columns whose categories or scales the run would otherwise take from the rows.

    Parameters
    ----------
    ranges
        Columns with a range in --ranges.
    number
        Whether the target is a number.
    """
    from fedscape.learning.fitting import feature_kinds
    from fedscape.statistics.undeclared import Undeclared

    kinds = feature_kinds(reading)
    named = [request.target] * (not number) + [name for name in reading.features if kinds[name] == "category"]
    numbers: list[str] = []
    tabular = METHODS[request.name].family == "tabular"
    if tabular or request.standardise or request.fill == "median":
        numbers = [name for name in reading.features if kinds[name] != "category"] + [request.target] * number
    if request.fill != "median":
        numbers = [name for name in numbers if name not in ranges]
    return Undeclared(tuple(name for name in named if not fed.is_declared(name)), tuple(numbers))


def found_by(
    request: Request, fed: Federation, sought: Undeclared, ledger: Ledger, folder: Path | None, *, exchanges: bool
) -> Discovery:
    """What is found within the share of the budget; a run that goes on reads what it found at first.

    `exchanges` says that the rounds that follow replace clients: then the search is booked so too.
    """
    from fedscape.learning.cells import numbers_in
    from fedscape.statistics.undeclared import Discovery

    if not sought:
        raise DataError("--find has nothing to find: all names and ranges that this run needs are declared")
    kept = None if folder is None else folder / FILE
    if request.resume and kept is not None and kept.exists():
        return Discovery.from_json(json.loads(kept.read_text(encoding="utf-8")))
    table = fed
    for name in sought.numbers:
        table = table.with_column(name, numbers_in(fed, name).reshape(fed[name].shape))
    share, delta = request.find or 0.0, request.delta or 1e-6
    spend = {"epsilon": share * (request.epsilon or 0.0), "delta": share * delta}
    discovery = sought.find(table, **spend, ledger=ledger, exchanges=exchanges)
    if kept is not None:
        text = json.dumps(discovery.to_json(), indent=1) + "\n"
        replace_file(kept, lambda file: file.write(text.encode()), private=True)
    return discovery


def with_found(
    request: Request, fed: Federation, reading: Reading, discovery: Discovery
) -> tuple[Federation, Reading, list[str]]:
    """The table with its found categories declared, its features without columns that have none, and remarks."""
    lines = [discovery.line()]
    if request.target in discovery.names:
        fed, left_out = only_classes(fed, request.target, discovery.classes(request.target))
        lines += left_out
    for name, names in discovery.names.items():
        if name == request.target:
            continue
        if names:
            fed = declare_classes(fed, name, names)
            continue
        reading = replace(reading, features=tuple(each for each in reading.features if each != name))
        lines.append(f"{name!r} has no category that {discovery.threshold:.0f} clients have: left out of the features")
    return fed, reading, lines
