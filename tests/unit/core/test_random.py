from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from fedscape import DataError, Federation, Key
from fedscape.core import random
from fedscape.core.kernel import WarmUp, uncompiled
from fedscape.core.random import client_keys


def clients(n: int) -> Federation:
    return Federation({}, [0] * (n + 1), ids=[f"c{i}" for i in range(n)])


def test_vectorised_philox_is_numpys_philox():
    fed = clients(300)
    for key in (Key(0), Key(2**64 - 1, 2**40, "x"), Key(12345, 7, "cohort")):
        one_by_one = np.array([generator.random() for generator in key.of(fed)])
        assert key.uniform(fed).tobytes() == one_by_one.tobytes()


def test_chunks_do_not_change_draws():
    fed = clients(20_000)
    assert (Key(3).uniform(fed)[8_000:8_400] == Key(3).uniform(fed.take(slice(8_000, 8_400)))).all()


def test_a_draw_depends_on_seed_round_purpose_and_client():
    fed = clients(4)
    base = Key(1, 1, "a").uniform(fed)
    for other in (Key(2, 1, "a"), Key(1, 2, "a"), Key(1, 1, "b")):
        assert (other.uniform(fed) != base).all()
    assert len(set(base.tolist())) == 4


def test_draws_do_not_depend_on_who_else_is_there():
    fed = clients(50)
    assert (Key(5).uniform(fed)[[40, 3]] == Key(5).uniform(fed.take([40, 3]))).all()


def test_uniforms_are_uniform():
    draws = Key(11).uniform(clients(100_000))
    assert stats.kstest(draws, "uniform").pvalue > 1e-6
    assert draws.min() >= 0
    assert draws.max() < 1


def test_rows_have_draws_of_their_own():
    fed = Federation({}, [0, 2, 5], ids=["a", "b"])
    draws = Key(0).uniform_rows(fed)
    assert len(set(draws.tolist())) == 5
    assert draws[2] == Key(0).uniform_rows(fed.take([1]))[0]
    assert draws[0] == Key(0).uniform(fed)[0]


def test_text_and_number_ids_have_keys():
    assert client_keys(np.array([0, 5])).tolist() == [0, 5]
    assert len(set(client_keys(np.array(["a", "b", "ab"])).tolist())) == 3


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, True])
def test_a_bad_seed_is_refused(seed):
    with pytest.raises(DataError, match="seed must be a whole number"):
        Key(seed)


def test_compiled_draws_are_those_of_numpy_to_the_bit(monkeypatch):
    clients = np.random.default_rng(0).integers(0, 2**63, 300).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    key = Key(2**63 + 5, 77, "compiled")
    holder = SimpleNamespace(keys=clients, offsets=np.arange(0, 901, 3))
    monkeypatch.setattr(random, "_DRAWS", WarmUp(enough=10**9))
    plain = key.uniform(holder), key.uniform_rows(holder)
    monkeypatch.setattr(random, "_DRAWS", WarmUp(enough=0))
    fast = key.uniform(holder), key.uniform_rows(holder)
    assert plain[0].tolist() == fast[0].tolist() == [key.generator(int(c)).random() for c in clients]
    assert plain[1].tolist() == fast[1].tolist()
    with uncompiled():
        assert key.uniform(holder).tolist() == fast[0].tolist()
