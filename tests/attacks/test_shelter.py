"""A step that fails on some rows, in every way a step can be run: nothing of it is seen outside."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedscape import Computation, Federation, Gaussian, Local, rounds


class Near(Computation):
    """The distance of each client from a number of its own that the server sends; fails for large ones."""

    reveals = ("x",)

    def start(self, seed):
        return {"of_client.ids": np.arange(4), "of_client.near": np.arange(4.0)[:, None], "x": np.zeros((0, 1))}

    def step(self, state, clients, key):
        sums = clients.segment_sum(clients["y"])[:, None]
        if (sums > 100).any():
            raise ValueError(f"a client earns {sums.max()}")
        return {"x": sums - state["of_client.near"]}, {}

    def update(self, state, total, key):
        return {**state, "x": total["x"]}


@pytest.mark.parametrize("value", [1.0, 1000.0])
def test_a_client_that_fails_does_not_show_where_clients_have_a_state_of_their_own(value):
    """The others took the step again with the rows of all of them, which failed with an error for all to see."""
    fed = Federation({"y": np.array([1.0, value, 3.0, 2.0])}, np.arange(5))
    privacy = Gaussian(clip=100.0, multiplier=1e-6, place="local", noise_seed=1)
    done = next(rounds(Near(), fed, n_rounds=1, allow=("x",), privacy=privacy))
    own = value - 1 if value < 100 else -1  # that of a client without rows
    assert done.state["x"][:, 0] == pytest.approx([1, own, 1, -1], abs=0.01)


class Logarithms(Computation):
    """A sum of logarithms, each of size one at most: infinite for a row of zero, an error for a negative one."""

    def start(self, seed):
        return {"sum": np.zeros(())}

    def step(self, state, clients, key):
        if (clients["y"] < 0).any():
            raise ValueError("negative")
        return {"sum": clients.segment_sum(np.minimum(np.log(clients["y"]), 1.0))}, {}

    def update(self, state, total, key):
        return {"sum": total["sum"]}

    def row_bound(self, state, norm, clients=None):
        return 1.0


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_row_that_fails_does_not_take_the_other_rows_of_its_client_with_it(value):
    """One row more moved the sum by all 1,000 rows of its client, where the ledger counts one."""
    privacy = Gaussian(clip=1.0, multiplier=1e-6, unit="row", noise_seed=1)
    sums = []
    for rows in (np.full(1000, 9.0), np.append(np.full(1000, 9.0), value)):
        done = next(rounds(Logarithms(), Federation({"y": rows}, [0, len(rows)]), n_rounds=1, privacy=privacy))
        sums.append(float(done.state["sum"]))
    assert sums == pytest.approx([1000.0, 1000.0], abs=0.01)


class Warns(Computation):
    """Warns of rows, as libraries do: of an empty mean, of a fit that did not converge."""

    def start(self, seed):
        return {"n": np.zeros(())}

    def step(self, state, clients, key):
        for value in clients["y"][clients["y"] > 100]:
            warnings.warn(f"a row is {value}", stacklevel=1)
        return {"n": clients.sizes}, {}

    def measure(self, state, clients):
        return self.step(state, clients, None)[0]

    def update(self, state, total, key):
        return {"n": total["n"]}


@pytest.mark.parametrize("threads", [1, 2])
def test_no_warning_tells_of_a_row(threads):
    fed, privacy = Federation({"y": np.arange(2000.0)}, np.arange(2001)), Gaussian(clip=1.0, multiplier=1e-3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        done = next(rounds(Warns(), Local(fed, threads=threads), n_rounds=1, privacy=privacy, measure_privacy=privacy))
        assert not said
        next(rounds(Warns(), Local(fed, threads=threads), n_rounds=1))
        assert said  # without a release they are told
    assert done.state["n"] == pytest.approx(2000, abs=1)
