"""Nothing that depends on rows is visible but the noised sum: no error, no warning, no count, no round that fails."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from fedscape import (
    Computation,
    Federation,
    Gaussian,
    Histogram,
    Local,
    Moments,
    Poisson,
    PrivacyError,
    SecureSum,
    rounds,
)

STRICT = Gaussian(clip=1.0, multiplier=1e4)


def salaries(secret: float) -> Federation:
    return Federation({"salary": np.array([3, 5, 8, secret, 2])}, [0, 1, 2, 3, 4, 5])


def seen(computation, fed, privacy=STRICT, **how):
    """All that an attacker sees of a round but its numbers: whether it ran, what it said, names and shapes."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            done = next(rounds(computation, fed, n_rounds=1, privacy=privacy, **how))
        except Exception as error:
            return type(error).__name__, str(error)
    shapes = sorted((name, values.shape, values.dtype.str) for name, values in done.state.items())
    return shapes, done.bytes_up, done.abandoned, [str(w.message) for w in said]


def test_bisection_learns_nothing_of_a_salary():
    """An error exactly where a value is at least k would give any value in some twenty questions."""
    low = seen(Histogram(2**10, column="salary"), salaries(1))
    for k in (2, 9, 2**10):
        assert seen(Histogram(k, column="salary"), salaries(70_123))[2:] == low[2:]
    assert seen(Histogram(2**10, column="salary"), salaries(70_123)) == low


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 1e300, 2.5])
def test_no_value_makes_a_round_fail(value):
    for computation in (Histogram(10, column="salary"), Moments(column="salary", bound=1.0)):
        assert seen(computation, salaries(value)) == seen(computation, salaries(4.0))


class Fussy(Computation):
    """Raises, warns, overflows or sends NaN for some rows, as a step of a user's own may."""

    def __init__(self, how: str) -> None:
        self.how = how

    def start(self, seed):
        return {"n": np.zeros(2)}

    def step(self, state, clients, key):
        large = clients.segment_sum(clients["salary"]) > 100
        rows = np.stack([clients.sizes.astype(float), np.zeros(len(clients))], axis=1)
        if large.any():
            if self.how == "raise":
                raise ValueError(f"client {clients.ids[large][0]} earns {clients['salary'].max()}")
            if self.how == "memory":
                raise MemoryError
            rows[large] = {"nan": np.nan, "inf": np.inf, "huge": 1e308}[self.how]
            rows *= 10.0 if self.how == "huge" else 1.0
        return {"n": rows}, {"mine": rows[:, :1]}

    def measure(self, state, clients):
        return {"n": self.step(state, clients, None)[0]["n"]}

    def update(self, state, total, key):
        return {"n": total["n"]}


@pytest.mark.parametrize("how", ["raise", "memory", "nan", "inf", "huge"])
def test_a_step_that_fails_on_some_rows_gives_what_a_client_without_rows_gives(how):
    metrics = Gaussian(clip=10.0, multiplier=1e-3, noise_seed=1)
    assert seen(Fussy(how), salaries(1000)) == seen(Fussy(how), salaries(1))
    exact = Gaussian(clip=10.0, multiplier=1e-3, noise_seed=1)
    done = next(rounds(Fussy(how), salaries(1000), n_rounds=1, privacy=exact, measure_privacy=metrics))
    assert done.state["n"][0] == pytest.approx(4, abs=0.2)  # five clients of one row; the fourth gives nothing
    assert done.run.engine.kept()["mine"].lengths.tolist() == [1] * 5


def test_an_error_that_does_not_depend_on_rows_is_still_told():
    with pytest.raises(Exception, match="no column 'wage'"):
        next(rounds(Histogram(3, column="wage"), salaries(1), n_rounds=1, privacy=STRICT))


def test_the_number_of_clients_is_nowhere_to_be_seen_exactly():
    """Poisson cohorts of unknown size: neither the round, nor the metrics, nor abandonment tell it."""
    fed = Federation({"salary": np.arange(60) % 5}, np.arange(61))
    privacy = Gaussian(clip=1.0, multiplier=20.0)
    engine = Local(fed, min_clients=30)
    done = list(rounds(Histogram(5, column="salary"), engine, n_rounds=60, sampler=Poisson(0.5), privacy=privacy))
    abandoned = [r.abandoned for r in done]
    assert 0 < sum(abandoned) < 60
    exact = [r.clients for r in done if not r.abandoned]
    assert min(exact) >= 30
    assert max(exact) > 60  # more than there are: it is the noisy number


def test_an_abandoned_round_is_in_the_ledger_where_the_number_is_secret():
    fed = Federation({"salary": np.arange(6) % 5}, np.arange(7))
    engine, privacy = Local(fed, min_clients=1000), Gaussian(clip=1.0, multiplier=1.0)
    loop = rounds(Histogram(5, column="salary"), engine, n_rounds=3, privacy=privacy)
    assert all(r.abandoned for r in loop)
    assert sum(line["kind"] == "release" for line in loop.guard.ledger.entries()) == 3


def test_an_empty_cohort_answers_like_any_other():
    fed = Federation({"salary": np.arange(6) % 5}, np.arange(7))
    for computation in (Histogram(5, column="salary"), Fussy("raise")):
        done = next(rounds(computation, fed, n_rounds=1, sampler=Poisson(1e-9), privacy=STRICT))
        full = next(rounds(computation, fed, n_rounds=1, privacy=STRICT))
        assert (done.abandoned, done.bytes_up) == (full.abandoned, full.bytes_up)
        assert {n: v.shape for n, v in done.state.items()} == {n: v.shape for n, v in full.state.items()}


def test_little_noise_does_not_overflow_and_so_tells_nothing():
    """An overflow that is refused for many clients would tell how many there are."""
    fed = Federation({"y": np.zeros(20_000, dtype=np.int64)}, np.arange(20_001))
    done = next(rounds(Histogram(2), fed, n_rounds=1, privacy=Gaussian(clip=1.0, multiplier=1e-6)))
    assert done.state["counts"][0] == pytest.approx(20_000, abs=1)


def test_rows_that_no_clip_shrinks_saturate():
    class Rows(Computation):
        def start(self, seed):
            return {"x": np.zeros(1)}

        def step(self, state, clients, key):
            return {"x": clients.segment_sum(clients["x"])[:, None]}, {}

        def update(self, state, total, key):
            return {"x": total["x"]}

        def row_bound(self, state, norm, clients=None):
            return 1.0  # a lie, of which nothing worse than a wrong number must come

    fed = Federation({"x": np.array([1e300, 1.0])}, [0, 1, 2])
    assert seen(Rows(), fed, Gaussian(clip=1.0, multiplier=1.0, unit="row"))[2:] == (False, [])
    with pytest.raises(PrivacyError, match="raise the clip"):
        next(rounds(Rows(), fed, n_rounds=1, privacy=Gaussian(clip=0.5, multiplier=1.0, unit="row")))


def test_masked_rounds_do_not_tell_the_number_of_clients():
    """Neither by bytes, which grow with the neighbours that a cohort needs, nor by what is said of a small one."""
    fed, bytes_up = Federation({"salary": np.arange(200) % 5}, np.arange(201)), set()
    for rate in (0.1, 0.9):
        engine = Local(fed, secure=SecureSum())
        done = next(rounds(Histogram(5, column="salary"), engine, n_rounds=1, sampler=Poisson(rate), privacy=STRICT))
        bytes_up.add(done.bytes_up)
    assert len(bytes_up) == 1
    said = set()
    for _ in range(8):
        loop = rounds(
            Histogram(5, column="salary"),
            Local(fed.take(slice(0, 2)), secure=SecureSum()),
            n_rounds=1,
            sampler=Poisson(0.5),
            privacy=STRICT,
        )
        with pytest.raises(PrivacyError) as error:
            next(loop)
        said.add(str(error.value))
    assert len(said) == 1
    assert not any(letter.isdigit() for letter in said.pop())
