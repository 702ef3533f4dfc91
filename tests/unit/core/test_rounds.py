from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet
import pytest

from fedscape import (
    Computation,
    DataError,
    EngineError,
    Federation,
    FixedSize,
    Gaussian,
    Histogram,
    Local,
    Poisson,
    rounds,
)
from fedscape.core.arrays import Ragged
from fedscape.core.history import History
from fedscape.core.kernel import kernel
from fedscape.core.random import Key
from fedscape.core.schedule import _libraries, cut, in_order
from fedscape.errors import CheckpointError


def people(n: int = 40, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 6, n))))
    return Federation({"x": rng.normal(size=offsets[-1])}, offsets)


class Sum(Computation):
    """Adds a column; clients keep how often they took part, and a list that grows."""

    def __init__(self, *, break_at: int = -1):
        self.break_at = break_at

    def start(self, seed):
        return {"sum": np.zeros(()), "round": np.zeros((), dtype=np.int64)}

    def step(self, state, clients, key):
        if state["round"] == self.break_at:
            raise KeyboardInterrupt
        seen = clients.kept.get("visits", Ragged(np.empty(0), np.zeros(len(clients) + 1, dtype=np.int64)))
        lengths = seen.lengths + 1
        visits = np.concatenate([np.append(seen.flat[a:b], key.round) for a, b in zip(*_ends(seen), strict=True)])
        draws = np.array([generator.normal() for generator in key.of(clients)])
        sent = {"sum": clients.segment_sum("x") + draws, "visits": lengths}
        return sent, {"visits": Ragged(visits, np.concatenate(([0], np.cumsum(lengths))))}

    def update(self, state, total, key):
        return {"sum": state["sum"] + total["sum"] + total["visits"], "round": state["round"] + 1}


def _ends(ragged):
    return ragged.offsets[:-1], ragged.offsets[1:]


class Bad(Computation):
    def __init__(self, sent):
        self.sent = sent

    def start(self, seed):
        return {"s": np.zeros(())}

    def step(self, state, clients, key):
        return self.sent(clients), {}

    def update(self, state, total, key):
        return {"s": total["s"] / 0.0 if "s" in total else np.zeros(())}


def last(*args, **kwargs):
    return list(rounds(*args, **kwargs))[-1].state


def test_a_step_below_an_inherited_total_is_refused():
    with pytest.raises(TypeError, match="Mine defines step but inherits total from Histogram"):

        class Mine(Histogram):
            def step(self, state, clients, key):
                return {}, {}

    class Fine(Histogram):
        total = Computation.total

        def step(self, state, clients, key):
            return {}, {}

    assert Fine(3).total({}, Federation({}, [0]), Key(0)) is None


def test_kept_arrays_of_any_length_come_back_to_their_clients_only():
    fed = people()
    engine = Local(fed)
    cohorts = [set(FixedSize(15).draw(fed, _key(r.index)).tolist()) for r in _run(engine)]
    visits = engine.kept()["visits"]
    for client in range(len(fed)):
        mine = visits.flat[visits.offsets[client] : visits.offsets[client + 1]].tolist()
        assert mine == [t for t, cohort in enumerate(cohorts) if client in cohort]


def _run(engine):
    return rounds(Sum(), engine, n_rounds=6, sampler=FixedSize(15), seed=3)


def _key(index):
    from fedscape import Key

    return Key(3, index, "cohort")


def test_a_new_run_starts_with_nothing_kept_unless_carried():
    engine = Local(people())
    first = last(Sum(), engine, n_rounds=3)
    assert last(Sum(), engine, n_rounds=3)["sum"] == first["sum"]
    assert last(Sum(), engine, n_rounds=3, carry=True)["sum"] != first["sum"]


def test_a_system_that_does_not_say_which_cores_a_process_may_use_has_all_of_them(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert Local(Federation({}, [0, 0])).threads == 3


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads_and_storage_order_give_the_same_bytes_over_rounds(threads, monkeypatch):
    monkeypatch.setattr(Sum, "block_clients", 3)
    fed = people()
    mixed = fed.take(np.random.default_rng(0).permutation(len(fed)))
    expected = last(Sum(), Local(fed, threads=1), n_rounds=5, sampler=Poisson(0.5), seed=1)
    got = last(Sum(), Local(mixed, threads=threads), n_rounds=5, sampler=Poisson(0.5), seed=1)
    assert got["sum"].tobytes() == expected["sum"].tobytes()


def test_resume_gives_the_bytes_of_an_unbroken_run_with_kept_state(tmp_path):
    fed, path = people(), tmp_path / "run.ckpt"
    whole = last(Sum(), fed, n_rounds=8, sampler=FixedSize(11), seed=2)
    for stop in (1, 4, 7):
        path.unlink(missing_ok=True)
        for r in rounds(Sum(), fed, n_rounds=stop, sampler=FixedSize(11), seed=2):
            r.save(path)
        resumed = last(Sum(), Local(fed), n_rounds=8, sampler=FixedSize(11), seed=2, resume=path)
        assert resumed["sum"].tobytes() == whole["sum"].tobytes()


def test_ctrl_c_in_a_round_leaves_the_last_finished_round_loadable(tmp_path):
    fed, path = people(), tmp_path / "run.ckpt"
    whole = last(Sum(), fed, n_rounds=6)
    loop = rounds(Sum(break_at=3), Local(fed, threads=2), n_rounds=6)
    with pytest.raises(KeyboardInterrupt):
        all(r.save(path) is None for r in loop)
    resumed = rounds(Sum(break_at=3), fed, n_rounds=6, resume=path)
    assert resumed.index == 3
    resumed.computation = Sum()
    assert list(resumed)[-1].state["sum"].tobytes() == whole["sum"].tobytes()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    fed, path = people(), tmp_path / "run.ckpt"
    next(rounds(Sum(), fed, n_rounds=2)).save(path)
    others = {
        "computation": {"computation": Histogram(3), "engine": fed},
        "clients": {"computation": Sum(), "engine": people(39)},
        "sampler": {"computation": Sum(), "engine": fed, "sampler": FixedSize(3)},
        "seed": {"computation": Sum(), "engine": fed, "seed": 1},
    }
    for what, arguments in others.items():
        with pytest.raises(CheckpointError, match=f"belongs to another run: its {what} is"):
            rounds(n_rounds=2, resume=path, **arguments)


def test_only_the_latest_round_can_be_saved(tmp_path):
    done = list(rounds(Sum(), people(), n_rounds=3))
    with pytest.raises(CheckpointError, match="round 0 can no longer be saved"):
        done[0].save(tmp_path / "x")
    done[2].save(tmp_path / "x")


def test_too_few_clients_abandon_the_round_and_change_nothing():
    fed = people(20)
    done = list(rounds(Sum(), Local(fed, min_clients=10), n_rounds=30, sampler=Poisson(0.5), seed=0))
    gone = [r for r in done if r.abandoned]
    assert 0 < len(gone) < 30
    for r in gone:
        assert r.clients == 0
        assert r.metrics == {}
        before = done[r.index - 1].state if r.index else Sum().start(0)
        assert r.state["sum"].tobytes() == before["sum"].tobytes()


class Prefetcher:
    """The trainer of a device that is always busy: notes which rounds it was asked to prefetch."""

    prefetches = True

    def __init__(self):
        self.asked = []

    def prefetch(self, clients, key):
        self.asked.append((key.round, clients))

    def known_finite(self, state):
        return False


class Seer(Histogram):
    """Has such a trainer, and notes who took its rounds."""

    def __init__(self):
        super().__init__(2, column="x")
        self.trainer, self.took = Prefetcher(), []

    def step(self, state, clients, key):
        self.took.append((key.round, clients))
        return super().step(state, clients, key)

    total = Computation.total


def test_a_trainer_prefetches_the_next_round_whose_step_gets_the_same_clients():
    fed, seer = people().with_column("x", np.zeros(people().n_rows, int)), Seer()
    *_, end = rounds(seer, fed, n_rounds=4, sampler=FixedSize(7), seed=3)
    assert [index for index, _ in seer.trainer.asked] == [1, 2, 3]
    assert all(a is b for (_, a), (_, b) in zip(seer.trainer.asked, seer.took[1:], strict=True))
    want = last(Histogram(2, column="x"), fed, n_rounds=4, sampler=FixedSize(7), seed=3)
    assert all(end.state[n].tobytes() == want[n].tobytes() for n in want)


def test_nothing_is_prefetched_of_several_blocks_or_under_privacy():
    fed, blocks, private = people().with_column("x", np.zeros(people().n_rows, int)), Seer(), Seer()
    blocks.block_clients = blocks.total_clients = 10
    list(rounds(blocks, fed, n_rounds=2))
    list(rounds(private, fed, n_rounds=2, privacy=Gaussian(clip=1.0, multiplier=1.0), measure=0))
    assert blocks.trainer.asked == private.trainer.asked == []


@pytest.mark.parametrize("error", [DataError, IndexError])
def test_a_sampler_that_fails_in_the_next_round_does_not_harm_this_one(error):
    class Once:
        def draw(self, clients, key):
            if key.round == 1:
                raise error("nobody is awake")
            return np.arange(3)

    loop = rounds(Seer(), people().with_column("x", np.zeros(people().n_rows, int)), n_rounds=2, sampler=Once())
    assert next(loop).clients == 3
    with pytest.raises(error, match="nobody is awake"):
        next(loop)


def test_what_a_computation_reveals_must_be_allowed_by_name():
    class Reveal(Sum):
        reveals = ("share",)

        def start(self, seed):
            return {"s": np.zeros(())}

        def step(self, state, clients, key):
            seen = state.get("of_client.share", np.full(len(clients), -1.0))
            return {"share": clients.sizes / 7, "back": seen, "s": clients.sizes}, {}

        def update(self, state, total, key):
            assert (total["share"] == fed.sizes / 7).all()
            return {"s": total["back"], "of_client.ids": total["ids"], "of_client.share": total["share"]}

    fed = people()
    with pytest.raises(EngineError, match="client by client: share; allow=\\(\\) must name exactly that"):
        rounds(Reveal(), fed, n_rounds=1)
    with pytest.raises(EngineError, match="allow"):
        rounds(Sum(), fed, n_rounds=1, allow=("sum",))
    first, second = (r.state for r in rounds(Reveal(), fed, n_rounds=2, allow=("share",)))
    assert first["s"] == -len(fed)
    assert second["s"] == pytest.approx(fed.sizes.sum() / 7)


def test_each_client_gets_only_its_own_row_of_the_state():
    class Own(Sum):
        def start(self, seed):
            return {"of_client.ids": np.array([7, 2]), "of_client.v": np.array([70.0, 20.0])}

        def step(self, state, clients, key):
            assert len(state["of_client.v"]) == len(clients)
            assert "of_client.ids" not in state
            known = state["of_client.known"]
            return {"ok": np.where(known, state["of_client.v"] == clients.ids * 10.0, state["of_client.v"] == 0)}, {}

        def update(self, state, total, key):
            return {"ok": total["ok"]}

    reply = next(rounds(Own(), people(), n_rounds=1))
    assert reply.state["ok"] == 40
    assert reply.bytes_down == 8


def test_bytes_and_metrics_are_recorded(tmp_path):
    class Measured(Sum):
        def measure(self, state, clients):
            return {"rows": clients.sizes, "both": np.stack([clients.sizes, clients.sizes * 2], axis=1)}

    fed = people()
    history = History()
    for r in rounds(Measured(), fed, n_rounds=3, measure=2):
        history.add(r)
    assert history["bytes_down"] == [16] * 3
    assert history["bytes_up"] == [16] * 3
    assert history["rows"] == [fed.n_rows / 40, None, fed.n_rows / 40]
    assert history["both.1"][0] == 2 * history["rows"][0]
    history.save(tmp_path / "h.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "h.parquet").column("round").to_pylist() == [0, 1, 2]
    history.save(tmp_path / "h.csv")
    assert (tmp_path / "h.csv").read_text().startswith('"round","clients"')
    with pytest.raises(DataError, match=r"\.parquet or \.csv"):
        history.save(tmp_path / "h.xls")
    with pytest.raises(DataError, match="has no column 'zzz'"):
        history["zzz"]


def test_a_fit_that_was_stopped_goes_on_and_a_finished_one_is_not_repeated(tmp_path):
    from fedscape import FederatedKMeans

    rng = np.random.default_rng(0)
    fed = Federation({"x": rng.normal(size=(400, 2))}, np.arange(0, 401, 4))
    whole = FederatedKMeans(3, rounds=9, tol=0).fit(fed)
    path = tmp_path / "k.ckpt"
    FederatedKMeans(3, rounds=9, tol=0).fit(fed, checkpoint=path, every=2)
    again = FederatedKMeans(3, rounds=9, tol=0).fit(fed, checkpoint=path)
    assert again.centres_.tobytes() == whole.centres_.tobytes()
    assert again.history_["round"] == whole.history_["round"]


def test_convergence_is_seen_at_the_same_round_after_a_resume(tmp_path):
    from fedscape import FederatedKMeans

    rng = np.random.default_rng(1)
    fed = Federation({"x": rng.normal(size=(300, 2))}, np.arange(0, 301, 3))
    start = rng.normal(size=(1, 3, 2))
    whole = FederatedKMeans(3, init=start, rounds=100).fit(fed)
    n = len(whole.history_) - 3  # two rounds of Moments, one that measures
    assert 3 < n < 100
    for stop in (n - 2, n - 1):
        path = tmp_path / f"{stop}.ckpt"
        computation = FederatedKMeans(3, init=start, rounds=100)
        for r in rounds(computation, fed, n_rounds=stop, measure=0):
            r.save(path)
        again = FederatedKMeans(3, init=start, rounds=100).fit(fed, checkpoint=path)
        assert again.centres_.tobytes() == whole.centres_.tobytes()


def test_what_is_wrong_with_a_computation_is_said():
    fed = people(3)
    cases = {
        "the first axis is the clients": lambda c: {"s": np.zeros(len(c) + 1)},
        r"shape \(\) for 3 clients": lambda c: {"s": np.float64(1)},
        "with NaN or infinity for client 1": lambda c: {"s": np.array([0, np.nan, 0])},
        "this name is the engine's own": lambda c: {"clients": np.zeros(len(c))},
    }
    for message, sent in cases.items():
        with pytest.raises(EngineError, match=message):
            next(rounds(Bad(sent), fed, n_rounds=1))
    with np.errstate(all="ignore"), pytest.raises(EngineError, match="round 0 of Bad: 1 of 1 numbers of the state 's'"):
        next(rounds(Bad(lambda c: {"s": np.ones(len(c))}), fed, n_rounds=1))
    with pytest.raises(DataError, match="threads must be at least 1"):
        Local(fed, threads=0)
    with pytest.raises(DataError, match="min_clients must be at least 1"):
        Local(fed, min_clients=0)
    with pytest.raises(DataError, match="n_rounds must be a whole number of at least 0, not -1"):
        rounds(Sum(), fed, n_rounds=-1)


def test_blocks_are_cut_by_clients_and_rows_and_cover_everyone():
    sizes = np.random.default_rng(0).integers(0, 50, 1_000)
    blocks = cut(sizes, clients=64, rows=700)
    assert [begin for begin, _ in blocks[1:]] == [end for _, end in blocks[:-1]]
    assert (blocks[0][0], blocks[-1][1]) == (0, 1_000)
    assert all(e - b <= 64 and (sizes[b:e].sum() <= 700 or e - b == 1) for b, e in blocks)


def test_work_in_threads_comes_back_in_order_and_errors_come_through():
    with ThreadPoolExecutor(4) as pool:
        assert list(in_order(lambda i: i * i, range(500), pool, 4)) == [i * i for i in range(500)]
        with pytest.raises(ZeroDivisionError):
            list(in_order(lambda i: 1 // (i - 100), range(500), pool, 4))
        assert list(in_order(lambda i: i, range(9), pool, 4)) == list(range(9))


def test_libraries_are_looked_for_again_when_something_was_imported(monkeypatch):
    before = _libraries(len(sys.modules))
    assert _libraries(len(sys.modules)) is before
    monkeypatch.setitem(sys.modules, "imported since", sys)
    assert _libraries(len(sys.modules)) is not before


class Shown(Histogram):
    """Reveals its counts, and has a total that forgets to."""

    reveals = ("counts",)

    def total(self, state, clients, key):
        return {"other": np.zeros(1)}

    @classmethod
    def examples(cls):
        return []


def test_a_total_without_what_is_revealed_is_refused():
    fed = Federation({"x": np.zeros(4, dtype=np.int64)}, [0, 2, 4])
    with pytest.raises(EngineError, match=r"Shown.total must have a row a client of \['counts'\]"):
        list(rounds(Shown(2, column="x"), fed, n_rounds=1, allow=("counts",)))


def test_loops_run_uncompiled_where_there_is_no_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)

    @kernel
    def wrap(x):
        return x * x

    big = np.uint64(2**40)
    assert wrap(np.array([big]))[0] == (2**80) % 2**64


def test_a_checkpoint_of_an_older_format_is_refused_in_one_line(tmp_path):
    from fedscape.core import checkpoint

    path, fed = tmp_path / "run.ckpt", Federation({"y": [0, 1, 1]}, [0, 1, 3])
    next(rounds(Histogram(2), fed, n_rounds=2)).save(path)
    arrays, header = checkpoint.read(path)
    checkpoint.write(path, arrays, {name: value for name, value in header.items() if name != "format"})
    with pytest.raises(CheckpointError, match=r"is a checkpoint of format 1, this version has format 2: begin the run"):
        rounds(Histogram(2), fed, n_rounds=2, resume=path)


@pytest.mark.parametrize(
    ("made", "what"), [({"sum": np.zeros(3)}, "a dict"), (np.zeros(3), "a ndarray"), (None, "a N")]
)
def test_a_step_that_returns_no_pair_is_refused_in_words(made, what):
    class Wrong(Sum):
        def step(self, state, clients, key):
            return made

    with pytest.raises(EngineError, match=rf"Wrong\.step must return two dicts, .* not {what}.*return sent, {{}}"):
        list(rounds(Wrong(), people(3), n_rounds=1))


@pytest.mark.parametrize("method", ["start", "update"])
def test_a_state_that_is_no_dict_is_refused_in_words(method):
    wrong = type("Wrong", (Sum,), {method: lambda *_: np.zeros(3)})
    with pytest.raises(EngineError, match=rf"Wrong\.{method} must return a dict, the state, not a ndarray"):
        list(rounds(wrong(), people(3), n_rounds=1))
