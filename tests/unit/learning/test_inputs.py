"""A table as inputs: scikit-learn as the oracle, what is learned from training rows alone, tables that do not fit."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedscape import DataError, Federation
from fedscape.learning.fitting import class_names, learn_inputs
from fedscape.learning.inputs import Inputs


def frame(n=80, seed=0, jobs=("cook", "nurse", "pilot")):
    rng = np.random.default_rng(seed)
    age = np.where(rng.uniform(size=n) < 0.2, np.nan, rng.normal(40, 10, n))
    return pd.DataFrame(
        {"age": age, "job": rng.choice(jobs, n), "kids": rng.integers(0, 4, n), "y": rng.integers(3, 6, n)}
    )


def fed_of(data):
    return Federation(
        {name: data[name].to_numpy(dtype=str if name == "job" else None) for name in data}, [0, 7, len(data)]
    )


@pytest.mark.parametrize("fill", ["mean", "median"])
@pytest.mark.parametrize("standardise", [False, True])
def test_inputs_are_those_of_scikit_learn_fitted_to_the_training_rows(fill, standardise):
    old, new = frame(), frame(50, seed=1, jobs=("cook", "pilot", "baker"))
    made = learn_inputs(fed_of(old), features=["age", "job", "kids"], target="y", fill=fill, standardise=standardise)
    steps = [SimpleImputer(strategy=fill), *([StandardScaler()] if standardise else [])]
    oracle = ColumnTransformer(
        [
            ("age", make_pipeline(*steps), ["age"]),
            ("job", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["job"]),
            ("kids", make_pipeline(*steps), ["kids"]),
        ]
    ).fit(old)
    for data in (old, new):
        applied = made.apply(fed_of(data))
        np.testing.assert_allclose(applied.rows["x"], oracle.transform(data), atol=1e-6)
        assert applied.filled == {"age": int(data["age"].isna().sum())}
    assert applied.unseen == {"job": (int((new["job"] == "baker").sum()), "baker")}


def test_what_is_saved_is_what_is_read_and_does_the_same():
    made = learn_inputs(
        fed_of(frame()), features=["age", "job"], target="y", fill="median", standardise=True, client="a,b"
    )
    again = Inputs.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.apply(fed_of(frame(9))).rows["x"].tobytes() == made.apply(fed_of(frame(9))).rows["x"].tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"features": []},
        {"features": None},
        {"missing": "guess"},
        {"classes": [1]},
        {"shape": ["a"]},
        {"client": 3},
        {"target": None},
    ],
)
def test_damaged_inputs_are_one_line(change):
    said = learn_inputs(fed_of(frame()), features=["age"], target="y", fill="mean").to_json()
    with pytest.raises(DataError, match="what is saved about the inputs is damaged") as error:
        Inputs.from_json({**said, **change})
    assert "\n" not in str(error.value)
    for feature in ({"kind": "tensor"}, {"fill": [1.0, 2.0]}, {"name": 4}, {"fill": "x"}):
        with pytest.raises(DataError, match="is damaged"):
            Inputs.from_json({**said, "features": [{**said["features"][0], **feature}]})


def test_a_declared_number_fills_without_a_look_at_the_rows():
    made = learn_inputs(fed_of(frame()), features=["age"], target="y", fill=-7.0)
    assert made.features[0].fill == (-7.0,)
    assert learn_inputs(fed_of(frame(seed=3)), features=["age"], target="y", fill=-7.0) == made


def test_dropped_rows_are_left_out_and_counted():
    data = frame()
    applied = learn_inputs(fed_of(data), features=["age"], target="y", fill="drop").apply(fed_of(data))
    assert (applied.used == data["age"].notna()).all()
    assert applied.rows.n_rows == applied.used.sum()
    assert np.isfinite(applied.rows["age"]).all()
    assert applied.remarks() == [f"{data['age'].isna().sum()} of 80 rows lack a value and are left out"]


def test_an_input_that_never_changed_becomes_zero_also_where_it_changes():
    fed = Federation({"a": [5.0, 5.0], "y": [0, 1]}, [0, 2])
    made = learn_inputs(fed, features=["a"], target="y", standardise=True)
    assert made.apply(Federation({"a": [9.0]}, [0, 1])).rows["a"].tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([5, 1, 1], ("1", "5")),
        ([True, False, True], ("0", "1")),
        (["oak", "ash", "oak"], ("ash", "oak")),
        ([2.0, np.nan, 1.0], ("1", "2")),
    ],
)
def test_classes_have_names_whatever_they_are(labels, names):
    fed = Federation({"a": [1.0, 2.0, 3.0], "y": labels}, [0, 3])
    assert class_names(fed, "y") == names
    applied = learn_inputs(fed, features=["a"], target="y").apply(fed)
    assert applied.rows.names["y"] == names
    assert not applied.unknown.any()


def test_a_class_that_the_model_does_not_know_is_no_class():
    made = learn_inputs(Federation({"a": [1.0, 2.0], "y": ["ash", "oak"]}, [0, 2]), features=["a"], target="y")
    new = Federation({"a": [1.0, 2.0], "y": ["elm", "oak"]}, [0, 2], ids=["u"])
    applied = made.apply(new)
    assert applied.unknown.tolist() == [True, False]
    assert applied.rows["y"].tolist() == [-1, 1]
    with pytest.raises(DataError, match="holds 'elm' in row 0 of client 'u', but the model knows 'ash', 'oak'"):
        made.check_labels(new, applied)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, 1e300])
def test_a_number_that_no_model_computes_with_is_a_gap_or_refused_never_an_infinite_input(bad):
    fed = Federation({"a": [1.0, 3.0], "y": [0, 1]}, [0, 2])
    new = Federation({"a": [bad, 3.0]}, [0, 2], ids=["u"])
    for standardise in (False, True):
        made = learn_inputs(fed, features=["a"], target="y", standardise=standardise)
        with pytest.raises(DataError, match="row 0 of client 'u'"):
            made.apply(new)
        filled = learn_inputs(fed, features=["a"], target="y", fill="mean", standardise=standardise).apply(new)
        assert filled.filled == {"a": 1}
        assert np.isfinite(filled.rows["a"]).all()


def test_bytes_are_kept_and_other_numbers_are_not_taken_for_them():
    images = Federation({"x": np.zeros((2, 4, 4), np.uint8), "y": [0, 1]}, [0, 2])
    made = learn_inputs(images, features=["x"], target="y")
    assert made.apply(images).rows["x"].dtype == np.uint8
    with pytest.raises(DataError, match="is float64, but it was uint8 in training"):
        made.apply(images.with_column("x", np.zeros((2, 4, 4))))
    with pytest.raises(DataError, match=r"has the shape \[16\] a row, but the model was trained on \[4, 4\]"):
        made.apply(images.with_column("x", np.zeros((2, 16), np.uint8)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"features": []}, "features must name at least one column"),
        ({"features": ["age", "age"]}, "features must name a column once"),
        ({"features": ["y"]}, "the target 'y' is none of them"),
        ({"features": ["age"], "fill": "guess"}, "fill must be one of mean, median, drop or a number, not 'guess'"),
        ({"features": ["kids"], "shape": (2, 2)}, "shape must hold the 1 numbers of a row, 2,2 holds 4"),
        ({"features": ["kids"], "kinds": {"kids": "category"}, "target": "age"}, "'age' is a number, not a class"),
    ],
)
def test_what_cannot_be_learned_is_one_line(how, message):
    with pytest.raises(DataError, match=message) as error:
        learn_inputs(fed_of(frame()), **{"target": "y", **how})
    assert "\n" not in str(error.value)


def heavy_rows(n: int = 2_000) -> Federation:
    rng = np.random.default_rng(0)
    quantity = rng.normal(10, 3, n)
    quantity[7] = 80_995.0
    return Federation({"quantity": quantity, "price": rng.normal(5, 1, n), "y": rng.integers(0, 2, n)}, [0, 900, n])


def test_far_values_do_not_set_the_scale():
    fed = heavy_rows()
    inputs = learn_inputs(fed, features=["quantity", "price"], target="y", standardise=True)
    x = inputs.apply(fed).rows["x"]
    np.testing.assert_allclose(x.std(axis=0), 1, atol=1e-3)
    assert np.abs(x).max() < 5
    assert inputs.features[1].low is None  # a column without far values is left as it is
    assert inputs.remarks() == [
        "far values would set the scale of quantity: all are cut to the quantiles 0.005 and 0.995"
    ]
    again = Inputs.from_json(inputs.to_json())
    np.testing.assert_array_equal(again.apply(fed).rows["x"], x)


def test_what_an_older_version_saved_is_read_without_cuts():
    said = learn_inputs(heavy_rows(), features=["price"], target="y", standardise=True).to_json()
    for each in said["features"]:
        del each["low"], each["high"]
    assert Inputs.from_json(said).features[0].low is None
