"""The command line as users run it: real processes, exit codes, one-line errors."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from shell import begun, fedscape, ok, refused, started
from typer.main import get_command
from typer.testing import CliRunner

from fedscape import Federation, Gaussian, Histogram, Ledger, datasets
from fedscape.cli import app


def walk(command, path):
    yield path
    for name, sub in getattr(command, "commands", {}).items():
        yield from walk(sub, [*path, name])


COMMANDS = list(walk(get_command(app), []))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c) or "fedscape")
def test_every_command_has_help(command):
    shown = CliRunner().invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    assert "Usage: " in shown.output


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c) or "fedscape")
def test_every_command_is_in_the_docs(command):
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert f"fedscape {' '.join(command)}".strip() in page


def test_every_command_is_started_by_some_test_as_users_start_it():
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_cli*.py"))
    for command in COMMANDS:
        words = r",\s*".join(f'"{word}"' for word in command)
        leaf = not any(other[: len(command)] == command and other != command for other in COMMANDS)
        runs = re.search(rf"(started|serving)\(\s*{words}", tests)
        assert not leaf or runs, f"no test starts fedscape {' '.join(command)}"


def test_a_process_of_its_own_refuses_like_a_forked_one():
    done = begun("describe", "femnist-minni")
    assert done.returncode == 2
    assert done.stderr == refused(2, "describe", "femnist-minni")


def test_version():
    assert started("--version").startswith("fedscape 0.")


def test_describe_prints_numbers_for_people_and_programs(tmp_path):
    assert "3,597" in started("describe", "femnist-labels")
    about = json.loads(ok("describe", "acs-race", "--column", "y", "--json"))
    assert about["clients"] == 2462
    assert about["skew"]["distance"] == pytest.approx(0.220, abs=0.001)
    assert about["skew"]["iid"] == pytest.approx(0.020, abs=0.001)


def test_convert_and_read_back_every_format(tmp_path):
    fed = datasets.load("acs-mini").select(["AGEP", "race"])
    for name in ("a.parquet", "a.csv", "folder"):
        done = json.loads(ok("data", "convert", "acs-mini", tmp_path / name, "--json"))
        assert (done["clients"], done["rows"]) == (30, 12_000)
        again = datasets.read(tmp_path / name)
        assert np.array_equal(again["AGEP"], fed["AGEP"])
        assert again.counts("race").sum() == 12_000
    assert "already" in refused(2, "data", "convert", "acs-mini", tmp_path / "a.csv")
    started("data", "convert", "acs-mini", tmp_path / "a.csv", "--force")
    ok("data", "convert", "femnist-mini", tmp_path / "leaf.json")
    assert len(datasets.read(tmp_path / "leaf.json")) == 30


def test_data_group_makes_a_folder_that_other_commands_read(tmp_path):
    ok("data", "convert", "acs-mini", tmp_path / "a.parquet")
    said = started("data", "group", tmp_path / "a.parquet", tmp_path / "grouped", "--client", "client")
    assert "30 clients, 12,000 rows" in said
    grouped, whole = datasets.read(tmp_path / "grouped"), datasets.load("acs-mini")
    assert np.array_equal(np.sort(grouped["AGEP"]), np.sort(whole["AGEP"]))
    assert "exists already" in refused(
        2, "data", "group", tmp_path / "a.parquet", tmp_path / "grouped", "--client", "client"
    )
    assert "check the path" in refused(2, "data", "group", tmp_path / "b.parquet", tmp_path / "c", "--client", "client")


def test_a_dataset_card_names_the_data_and_no_client(tmp_path):
    started("data", "card", "femnist-mini", tmp_path / "README.md")
    text = (tmp_path / "README.md").read_text()
    assert "femnist-mini" in text
    assert not any(str(client) in text for client in datasets.load("femnist-mini").ids)
    assert "--force" in refused(2, "data", "card", "femnist-mini", tmp_path / "README.md")


def test_data_info_lists_and_tells():
    assert "femnist-mini" in started("data", "info")
    assert json.loads(ok("data", "info", "flights-mini", "--json"))["clients"] == 14


def test_doctor_says_what_is_missing():
    found = json.loads(started("doctor", "--json", FEDSCAPE_DATA=""))
    assert found["python"] == sys.version.split()[0]
    assert set(found["extras"]) == {"learn", "ray", "flower", "report", "tune", "log", "mlflow", "wandb"}
    assert "not set" in found["data"]["FEDSCAPE_DATA"]


def test_doctor_deletes_compiled_programs_where_asked(tmp_path):
    kept = tmp_path / "torch-2.11.0-AVX2" / "code"
    kept.parent.mkdir()
    kept.write_bytes(bytes(2_000_000))
    assert json.loads(ok("doctor", "--json", FEDSCAPE_PROGRAMS=str(tmp_path)))["programs"]["bytes"] == 2_000_000
    assert "deleted 2.0 MB" in fedscape("doctor", "--clear-programs", FEDSCAPE_PROGRAMS=str(tmp_path)).stderr
    assert not kept.exists()


def test_fit_and_sample_a_population(tmp_path):
    out = tmp_path / "population.json"
    about = json.loads(started("fit", "acs-race", "--components", "2-3", "--out", out, "--quiet", "--json"))
    assert [row["components"] for row in about["candidates"]] == [2, 3]
    assert sum(c["weight"] for c in about["components"]) == pytest.approx(1, abs=0.001)
    drawn = json.loads(ok("sample", out, "--clients", 300, "--out", tmp_path / "drawn.parquet", "--json"))
    assert drawn["clients"] == 300
    again = datasets.read(tmp_path / "drawn.parquet")
    assert again.names["y"] == datasets.load("acs-race").names["y"]
    started("sample", out, "--clients", 300, "--out", tmp_path / "again.parquet")
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "drawn.parquet").read_bytes()
    assert "--force" in refused(2, "fit", "acs-race", "--components", "1", "--out", out)


def test_privacy_commands(tmp_path):
    fed = Federation({"y": [0, 1, 1]}, [0, 1, 3])
    path = tmp_path / "ledger.jsonl"
    Histogram(2).fit(fed, privacy=Gaussian(clip=1.0, multiplier=5.0), ledger=Ledger(path, epsilon=4.0, delta=1e-5))
    about = json.loads(started("privacy", "show", path, "--json"))
    assert about["releases"] == 1
    assert about["totals"][0]["spent"] == pytest.approx(0.8, abs=0.15)
    assert "add-remove" in ok("privacy", "show", path)
    Histogram(2).fit(fed, privacy=Gaussian(clip=1.0, multiplier=5.0, noise_seed=1), ledger=Ledger(path))
    assert "NOT PRIVATE" in ok("privacy", "show", path)
    found = json.loads(started("privacy", "calibrate", "--epsilon", 1, "--delta", 1e-5, "--rounds", 1, "--json"))
    assert found["multiplier"] == pytest.approx(3.73, abs=0.02)


BAD = {
    "an unknown name": (["describe", "femnist-minni"], 2, "femnist-mini"),
    "an unknown column": (["describe", "femnist-mini", "--column", "z"], 2, "there is no column 'z'"),
    "a missing ledger": (["privacy", "show", "none.jsonl"], 2, "there is no ledger none.jsonl"),
    "rate and size": (
        ["privacy", "calibrate", "--epsilon", "1", "--rounds", "1", "--rate", "0.1", "--size", "3"],
        2,
        "not both",
    ),
    "a bad rate": (["privacy", "calibrate", "--epsilon", "1", "--rounds", "1", "--rate", "2"], 2, "not 2.0"),
    "no such option": (["describe", "femnist-mini", "--zzz"], 2, "No such option"),
    "components that are no number": (["fit", "acs-race", "--components", "many"], 2, "such as 1-6, not 'many'"),
    "an unknown solver": (["fit", "acs-race", "--components", "1", "--solver", "magic"], 2, "not 'magic'"),
    "no population": (["sample", "{text}"], 2, "notes.txt"),
    "one client": (["study", "{one}", "--force"], 2, "needs at least two"),  # a study may be here already
    "a broken Parquet file": (["describe", "{broken}"], 2, "broken.parquet"),
    "a file of another kind": (["describe", "{text}"], 2, "where it is a table, call it .csv"),
    "a folder that cannot be made": (["study", "{two}", "--quiet", "--out", "{text}/sub"], 2, "cannot be created"),
    "a file that is no ledger": (["privacy", "show", "{text}"], 2, "is no ledger"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    Federation({"y": [0, 1]}, [0, 2]).save(folder / "one")
    Federation({"y": [0, 1, 1]}, [0, 1, 3]).save(folder / "two")
    ok("data", "convert", "acs-race", folder / "whole.parquet")
    (folder / "broken.parquet").write_bytes((folder / "whole.parquet").read_bytes()[:-2000])
    (folder / "notes.txt").write_text("hello\n")
    return {
        "one": folder / "one",
        "two": folder / "two",
        "broken": folder / "broken.parquet",
        "text": folder / "notes.txt",
    }


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_clear_line_and_its_exit_code(case, places):
    arguments, code, message = BAD[case]
    said = refused(code, *[a.format(**places) for a in arguments])
    assert message in said
    if not said.startswith("Usage"):
        assert said.count("\n") == 1, said
        assert said.startswith("fedscape: ")


def test_help_says_what_arguments_are_in_plain_brackets():
    said = " ".join(ok("study", "--help").split())
    assert "A name, a file or a folder; by default the embedded FEMNIST writers. [default: femnist-mini]" in said
    assert "The ledger's file. [required]" in " ".join(ok("privacy", "show", "--help").split())
