"""Every line of the table of methods: made, resumed to the same bytes, private or refused, logged."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedscape import DataError, Federation, FixedSize, Gaussian, Ledger, rounds
from fedscape.learning import Board, LocalSGD, cross_entropy, models, training
from fedscape.methods import FAMILIES, METHODS, Course, Options, find, make, names, train
from fedscape.personal import ProfiledFL, Profiles
from fedscape.temporal import Linear

ROOT = Path(__file__).parents[3]
EVERY = pytest.mark.parametrize("name", METHODS)


def clients(n: int = 6) -> Federation:
    rng = np.random.default_rng(0)
    sizes = rng.integers(3, 9, n)
    y = rng.integers(0, 3, sizes.sum())
    x = rng.normal(size=(len(y), 4)).astype(np.float32) + y[:, None]
    return Federation({"x": x, "y": y}, np.concatenate([[0], np.cumsum(sizes)]), names={"y": ["a", "b", "c"]})


def step(name: str) -> LocalSGD:
    proximal = 0.1 if name == "fedprox" else 0.0
    model = models.mlp(4, 5, 3)
    if name == "fedbn":
        model.insert(2, torch.nn.GroupNorm(1, 5))
    return LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=4, proximal=proximal)


def course(name: str, fed: Federation, *, private: bool = False) -> Course:
    options = Options(prior=Linear(4), period=4.0, sampler=FixedSize(3), ranges={"x": (-4.0, 6.0)})
    return Course(name, step(name), fed, options, private=private)


def run(made: Course, fed: Federation, n_rounds: int, **how):
    """The tables of a training, and the model at its end as bytes."""
    tables = [[]]
    for _, _, table in training(
        made.computation, made.engine, test=fed, n_rounds=n_rounds, sampler=FixedSize(3), every=2,
        allow=made.computation.reveals, judge=made.judge, **how,
    ):  # fmt: skip
        tables.append(table)
    return tables[-1], as_bytes(made.model)


def as_bytes(model) -> list[bytes]:
    kept = itertools.chain(*[(ragged.flat, ragged.offsets) for ragged in model.kept.values()])
    return [np.asarray(values).tobytes() for values in (*model.state.values(), model.ids, *kept)]


@EVERY
def test_a_method_stopped_and_resumed_ends_with_the_bytes_of_one_never_stopped(name, tmp_path):
    fed = clients()
    whole = run(course(name, fed), fed, 5)
    run(course(name, fed), fed, 3, checkpoint=tmp_path / "run")
    assert run(course(name, fed), fed, 5, checkpoint=tmp_path / "run")[1] == whole[1]
    assert [row["round"] for row in whole[0]] == [2, 4, 5]
    assert all(np.isfinite(row["loss_pooled"]) for row in whole[0])


@EVERY
def test_judging_on_the_way_changes_nothing(name):
    fed = clients()
    *_, last = rounds(
        (made := course(name, fed)).computation, made.engine, n_rounds=4, sampler=FixedSize(3), measure=0,
        allow=made.computation.reveals,
    )  # fmt: skip
    assert as_bytes(made.end(last.state)) == run(course(name, fed), fed, 4)[1]


@EVERY
def test_a_method_is_private_or_says_why_not(name):
    fed = clients()
    if METHODS[name].exact:
        with pytest.raises(DataError, match=rf"^{name.replace('+', '.')} cannot be private: .*{METHODS[name].exact}"):
            course(name, fed, private=True)
        return
    ledger = Ledger(epsilon=50.0, delta=1e-3)
    privacy = Gaussian(clip=1.0, multiplier=0.8)
    table, noisy = run(course(name, fed, private=True), fed, 4, privacy=privacy, ledger=ledger)
    assert 0 < max(ledger.spent().values()) <= 50
    assert all(np.isfinite(row["loss_pooled"]) for row in table)
    assert noisy != run(course(name, fed, private=True), fed, 4)[1]


@EVERY
def test_what_the_server_sees_client_by_client_is_never_private(name):
    made = course(name, clients()).computation
    assert set(made.reveals) <= set(METHODS[name].reveals)
    assert not METHODS[name].reveals or METHODS[name].exact


@EVERY
def test_a_method_is_logged(name, tmp_path):
    fed = clients()
    table, _ = run(course(name, fed), fed, 3)
    with Board(tmp_path) as board:
        assert board.write(table) >= 10 * len(table)


@EVERY
def test_a_line_of_the_table_says_what_it_is(name):
    method = METHODS[name]
    assert method.family in FAMILIES
    assert method.title
    assert method.sentence.endswith(".")
    assert set(method.takes) <= {"server_lr", "proximal", "q", "prior", "trees", "law", "l2", "ranges"}
    given = {"q": 2.0, "server_lr": 0.5, "trees": 3, "law": "poisson", "l2": 0.5}
    for option, value in given.items():
        if option not in method.takes:
            with pytest.raises(DataError, match=rf"{option} goes with .*, not with"):
                make(name, step(name), Options(**{option: value}))


def test_train_goes_on_and_a_run_that_is_done_is_not_run_again(tmp_path):
    fed = clients()
    how = {"sampler": FixedSize(2), "checkpoint": tmp_path / "run", "every": 1}
    train("ditto", step("ditto"), fed, n_rounds=2, **how)
    models_ = [train("ditto", step("ditto"), fed, n_rounds=4, **how) for _ in range(2)]
    fresh = train("ditto", step("ditto"), fed, n_rounds=4, sampler=FixedSize(2))
    for model in models_:
        assert all(model.kept[n].flat.tobytes() == fresh.kept[n].flat.tobytes() for n in fresh.kept)
    assert train("ditto", step("ditto"), fed, n_rounds=0).state["model.1.weight"].shape == (5, 4)


def test_fine_tuning_in_private_is_the_same_and_sends_nothing():
    fed = clients()
    state = {f"model.{n}": p for n, p in step("fedavg+").parameters().items()}
    open_, secret = (course("fedavg+", fed, private=private).end(state) for private in (False, True))
    for name, kept in open_.kept.items():
        np.testing.assert_allclose(kept.flat, secret.kept[name].flat, atol=1e-6)
    assert float(open_.state["rows"]) == fed.n_rows
    assert float(secret.state["rows"]) == 0


def test_names_are_those_of_the_table_and_others_are_refused():
    assert names() == tuple(METHODS)
    assert sum((names(family) for family in FAMILIES), ()) == tuple(METHODS)
    assert "single" not in names(command=True)
    with pytest.raises(DataError, match=r"method must be one of fedavg, .*, not 'fedmagic'"):
        find("fedmagic")
    with pytest.raises(DataError, match="not 'single'"):
        find("single", command=True)
    with pytest.raises(DataError, match="fedprox needs proximal above 0"):
        make("fedprox", step("fedavg"))
    with pytest.raises(DataError, match="fedgmm first fits Gaussians"):
        make("fedgmm", step("fedgmm"))


def test_the_table_imports_no_torch():
    code = "import sys, fedscape.methods as m; m.names(); print([n for n in ('torch', 'numba') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@EVERY
def test_the_docs_have_a_row_for_a_method(name):
    method = METHODS[name]
    called = f"`{name}`" if method.command else f"`{name}` (Python only)"
    private = f"no: {method.exact}" if method.exact else "yes"
    row = [called, method.title, method.family, ", ".join(method.reveals) or "nothing", private]
    assert f"| {' | '.join(row)} |" in (ROOT / "docs" / "training.md").read_text().splitlines()


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].exact])
def test_a_computation_is_refused_privacy_as_its_name_is(name):
    fed = clients()
    made = course(name, fed).computation
    with pytest.raises(DataError, match="cannot be private"):
        train(made, step(name), fed, n_rounds=1, privacy=Gaussian(clip=1.0, multiplier=1.0))


def test_groups_that_were_found_privately_can_be_trained_privately():
    fed, privacy = clients(40), Gaussian(clip=4.0, multiplier=1.0, noise_seed=1)
    ledger = Ledger(epsilon=500.0, delta=1e-3)
    profiles = Profiles(2, directions=2, bound=4.0, alpha=0.0).fit(fed, privacy=privacy, ledger=ledger)
    before = max(ledger.spent().values())
    train(ProfiledFL(step("profiles"), profiles), step("profiles"), fed, n_rounds=1, privacy=privacy, ledger=ledger)
    assert max(ledger.spent().values()) > before > 0
