"""Texts that are numbers or dates."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape.datasets import read_table
from fedscape.formats.texts import are_dates, how_written, parse_numbers


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["3.146,42", "12,5", "1.000", "7"], [3146.42, 12.5, 1000.0, 7.0]),
        (["3,146.42", "12.5", "1,000", "7"], [3146.42, 12.5, 1000.0, 7.0]),
        (["999", "1,234", "-2,500"], [999.0, 1234.0, -2500.0]),
        (["0,125", "1,250"], [0.125, 1.25]),  # a decimal comma: no thousands begin with 0
        (["1,25", "1,250"], [1.25, 1.25]),
        (["1.234", "2.5"], [1.234, 2.5]),  # a point alone is a decimal point
        (["1,234", "2.5"], [1.234, 2.5]),  # a point and a comma, each possibly decimal: the comma as before
        (["$1,200", "-$50", "€ 3", "12%", "12 %"], [1200.0, -50.0, 3.0, 12.0, 12.0]),
        (["1e3", "-inf", " 4 "], [1000.0, -np.inf, 4.0]),
        (["1,2,3", "12 apples", "$", ""], [np.nan] * 4),
        (["1.234.567", "1"], [1234567.0, 1.0]),
        (["1,234.5", "1.234,5"], [np.nan, np.nan]),  # one contradicts the other: neither is read
    ],
)
def test_numbers_are_read_by_one_rule_for_the_column(texts, numbers):
    np.testing.assert_array_equal(parse_numbers(texts)[0], numbers)


def test_what_was_read_into_texts_is_said():
    assert how_written(["1.5", "2"]) == ""
    assert how_written(["1,5"]) == "decimal commas"
    assert how_written(["1.200,50 €"]) == "points between thousands, a sign € left out"


@pytest.mark.parametrize(
    "text",
    [
        "01.02.2024", "1/2/24", "13-02-2024 07:00", "2024/02/13", "2024-02-13T07:00:00Z", "13 Feb 2024", "Feb 13, 2024",
        "13-Feb-24", "2/13/2024 7:05 PM", "07:30", "07:30:15.5", "13. Mai 2024", "2024-02-13 07:00:00+01:00",
    ],
)  # fmt: skip
def test_dates_are_known(text):
    assert are_dates([text, text])


@pytest.mark.parametrize(
    "text", ["1.5", "1.2.3", "10-20", "A-1-2024", "192.168.1.1", "555-12-3456", "may", "12 Mayfair 3"]
)
def test_other_texts_are_no_dates(text):
    assert not are_dates([text, text])


def test_a_table_with_european_numbers_and_dates(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["site;seen;cost;sick"]
    for i in range(200):
        cents = int(rng.integers(100, 99_999_999))
        whole = f"{cents // 100:,}".replace(",", ".")
        day = f"{i % 28 + 1:02d}.{i % 12 + 1:02d}.2024 {i % 24:02d}:{i % 60:02d}"
        lines.append(f"s{i % 4};{day};{whole},{cents % 100:02d};{i % 2}")
    path = tmp_path / "clinic.csv"
    path.write_text("\n".join(lines) + "\n")
    _, reading = read_table(path, client="site", target="sick")
    assert reading["seen"].kind == "date"
    assert reading["cost"].kind == "number"
    assert "points between thousands" in reading["cost"].why
    assert reading["cost"].high > 10_000
    assert any("points between thousands" in str(finding) for finding in reading.findings)
