"""Does a run that is killed at random moments go on to the same bytes, and a private one to the same noise?

SIGKILL a while after a run's first output of each life, four times in five again before it came to its end; runs and
checks are those of tests/e2e/test_kill.py. "resumed to the end": runs that were killed once or more and then finished.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from table import arguments, report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "e2e"))
import test_kill as killing


def plain(folder: Path, seed: int) -> int:
    """How many resumed runs there were; each must end like a run that nobody killed."""
    (folder / "whole").mkdir()
    expected = killing.finish(folder / "whole", "plain")
    ends = [printed for _, printed in killing.lives(folder, "plain", seed) if printed is not None]
    if set(ends) != {expected}:
        raise SystemExit("a resumed run ended with other bytes")
    return len(ends)


def private(folder: Path, seed: int) -> int:
    """The same; noise, releases and ledger are checked after each kill."""
    ends = 0
    for where, printed in killing.lives(folder, "private", seed):
        killing.check(where, complete=printed is not None)
        ends += printed is not None
    return ends


def main() -> None:
    args = arguments(__doc__, plain=20, private=50)
    if args.quick:
        args.plain, args.private = 2, 2
    rows = []
    kinds = (
        ("final state, against a run never killed", plain, args.plain, "the same bytes"),
        ("private: noise repeated, no release twice, all in the ledger", private, args.private, "held after each kill"),
    )
    for what, run, kills, held in kinds:
        killing.KILLS = kills
        with tempfile.TemporaryDirectory() as folder:
            rows.append(
                {"what": what, "kills": kills, "resumed to the end": run(Path(folder), args.seed), "result": held}
            )
    report("killed_runs", rows, note="a run of 40 rounds with kept state and cohorts")


if __name__ == "__main__":
    main()
