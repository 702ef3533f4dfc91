from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, Federation, datasets
from fedscape.statistics.description import describe, label_skew


def test_skew_of_real_data_is_what_was_measured_before():
    femnist = label_skew(datasets.load("femnist-labels").counts("y"))
    assert femnist["distance"] == pytest.approx(0.263, abs=0.001)
    assert femnist["iid"] == pytest.approx(0.194, abs=0.001)
    income = label_skew(datasets.load("acs-income").counts("y"))
    assert income["distance"] == pytest.approx(0.125, abs=0.001)
    assert income["iid"] == pytest.approx(0.065, abs=0.001)


def test_clients_without_skew_are_as_far_apart_as_their_reference():
    rng = np.random.default_rng(0)
    counts = rng.multinomial(rng.integers(1, 60, 4_000), [0.5, 0.3, 0.15, 0.05])
    skew = label_skew(counts)
    assert abs(skew["distance"] - skew["iid"]) < 5 * skew["iid_sd"]


def test_a_description_counts_missing_values_and_empty_clients():
    fed = Federation({"x": [1.0, np.nan, np.inf], "t": ["a", "b", "b"]}, [0, 3, 3])
    about = describe(fed, column="t")
    assert (about["clients"], about["rows"], about["clients_without_rows"]) == (2, 3, 1)
    assert [c["missing"] for c in about["columns"]] == [2, 0]
    assert about["columns"][1]["categories"] == 2
    assert about["skew"]["distance"] == 0


def test_a_federation_without_rows_has_no_skew():
    with pytest.raises(DataError, match="no value in any row"):
        describe(Federation({"y": np.empty(0, dtype=int)}, [0, 0, 0]), column="y")
    assert describe(Federation({}, [0]))["clients"] == 0
