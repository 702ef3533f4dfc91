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


@pytest.mark.filterwarnings("ignore")  # a command prints them, and none of them ends it
@pytest.mark.parametrize("command", COMMANDS)
def test_a_nasty_table_is_read_or_refused_in_one_line(command, folder, files):
    faults = {name: answer(command, path, folder).fault for name, path in files.items()}
    assert not {name: fault for name, fault in faults.items() if fault is not None}


def test_there_are_fifty_of_them():
    assert len(NASTY) >= 50
