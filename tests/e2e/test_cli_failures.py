"""Nothing ends in a traceback: one line, an exit code, a log for its owner; and the words of the command line."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from shell import Done, fedscape, ok, python, refused

from fedscape import Federation, datasets

BROKEN = """
import sys
import tempfile
tempfile.tempdir = {folder!r}
import fedscape.statistics.description
def fail(*_, **__):
    {what}
fedscape.statistics.description.describe = fail
sys.argv = ["fedscape", {before}"describe", "acs-race"{after}]
from fedscape.cli import main
main()
"""
FAULTS = {
    "a key": ("raise KeyError('who')", 1, "KeyError: 'who'"),
    "no end": ("fail()", 1, "RecursionError: maximum recursion depth"),
    "several lines": ("raise RuntimeError('one\\n  two')", 1, "RuntimeError: one two"),
    "numba": (
        "import numba, numpy; numba.njit(lambda x: x.nowhere)(numpy.ones(3))",
        1,
        "TypingError: Failed in nopython mode",
    ),
    "torch": ("import torch; torch.ones(2) @ torch.ones(3)", 1, "RuntimeError: inconsistent tensor size"),
    "memory": ("raise MemoryError('Unable to allocate 74.5 GiB')", 2, "74.5 GiB): use fewer rows"),
    "memory of torch": ("import torch; torch.empty(2**60)", 2, "use fewer rows"),
    "numbers without end": ("from fedscape.errors import NotFinite as N; raise N('client 3 sent NaN')", 2, "sent NaN"),
    "a place": ("open('/')", 2, "/: Is a directory: name another path"),
}


def broken(what: str, folder: Path, before: str = "", after: str = "") -> Done:
    return python(BROKEN.format(folder=str(folder), what=what, before=before, after=after), folder)


@pytest.mark.parametrize("fault", FAULTS)
def test_any_exception_is_one_line_and_a_log_of_its_owner(fault, tmp_path):
    what, code, message = FAULTS[fault]
    done = broken(what, tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("fedscape: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    log = re.search(r"the traceback is in (\S+), and --debug shows it", done.stderr)
    assert (log is not None) == (code == 1)
    if log:
        path = Path(log[1])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.parent == tmp_path
        assert "Traceback (most recent call last)" in path.read_text()


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback_wherever_it_stands(place, tmp_path):
    words = {"before": {"before": '"--debug", '}, "after": {"after": ', "--debug"'}}[place]
    done = broken("raise KeyError('who')", tmp_path, **words)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1] == "fedscape: this is a bug in fedscape (KeyError: 'who')"


def test_debug_shows_where_bad_input_was_refused():
    done = fedscape("describe", "nowhere.csv", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_log_that_cannot_be_written_is_said(tmp_path):
    done = broken("import tempfile; tempfile.tempdir = '/nowhere'; raise KeyError('who')", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "no log could be written" in done.stderr


def test_messages_name_options_and_not_arguments(tmp_path):
    ok("fit", "acs-mini", "--column", "race", "--components", 1, "--out", tmp_path / "p.json", "--quiet")
    datasets.load("acs-mini").select(["race"]).take([0]).save(tmp_path / "few")
    said = refused(2, "simulate", tmp_path / "few", "--column", "race", "--population", tmp_path / "p.json")
    assert "pass --policy replace" in said
    ok("data", "convert", "acs-mini", tmp_path / "a.csv")
    said = refused(2, "data", "convert", "acs-mini", tmp_path / "a.csv")
    assert "pass --force" in said
    assert "overwrite" not in said
    said = refused(2, "data", "convert", "acs-race", tmp_path / "b.csv")
    assert said.endswith("a CSV cell holds one value: write a .parquet file, or leave it out\n")


def test_old_names_of_options_are_understood_and_not_shown(tmp_path):
    rng = np.random.default_rng(0)
    Federation({"x": rng.normal(size=(40, 2)), "label": np.arange(40) % 2}, [0, 10, 20, 30, 40]).save(tmp_path / "d")
    how = ("--rounds", 1, "--model", "linear", "--cohort", 0, "--json")
    new = ok("train", tmp_path / "d", "--column", "label", *how)
    old = ok("train", tmp_path / "d", "--target", "label", *how)
    spelled = ok("train", tmp_path / "d", "--target=label", *how)
    seconds = re.compile(r'"seconds": [0-9.e-]+')
    assert seconds.sub("", new) == seconds.sub("", old) == seconds.sub("", spelled)
    for command in ("train", "sweep", "regress"):
        shown = ok(command, "--help")
        assert "--column" in shown
        assert "--target" not in shown
    assert "--agent" not in ok("regress", "--help")


def test_shells_complete_commands_and_options():
    script = "import sys; sys.argv = ['fedscape']; from fedscape.cli import main; main()"
    environment = {"_FEDSCAPE_COMPLETE": "complete_bash", "COMP_WORDS": "fedscape desc", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["describe"]
    assert "--install-completion" in ok("--help")


def test_a_terminal_is_told_at_once_what_is_read_unless_quiet():
    def on_terminal(*arguments: str) -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "fedscape", *arguments], stdout=subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)
        said = b""
        with contextlib.suppress(OSError):  # Linux: nobody holds the other end
            while part := os.read(ours, 4096):
                said += part
        os.close(ours)
        assert process.wait(60) == 0
        return said.decode()

    assert on_terminal("describe", "acs-race") == "reading acs-race ...\r\n"
    assert on_terminal("describe", "acs-race", "--quiet") == ""


WORDS = {
    "--budget must be one of 30s": ("study", "acs-race", "--budget", "5h"),
    "--rounds must be at least 1, not 0": ("study", "acs-race", "--rounds", 0),
    "--seeds must be at least 1, not 0": ("study", "acs-race", "--seeds", 0),
    "--alarms-per-year must be above 0": ("check", "acs-race", "--against", "study", "--alarms-per-year", 0),
    "--rungs must be at least 1, not 0": ("sweep", "acs-race", "--lr", 0.1, "--rungs", 0),
    "--lr must be numbers of at least 0": ("sweep", "acs-race", "--lr", -1),
    "--to must be one of onnx": ("export", "run", "model", "--to", "caffe"),
    "--epsilon must be a positive number": ("audit", "histogram", "--epsilon", -1),
    "table.csv is a path, not the name of a data set: use 'fedscape describe": ("data", "info", "table.csv"),
    "table.csv is no Parquet, which alone": ("data", "group", "table.csv", "out", "--client", "a"),
}


@pytest.mark.parametrize("words", WORDS)
def test_a_wrong_option_is_named_as_it_is_typed(words, tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    assert words in refused(2, *WORDS[words], folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["privacy", "show", "t.csv"], "t.csv is no ledger: give the .jsonl file that a private run wrote"),
        (["privacy", "show", "torn.jsonl"], "line 1 of torn.jsonl is damaged or missing"),
        (["report", "t.csv"], "t.csv is not the result of a study: give the folder of 'fedscape study'"),
        (["check", "t.csv", "--against", "t.csv", "--client", "b"], "t.csv is neither a study nor a population: give"),
        (
            ["describe", "t.csv", "--client", "a", "--column", "b"],
            "has no value in row 1, nor in 1 others: keep the rows that have one (in pandas table[table['a'].notna()]",
        ),
    ],
)
def test_a_file_of_another_kind_is_one_line_without_the_words_of_a_parser(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("a,b\n1,2\n,3\n,4\n")
    Path("torn.jsonl").write_text('{"line": 0}\n')
    said = refused(2, *arguments)
    assert message in said
    assert said.count("\n") == 1
    assert "Expecting" not in said
