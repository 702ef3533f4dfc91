"""The variance of distributed noise shows how many clients there are: what is booked must allow for it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from fedscape import All, Computation, Federation, FixedSize, Gaussian, Ledger, Local, Poisson, PrivacyError, rounds
from fedscape.privacy.accounting import epsilon_of


class Zeros(Computation):
    """Clients that send zeros: only noise is left."""

    def start(self, seed):
        return {"x": np.zeros(5000)}

    def step(self, state, clients, key):
        return {"x": np.zeros((len(clients), 5000))}, {}

    def update(self, state, total):
        return {"x": total["x"], "clients": total["clients"]}


def spread(n_clients: int, seed: int) -> float:
    engine = Local(Federation({}, [0] * (n_clients + 1)), min_clients=2)
    privacy = Gaussian(clip=1.0, multiplier=8.0, place="distributed", noise_seed=seed)
    return float(np.mean(next(rounds(Zeros(), engine, n_rounds=1, privacy=privacy)).state["x"] ** 2))


def test_one_client_more_shows_so_add_remove_is_not_claimed():
    """2 and 3 clients are told apart for certain: a claim of add-remove at any small epsilon would be false."""
    cut = chi2.ppf(0.5, 5000) / 5000
    scale = spread(2, 0) / cut
    assert spread(3, 1) > 1.3 * scale * cut  # 22 standard deviations
    ledger = Ledger()
    engine = Local(Federation({}, [0] * 4), min_clients=2)
    privacy = Gaussian(clip=1.0, multiplier=8.0, place="distributed")
    for sampler in (All(), Poisson(0.9), FixedSize(2)):
        next(rounds(Zeros(), engine, n_rounds=1, privacy=privacy, ledger=ledger, sampler=sampler))
    assert set(ledger.spent()) == {("client", "replace-one", "central")}


def test_an_exchange_moves_two_clips():
    entry = Gaussian(clip=1.0, multiplier=8.0, place="distributed").entries(All(), 10)["sum"]
    assert entry["multiplier"] == 4.0
    alone = dict(entry, multiplier=4.0, relation="add-remove")
    assert epsilon_of([(entry, 1)], 1e-6) == pytest.approx(epsilon_of([(alone, 1)], 1e-6))


def test_poisson_sampling_does_not_amplify_where_the_number_of_clients_is_public():
    entry = Gaussian(clip=1.0, multiplier=8.0, place="distributed").entries(Poisson(0.1), 10)["sum"]
    assert entry["sampling"] == {"kind": "all"}


def test_the_number_of_clients_is_public_and_exact():
    engine = Local(Federation({}, [0] * 8), min_clients=2)
    done = next(rounds(Zeros(), engine, n_rounds=1, privacy=Gaussian(clip=1.0, multiplier=8.0, place="distributed")))
    assert (done.clients, float(done.state["clients"])) == (7, 7.0)


def test_laplace_noise_is_not_made_of_parts():
    from fedscape import Laplace

    with pytest.raises(PrivacyError, match="cannot be made up of parts"):
        Laplace(clip=1.0, epsilon=1.0, place="distributed")
