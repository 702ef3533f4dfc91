"""A saved latent class regression predicts what the fitted one did; damaged and foreign files are refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedscape import Gaussian, LatentClassRegression, Ledger, MixtureOfDirichletMultinomials, NotFittedError, datasets
from fedscape.datasets.generators import hlcr_synthetic
from fedscape.errors import CheckpointError
from fedscape.mixtures.dirichlet_multinomial.files import read_population, write_population


def data():
    fed, _ = hlcr_synthetic(12, entities=3, events=8, features=2, components=2, sigma=0.5, seed=0)
    return fed.with_column("entity", fed["entity"], names=["a", "b", "c"]).split(test=0.25, seed=0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"chains": 2, "rounds": 8},
        {"method": "em"},
        {"method": "central-exact", "alpha": None, "beta": None},
        {"n_components": range(1, 3), "rounds": 6},
        {"ranges": {"x": (-3.0, 3.0), "y": (-6.0, 6.0)}},
        {"link": "logistic"},
        {"entity": None, "n_components": np.int64(1)},
    ],
)
def test_a_loaded_regression_says_the_same(settings, tmp_path):
    train, test = data()
    if settings.get("link"):
        train, test = (part.with_column("y", (part["y"] > 0) * 1.0) for part in (train, test))
    reg = LatentClassRegression(**{"n_components": 2, **settings}).fit(train)
    reg.save(tmp_path / "reg.json")
    again = LatentClassRegression.load(tmp_path / "reg.json")
    for one, two in zip(reg.predict(test, return_std=True), again.predict(test, return_std=True), strict=True):
        assert one.tobytes() == two.tobytes()
    assert reg.score(test, history=train) == again.score(test, history=train)
    for name in ("coefficients_", "intercepts_", "errors_", "weights_", "intervals_"):
        assert getattr(reg, name).tobytes() == getattr(again, name).tobytes()
    assert (again.sigma_, again.feature_names_) == (reg.sigma_, reg.feature_names_)
    assert list(again.history_) == list(reg.history_)
    again.save(tmp_path / "twice.json")
    assert (tmp_path / "twice.npz").read_bytes() == (tmp_path / "reg.npz").read_bytes()


def test_entities_can_be_left_out(tmp_path):
    train, test = data()
    reg = LatentClassRegression(2, seed=0).fit(train)
    reg.save(tmp_path / "reg.json", entities=False)
    assert "places" not in " ".join(np.load(tmp_path / "reg.npz").files)
    again = LatentClassRegression.load(tmp_path / "reg.json")
    np.testing.assert_allclose(again.predict_proba(test), np.tile(reg.weights_, (test.n_rows, 1)))
    assert again.score(test, history=train) > again.score(test)


def test_a_private_fit_saves_nothing_of_its_agents_unless_told_to_and_says_what_was_spent(tmp_path):
    train, test = data()
    reg = LatentClassRegression(2, ranges={"x": (-3.0, 3.0), "y": (-6.0, 6.0)}, rounds=2)
    reg.fit(train, privacy=Gaussian(clip=30.0, multiplier=2.0), ledger=Ledger(epsilon=9.0, delta=1e-5))
    reg.save(tmp_path / "reg.json")
    assert "places" not in " ".join(np.load(tmp_path / "reg.npz").files)
    text = (tmp_path / "reg.json").read_text()
    assert not any(f'"{name}"' in text for name in [*train.ids, *train.names["entity"]])
    again = LatentClassRegression.load(tmp_path / "reg.json")
    assert again.spent_ == reg.spent_ == json.loads(text)["spent"]
    assert again.spent_["releases"] == 2
    assert "clients" not in again.history_.columns  # their number is noised in a release
    assert again.spent_["private"]
    assert 0 < again.spent_["totals"][0]["spent"] <= 9
    again.save(tmp_path / "twice.json")
    assert LatentClassRegression.load(tmp_path / "twice.json").spent_ == reg.spent_
    reg.save(tmp_path / "all.json", entities=True)
    np.testing.assert_array_equal(
        LatentClassRegression.load(tmp_path / "all.json").predict_proba(test), reg.predict_proba(test)
    )
    assert reg.fit(train).spent_ is None


def test_other_files_are_refused(tmp_path):
    train, _ = data()
    reg = LatentClassRegression(2, rounds=3).fit(train)
    with pytest.raises(NotFittedError):
        LatentClassRegression(2).save(tmp_path / "none.json")
    with pytest.raises(CheckpointError, match=r"a regression is saved as \.json, not '.pkl'"):
        reg.save(tmp_path / "reg.pkl")
    mixture = MixtureOfDirichletMultinomials(1).fit(datasets.load("acs-race").take(slice(0, 50)))
    mixture.save(tmp_path / "population.json")
    with pytest.raises(CheckpointError, match="is not a regression that this version of fedscape can read"):
        LatentClassRegression.load(tmp_path / "population.json")
    reg.save(tmp_path / "reg.json")
    text = json.loads((tmp_path / "reg.json").read_text())
    (tmp_path / "reg.json").write_text(json.dumps({**text, "draws": 5}))
    with pytest.raises(CheckpointError, match="its checksum does not match"):
        LatentClassRegression.load(tmp_path / "reg.json")
    reg.save(tmp_path / "reg.json")
    (tmp_path / "reg.npz").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="does not belong to"):
        LatentClassRegression.load(tmp_path / "reg.json")


def many_features(header, arrays):
    header["work"]["n_features"] = 400
    arrays["0.state.sums"], arrays["0.state.spread"] = np.zeros((2, 400)), np.ones(400)


def short_sums(header, arrays):
    arrays["0.state.sums"] = arrays["0.state.sums"][:, :-1]


def another_parameter(header, arrays):
    header["parameters"]["bogus"] = 1


def another_attribute(header, arrays):
    header["learned"]["predict"] = 1


def another_array(header, arrays):
    arrays["learned._draws"] = np.zeros(2)


def long_coefficients(header, arrays):
    arrays["learned.coefficients_"] = np.zeros((2, 9))


def texts(header, arrays):
    arrays["0.state.spread"] = np.array(["a", "b", "c"])


def no_draws(header, arrays):
    header["draws"] = 0


def far_offsets(header, arrays):
    arrays["0.places.offsets"] = arrays["0.places.offsets"] * 5


def far_labels(header, arrays):
    arrays["0.places.labels"] = arrays["0.places.labels"] + 7


def far_codes(header, arrays):
    arrays["0.places.codes"] = arrays["0.places.codes"] + 70


def no_components(header, arrays):
    header["work"]["n_components"] = "two"


CHANGES = [
    many_features,
    short_sums,
    another_parameter,
    another_attribute,
    another_array,
    long_coefficients,
    texts,
    no_draws,
    far_offsets,
    far_labels,
    far_codes,
    no_components,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_numbers_that_do_not_fit_together_are_refused_when_loaded(change, tmp_path):
    LatentClassRegression(2, rounds=3).fit(data()[0]).save(tmp_path / "reg.json")
    header, arrays = read_population(tmp_path / "reg.json", what="regression")
    for name in ("format", "arrays", "sha256"):
        del header[name]
    change(header, arrays)
    write_population(tmp_path / "reg.json", header, arrays, what="regression")
    with pytest.raises(CheckpointError, match=r"lacks or mistakes .*: save the regression again"):
        LatentClassRegression.load(tmp_path / "reg.json")
