"""What is exported says the same as the model: torch, ONNX and scikit-learn, preprocessing included."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest
import torch

from fedscape import DataError, Federation
from fedscape.errors import MissingExtraError
from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.learning.fitting import learn_inputs
from fedscape.methods import train
from fedscape.trained.export import Program, columns_for, export, networks_of, to_sklearn
from fedscape.trained.model import load, trained

HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


def table(n=60, seed=0, job=("cook", "pilot", "nurse")):
    rng = np.random.default_rng(seed)
    age = np.where(rng.uniform(size=n) < 0.2, np.nan, rng.normal(40, 10, n))
    floor = rng.integers(1, 4, n)
    jobs = rng.choice(job, n)
    y = np.where(np.nan_to_num(age, nan=40) + 10 * (jobs == "pilot") > 42, "yes", np.where(floor > 1, "no", "perhaps"))
    return Federation(
        {"age": age, "job": jobs, "floor": floor, "y": y}, np.arange(0, n + 1, n // 3), ids=["a", "b", "c"]
    )


def run(tmp_path, method="fedavg", model="mlp", fed=None, **how):
    """The file of a small model."""
    fed = table() if fed is None else fed
    kinds = {"floor": "category"} if "floor" in fed else {}
    names = [name for name in fed.columns if name != "y"]
    inputs = learn_inputs(fed, features=names, target="y", kinds=kinds, **{"fill": "mean", "standardise": True, **how})
    rows = inputs.apply(fed).rows
    given = {"n_features": inputs.width, "n_classes": max(2, len(inputs.classes))}
    if model == "mlp":
        given["hidden"] = 7
    if model in ("cnn", "lenet5"):
        given = {"shape": (1, 28, 28), "n_classes": 2}
    local = LocalSGD(
        getattr(models, model)(**given), cross_entropy, lr=0.1, epochs=2, batch_size=8, features=inputs.column
    )
    made = trained(train(method, local, rows, n_rounds=2), model, given, inputs=inputs, name=method)
    made.save(tmp_path / "model")
    return tmp_path / "model"


def strange():
    """Rows of a known and a new client, with gaps and a category that nobody has seen."""
    fed = table(30, seed=5, job=("cook", "pilot", "baker"))
    return Federation(dict(fed.columns), fed.offsets, ids=["a", "b", "z"], names=fed.names)


@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "fedavg+",
        "ditto",
        "pfedme",
        "clustered",
        "ifca",
        "fedem",
        "local",
        "fedrep",
        "fedala",
        "feddbe",
        "pfedfda",
        "gpfl",
    ],
)
def test_the_networks_of_a_client_are_those_that_predict_for_it(tmp_path, method):
    model = load(run(tmp_path, method))
    fed = strange()
    whole = model.predict(fed).probabilities
    x = torch.tensor(columns_for(model.inputs, fed))
    for i, client in enumerate(["a", "b", None]):
        if client is None and method in ("local", "fedrep"):
            with pytest.raises(DataError, match="has a model for each client alone"):
                networks_of(model)
            continue
        made = Program(model.inputs, networks_of(model, client=client)).eval()
        rows = slice(int(fed.offsets[i]), int(fed.offsets[i + 1]))
        np.testing.assert_allclose(made(x[rows]).detach().numpy(), whole[rows], atol=1e-5)


def test_a_torch_program_says_the_same_for_any_number_of_rows(tmp_path):
    path = run(tmp_path)
    export(path, tmp_path / "m.pt2", to="torch")
    extra = {"inputs.json": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=extra).module()
    assert json.loads(extra["inputs.json"])["inputs"]["classes"] == ["no", "perhaps", "yes"]
    model, fed = load(path), strange()
    x = torch.tensor(columns_for(model.inputs, fed))
    for n in (1, 30):
        np.testing.assert_allclose(program(x[:n]).detach().numpy(), model.predict(fed).probabilities[:n], atol=1e-5)


@pytest.mark.parametrize("model", ["cnn", "lenet5"])
def test_images_are_exported_as_they_are_stored(tmp_path, model):
    rng = np.random.default_rng(0)
    fed = Federation({"x": rng.integers(0, 255, (12, 28, 28)).astype(np.uint8), "y": [0, 1] * 6}, [0, 6, 12])
    path = run(tmp_path, model=model, fed=fed, fill=None, standardise=False)
    export(path, tmp_path / "m.pt2", to="torch")
    made, program = load(path), torch.export.load(tmp_path / "m.pt2").module()
    said = program(torch.tensor(columns_for(made.inputs, fed))).detach().numpy()
    np.testing.assert_allclose(said, made.predict(fed).probabilities, atol=1e-5)


@pytest.mark.skipif(not HAS_ONNX, reason="onnx, onnxscript and onnxruntime are not installed")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["fedavg", "fedem"])
def test_onnx_says_the_same(tmp_path, method):
    import onnxruntime

    path = run(tmp_path, method)
    export(path, tmp_path / "m.onnx", to="onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    about = json.loads(session.get_modelmeta().custom_metadata_map["fedscape"])
    assert about["inputs"]["features"][1]["categories"] == ["cook", "nurse", "pilot"]
    model = load(path)
    fed = strange().take([2])
    said = session.run(None, {"columns": columns_for(model.inputs, fed)})[0]
    np.testing.assert_allclose(said, model.predict(fed).probabilities, atol=1e-5)


@pytest.mark.skipif(HAS_ONNX, reason="onnx is installed")
def test_without_onnx_one_line_says_what_to_install(tmp_path):
    with pytest.raises(MissingExtraError, match=r"run  pip install 'fedscape\[onnx\]'"):
        export(run(tmp_path), tmp_path / "m.onnx", to="onnx")
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("how", [{}, {"standardise": False}])
def test_a_pipeline_of_scikit_learn_says_the_same(tmp_path, model, classes, how):
    fed = table()
    if classes == 2:
        fed = fed.where(fed["y"] != 1)  # perhaps
        fed = fed.with_column("y", np.array(["no", "?", "yes"])[fed["y"]])
    path = run(tmp_path, model=model, fed=fed, **how)
    export(path, tmp_path / "layers.json", to="sklearn")
    new, made = strange(), load(path)
    frame = pd.DataFrame({name: new[name] for name in ("age", "floor")})
    frame["job"] = np.array(new.names["job"])[new["job"]]
    wanted = made.predict(new).probabilities
    for pipeline in (to_sklearn(path), to_sklearn(tmp_path / "layers.json")):
        place = [list(pipeline.classes_).index(name) for name in made.inputs.classes]
        np.testing.assert_allclose(pipeline.predict_proba(frame)[:, place], wanted, atol=1e-5)
        assert pipeline.predict(frame).tolist() == [made.inputs.classes[i] for i in wanted.argmax(axis=1)]


def test_a_pipeline_has_the_shift_of_a_client(tmp_path):
    made, new = load(path := run(tmp_path, "feddbe")), strange()
    frame = pd.DataFrame({name: new[name] for name in ("age", "floor")})
    frame["job"] = np.array(new.names["job"])[new["job"]]
    pipeline = to_sklearn(path, client="a")
    place = [list(pipeline.classes_).index(name) for name in made.inputs.classes]
    rows = slice(0, int(new.offsets[1]))  # those of a
    wanted = made.predict(new).probabilities[rows]
    np.testing.assert_allclose(pipeline.predict_proba(frame)[rows][:, place], wanted, atol=1e-5)


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path):
    path = run(tmp_path, "fedgmm", fill="mean")
    for call, message in (
        (lambda: export(path, tmp_path / "o", to="torch"), "fedgmm chooses its network row by row"),
        (lambda: export(path, tmp_path / "o", to="caffe"), "to must be one of onnx, torch, sklearn, not 'caffe'"),
        (lambda: to_sklearn(run(tmp_path, "fedem")), "scikit-learn has no model that is a mixture of networks"),
        (lambda: to_sklearn(run(tmp_path, "gpfl"), client="a"), "scikit-learn has no layer like the Valve of gpfl"),
        (lambda: export(run(tmp_path, "ditto"), tmp_path / "o", to="torch", client="q"), "knows no client 'q'"),
        (lambda: to_sklearn(tmp_path / "none.json"), "cannot be read"),
    ):
        with pytest.raises(DataError, match=message) as error:
            call()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "o").exists()
    (tmp_path / "odd.json").write_text('{"format": 3}')
    with pytest.raises(DataError, match="is no export for scikit-learn"):
        to_sklearn(tmp_path / "odd.json")


def test_cuts_before_scaling_are_exported_too(tmp_path):
    fed = table()
    age = fed["age"].copy()
    fed = Federation({"age": np.tile(age, 20), "y": np.tile(fed["y"], 20)}, [0, 500, 1200], names={"y": fed.names["y"]})
    far = fed["age"].copy()
    far[3] = 1e6
    fed = fed.with_column("age", far)
    model = load(run(tmp_path, fed=fed))
    assert model.inputs.features[0].high is not None
    program = Program(model.inputs, networks_of(model)).eval()
    mine = program(torch.tensor(columns_for(model.inputs, fed))).detach().numpy()
    np.testing.assert_allclose(mine, model.predict(fed).probabilities, atol=1e-5)
    export(tmp_path / "model", tmp_path / "model.json", to="sklearn")
    peer = to_sklearn(tmp_path / "model.json")
    found = peer.predict_proba(pd.DataFrame({"age": fed["age"]}))
    np.testing.assert_allclose(found, model.predict(fed).probabilities, atol=1e-5)
