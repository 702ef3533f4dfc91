"""What does every command that reads a table say of fifty nasty tables: read, refused in one line, or a fault?

Tables and calls are those of tests/e2e. A cell is `ok`, `2` (one line on standard error, exit code 2) or `FAULT`.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))

from every_command import COMMANDS, answer, prepare
from tables import NASTY

from table import arguments, report

QUICK = ("describe", "fit", "train", "data convert")


def cell(command: str, table: Path, folder: Path) -> str:
    made = answer(command, table, folder)
    if made.fault is not None:
        print(f"FAULT: {command} on {table.name}: {made.fault}", file=sys.stderr)
        return "FAULT"
    return "ok" if made.code == 0 else "2"


def main() -> None:
    asked = arguments(__doc__)
    warnings.simplefilter("ignore")
    names = QUICK if asked.quick else tuple(COMMANDS)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        (folder / "tables").mkdir()
        rows: list[dict[str, Any]] = []
        for name, write in NASTY.items():
            table = write(folder / "tables")
            rows.append({"table": name, **{command: cell(command, table, folder) for command in names}})
    cells = [value for row in rows for key, value in row.items() if key != "table"]
    tally = ", ".join(f"{cells.count(kind)} {kind}" for kind in ("ok", "2", "FAULT"))
    seconds = time.perf_counter() - began
    report("nasty_tables", rows, note=f"{len(rows)} tables, {len(names)} commands: {tally}, in {seconds:.0f} s.")


if __name__ == "__main__":
    main()
