"""Dates, texts and many categories become features of a study, and its findings say how."""

from __future__ import annotations

import numpy as np

from fedscape import Federation
from fedscape.formats.reading import read_columns
from fedscape.studies.derived import BUCKETS, derived, derived_columns, hashed, of_dates, with_derived
from fedscape.studies.prepare import prepare

WORDS = ["red glass lights of winter", "blue paper lantern of spring", "green wooden box of autumn"]


def table(rows=1200, clients=40) -> Federation:
    rng = np.random.default_rng(0)
    days = rng.integers(0, 700, rows).astype("m8[D]") + rng.integers(0, 24, rows).astype("m8[h]")
    codes = [f"part{i:04d}" for i in range(400)]
    which = np.concatenate([np.arange(400)] * 3)
    columns = {
        "when": np.datetime64("2022-01-01T00") + days,
        "part": np.array(codes)[which[:rows]],
        "said": np.array([f"{WORDS[i % 3]} number {i % 500}" for i in range(rows)]),
        "y": rng.integers(0, 2, rows),
    }
    return Federation(columns, np.arange(0, rows + 1, rows // clients))


def test_dates_texts_and_many_categories_are_used_and_said():
    fed = table()
    reading = read_columns(fed, target="y")
    assert reading.features == ()
    assert derived_columns(fed, reading, "y") == ["when", "part", "said"]
    said = {finding.column: finding.remedy for finding in with_derived(fed, reading, "y").findings}
    assert "day of the week" in said["when"]
    assert "hashed" in said["part"]
    assert "words" in said["said"]
    data = prepare(fed, column="y")
    assert data.features == ("when", "part", "said")
    assert np.isfinite(data.rows["x"]).all()
    assert data.width == 11 + 2 * BUCKETS


def test_asked_features_are_all_that_is_used():
    fed = table().with_column("a", np.arange(1200.0))
    assert prepare(fed, column="y", features=["a"]).features == ("a",)


def test_a_date_knows_the_day_of_the_week_and_the_circle_of_the_year():
    when = np.arange(np.datetime64("2024-01-01"), np.datetime64("2024-12-31"))
    x = of_dates(when)
    monday = (when.astype("M8[D]").astype(int) + 3) % 7 == 0
    assert x.shape == (365, 9)  # no time of day
    assert len(np.unique(x[monday][:, 1:7].round(9), axis=0)) == 1
    assert np.abs(x[0, 7:] - x[-1, 7:]).max() < 0.05  # the ends of a year meet
    gaps = of_dates(np.concatenate([when, [np.datetime64("NaT")]]))
    assert not gaps[-1].any()


def test_texts_of_the_same_words_are_near_and_others_are_not():
    first, second, other = (hashed(text) for text in ("red glass lights", "glass lights, red", "a blue paper moon"))
    assert np.isclose(first @ second, 1.0)
    assert abs(first @ other) < 0.5


def test_a_constant_date_is_no_feature():
    fed = Federation({"when": np.array(["2024-01-01"] * 6, dtype="M8[D]"), "y": [0, 1] * 3}, [0, 3, 6])
    assert prepare(fed).features == ()


def test_a_column_of_numbers_outweighs_a_hashed_one():
    fed = table()
    reading = read_columns(fed, target="y")
    part = derived(fed, reading, ["part"])[0]
    assert np.isclose(part.var(axis=0).sum(), 3.0, rtol=0.05)
