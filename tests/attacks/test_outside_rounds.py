"""What looks at clients outside a round is as visible as an answer: no error may depend on a secret number."""

from __future__ import annotations

import numpy as np
import pytest

from fedscape import Federation, Gaussian, GaussianMixture, Histogram, Local, MixtureOfDirichletMultinomials, Poisson
from fedscape.core.rounds import rounds
from fedscape.core.sampling import All, Side
from fedscape.errors import TooFewClients
from fedscape.mixtures import choose_components

PRIVATE = Gaussian(clip=1.0, multiplier=1e3)


def test_a_side_without_clients_is_an_empty_cohort():
    """It was an error that named how many clients there are; with Poisson sampling it ended a run now and then."""
    fed = Federation({"y": np.arange(3)}, np.arange(4))
    for sampler in (All(), Poisson(1e-9)):
        side = Side(sampler, 1e-9, 0, inside=True)
        assert not next(rounds(Histogram(3), fed, n_rounds=1, sampler=side, privacy=PRIVATE)).abandoned
        assert next(rounds(Histogram(3), fed, n_rounds=1, sampler=side)).abandoned


def test_a_choice_that_nobody_could_judge_is_an_error():
    counts = np.random.default_rng(0).multinomial(20, [0.5, 0.3, 0.2], 50)
    with pytest.raises(TooFewClients, match=r"too few clients to compare .* raise test=1e-09, or have more clients"):
        choose_components(MixtureOfDirichletMultinomials(rounds=2), counts, candidates=(1, 2), test=1e-9)


def outcome(work) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def test_a_private_mixture_does_not_tell_whether_there_is_a_row():
    privacy = Gaussian(clip=4.6, multiplier=1e3, unit="row")
    mixture = GaussianMixture(1, bound=1.0, rounds=1, shared_weights=True)
    fits = [lambda n=n: mixture.fit(Federation({"x": np.zeros((n, 1))}, [0, n]), privacy=privacy) for n in (0, 1)]
    assert [outcome(fit) for fit in fits] == ["done", "done"]
    with pytest.raises(Exception, match="the clients must have rows"):
        mixture.fit(Federation({"x": np.zeros((0, 1))}, [0, 0]))


def test_a_private_fit_does_not_tell_whether_there_is_a_client():
    feds = [Federation({"y": np.zeros(n, dtype=np.int64)}, np.arange(n + 1)) for n in (0, 1)]
    work = [lambda f=f: Histogram(2).fit(Local(f, min_clients=10**6), privacy=PRIVATE) for f in feds]
    assert outcome(work[0]) == outcome(work[1])
