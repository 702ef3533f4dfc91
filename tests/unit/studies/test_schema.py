"""The schema of a study's result: a real one fits it, a torn one is refused with the place."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedscape import DataError, Federation
from fedscape.studies import Study, study
from fedscape.studies.schema import Interval, Learn, Result
from fedscape.studies.validate import misfit


@pytest.fixture(scope="module")
def result() -> dict:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    fed = Federation({"x": x, "y": (x[:, 0] > 0).astype(int)}, np.arange(0, 601, 25))
    made = study(fed, rounds=1, seeds=1, epsilon=None, show_clients=True, progress=False)
    return json.loads(json.dumps(made.result))


def test_a_real_study_fits_the_schema(result):
    assert misfit(result) is None
    assert set(result) <= set(Result.__annotations__)
    assert set(result["learn"]) <= set(Learn.__annotations__)
    counts = Federation({"y": np.random.default_rng(1).multinomial(9, [0.5, 0.3, 0.2], 24)}, np.arange(25))
    assert misfit(study(counts, progress=False).result) is None


def test_what_does_not_fit_is_named_with_its_place(result, tmp_path):
    torn = json.loads(json.dumps(result))
    torn["learn"]["true"][1]["accuracy"]["low"] = "unknown"
    assert misfit(torn).startswith("result['learn']['true'][1]['accuracy']['low'] is of type str")
    del torn["learn"]["true"][0]["worst"]
    assert misfit(torn) == "result['learn']['true'][0] has no 'worst'"
    (tmp_path / "result.json").write_text(json.dumps(torn))
    with pytest.raises(DataError, match=r"is not the result of a study: result\['learn'\].* run the study again"):
        Study.load(tmp_path)
    assert misfit({"value": True, "low": 0, "high": None}, Interval) is not None
    assert misfit({"value": 1, "low": 0, "high": None}, Interval) is None
    assert misfit(result | {"format": 0}) == "result['format'] is 0, not 2"
