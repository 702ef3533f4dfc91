"""Every command that reads a table, called in this process: what it printed, and whether that is an answer."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from tables import _plain

from fedscape.cli import main
from fedscape.cli.check import DRIFTED, PROBLEMS

_WHOSE = ("--client", "client")
_QUICK = ("--model", "linear", "--rounds", 1, "--cohort", 0)
_HIDDEN = ("--model", "mlp", "--rounds", 1, "--cohort", 0)
_LINE = ("--features", "a", "--column", "b")
_LEARN = ("--features", "a,b", "--column", "label")
_FEATURE = ("--features", "a", "--column", "label")
_REGRESS = ("--column", "b", "--features", "a", "--components", 1, "--rounds", 2)

#: What a command is called with, given the table and a folder with what `prepare` made.
COMMANDS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "describe": lambda table, _: ("describe", table, "--column", "label", *_WHOSE),
    "study": lambda table, at: ("study", table, *_WHOSE, "--rounds", 1, "--seeds", 1, "--out", at / "out"),
    "study --column": lambda table, at: (
        *("study", table, "--column", "label", "--features", "a,b", *_WHOSE),
        *("--rounds", 1, "--seeds", 1, "--out", at / "out"),
    ),
    "check": lambda table, at: ("check", table, "--against", at / "study", *_WHOSE),
    "check --against population": lambda table, at: (
        *("check", table, "--against", at / "population.json", "--column", "label", *_WHOSE),
    ),
    "fit": lambda table, at: ("fit", table, "--column", "label", "--components", "1-2", "--rounds", 3, *_WHOSE),
    "train": lambda table, at: ("train", table, *_LEARN, *_QUICK, *_WHOSE, "--out", at / "out"),
    "train --standardise": lambda table, at: ("train", table, *_LEARN, *_QUICK, *_WHOSE, "--standardise"),
    "train --method fedgmm": lambda table, at: (
        *("train", table, *_LEARN, *_QUICK, *_WHOSE, "--method", "fedgmm", "--out", at / "out"),
    ),
    "train --method fedper": lambda table, at: (
        *("train", table, *_LEARN, *_HIDDEN, *_WHOSE, "--method", "fedper", "--out", at / "out"),
    ),
    "train --method fedclock": lambda table, at: (
        *("train", table, *_LEARN, *_HIDDEN, *_WHOSE, "--method", "fedclock", "--schedule", "cosine:p=1,T=4"),
        *("--cohort", 4, "--out", at / "out"),
    ),
    "train --method trees": lambda table, at: (
        *("train", table, *_LEARN, *_WHOSE, "--method", "trees", "--trees", 1, "--out", at / "out"),
    ),
    "train --method glm": lambda table, at: ("train", table, *_LINE, *_WHOSE, "--method", "glm", "--out", at / "out"),
    "sweep": lambda table, _: ("sweep", table, *_LEARN, *_QUICK, *_WHOSE, "--lr", "0.1"),
    "regress": lambda table, at: ("regress", table, *_REGRESS, *_WHOSE, "--out", at / "out.json"),
    "predict": lambda table, at: ("predict", _model(at), table, *_WHOSE, "--out", at / "out.csv"),
    "predict by regression": lambda table, at: (
        *("predict", at / "regression.json", table, *_WHOSE, "--out", at / "out.csv"),
    ),
    "simulate": lambda table, at: (
        *("simulate", table, "--population", at / "population.json", "--column", "label", "--clients", 3, *_WHOSE),
        *("--out", at / "out"),
    ),
    "fidelity": lambda table, at: ("fidelity", at / "sound.parquet", table, "--column", "label", *_WHOSE),
    "sketch build": lambda table, at: ("sketch", "build", table, "--column", "a", *_WHOSE, "--out", at / "out"),
    "adapt": lambda table, at: ("adapt", _model(at), table, *_WHOSE),
    "novelty": lambda table, at: ("novelty", _model(at), at / "sound.parquet", table, *_WHOSE),
    "data group": lambda table, at: ("data", "group", table, at / "out", *_WHOSE),
    "data card": lambda table, at: ("data", "card", table, at / "card.md", "--force", *_WHOSE),
    "data convert": lambda table, at: ("data", "convert", table, at / "out", *_WHOSE),
}


def _model(folder: Path) -> Path:
    model = folder / "model"
    return model / "personal" if (model / "personal").exists() else model


class Answer(NamedTuple):
    """The exit code of a command and what it printed."""

    code: int
    out: str
    err: str
    findings: tuple[int, ...] = ()  # exit codes that say what was found

    @property
    def fault(self) -> str | None:
        """Why this is no answer: it is one where the command succeeded, or refused in one line of its own."""
        if "Traceback (most" in self.err + self.out:
            return "a traceback"
        if self.code not in (0, 2, *self.findings):
            return f"exit code {self.code}: {self.err.strip()[-300:]}"
        refusals = [line for line in self.err.splitlines() if line.startswith("fedscape: ")]
        if self.code == 2 and (len(refusals) != 1 or not self.err.endswith(f"{refusals[0]}\n")):
            return f"not one line: {self.err}"
        return None


def call(*arguments: object) -> Answer:
    """Run a command as its process would, in this one."""
    before, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["fedscape", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    finally:
        sys.argv = before
    return Answer(code, out.getvalue(), err.getvalue())


def prepare(folder: Path) -> None:
    """A sound table, and a study, a population, a regression and a personalised model of it."""
    sound = folder / "sound.parquet"
    pq.write_table(pa.table(_plain()), sound)
    for arguments in (
        ("fit", sound, "--column", "label", "--components", 1, *_WHOSE, "--out", folder / "population.json"),
        ("study", sound, *_LEARN, *_WHOSE, "--rounds", 1, "--seeds", 1, "--out", folder / "study"),
        ("regress", sound, *_REGRESS, *_WHOSE, "--out", folder / "regression.json"),
        ("train", sound, *_FEATURE, *_QUICK, *_WHOSE, "--method", "fedgmm", "--out", folder / "model"),
    ):
        done = call(*arguments)
        assert done.code == 0, done.err


@contextlib.contextmanager
def clean(folder: Path) -> Iterator[None]:
    """Remove what a command wrote to `out`, whatever it ends in."""
    try:
        yield
    finally:
        for out in folder.glob("out*"):
            if out.is_dir():
                shutil.rmtree(out)
            else:
                out.unlink()


def answer(command: str, table: Path, folder: Path) -> Answer:
    """What a command says of a table."""
    with clean(folder):
        said = call(*COMMANDS[command](table, folder))
    return said._replace(findings=(DRIFTED, PROBLEMS)) if command.startswith("check") else said
