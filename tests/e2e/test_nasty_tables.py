"""Every command that reads a table, on every nasty table: it succeeds, or refuses in one line with exit code 2."""

from __future__ import annotations

import pytest
from every_command import COMMANDS, answer, prepare
from tables import NASTY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("commands")
    prepare(made)
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables")
    return {name: write(place) for name, write in NASTY.items()}


@pytest.fixture(scope="module")
def studied():
    """What a study without --column said of each table."""
    return {}


def is_repeated(command, name, studied):
    """Whether a study took label, a and b by itself: with --column and --features it is the same run again."""
    before = studied.get(name)
    if command != "study --column" or before is None or before.code != 0:
        return False
    lines = before.out.splitlines()
    return "features: a, b" in lines and any(line.startswith("label: ") for line in lines)


@pytest.mark.filterwarnings("ignore")  # a command prints them, and none of them ends it
@pytest.mark.parametrize("command", COMMANDS)
def test_a_nasty_table_is_read_or_refused_in_one_line(command, folder, files, studied):
    faults = {}
    for name, path in files.items():
        if not is_repeated(command, name, studied):
            said = answer(command, path, folder)
            faults[name] = said.fault
            if command == "study":
                studied[name] = said
    assert not {name: fault for name, fault in faults.items() if fault is not None}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_sound_table(command, folder):
    """Or it would refuse the others for the call's sake."""
    said = answer(command, folder / "sound.parquet", folder)
    assert said.code == 0, said.err


def test_there_are_fifty_of_them():
    assert len(NASTY) >= 50
