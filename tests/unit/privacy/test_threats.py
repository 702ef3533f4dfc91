"""The page on threats rests on tests: each one it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "threats.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`]*)`", PAGE)))


def functions_of(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_is_there(name):
    file, _, test = name.partition("::")
    assert (ROOT / file).is_file(), f"docs/threats.md names {file}"
    assert not test or test in functions_of(ROOT / file), f"docs/threats.md names {test} of {file}"
    assert not test or test.startswith("test_")


def test_every_attacker_of_the_table_has_a_section_with_tests_and_limits():
    rows = re.findall(r"^\| \[([^\]]+)\]\(#([\w-]+)\).*\| (.*) \|$", PAGE, re.MULTILINE)
    sections = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
    assert len(rows) == len(sections) == 7
    for who, anchor, shown in rows:
        section = sections[who[0].upper() + who[1:]]
        assert anchor == who.lower().replace(" ", "-")
        for file in re.findall(r"`(tests/[^`]+)`", shown):
            assert file in section, f"the section on {who} says nothing of {file}"
        assert "**Not covered.**" in section


def test_every_test_is_named_with_its_file():
    assert set(re.findall(r"\btest_\w+", PAGE)) == set(re.findall(r"test_\w+", " ".join(NAMED)))
