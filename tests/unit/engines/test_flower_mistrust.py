"""Nodes and servers over Flower that do not believe each other: what a dishonest one tries, and what it gets."""

from __future__ import annotations

import importlib.util
import resource
from pathlib import Path

import numpy as np
import pytest

from fedscape import (
    Computation,
    DataError,
    Federation,
    Gaussian,
    Histogram,
    Laplace,
    Ledger,
    MixtureOfDirichletMultinomials,
    Moments,
    rounds,
)
from fedscape.core import codec
from fedscape.core.kernel import kernel, uncompiled
from fedscape.engines.flower import LocalGrid, Terms, client_app, computations, wire
from fedscape.engines.flower.library import Message
from fedscape.errors import EngineError, TooFewClients
from fedscape.mixtures.dirichlet_multinomial.em import TailCountEM
from fedscape.mixtures.dirichlet_multinomial.start import StartingPoints
from fedscape.privacy.release import Release

_spec = importlib.util.spec_from_file_location("nodes", Path(__file__).with_name("nodes.py"))
nodes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(nodes)


def unpacked(message):
    return wire.read(wire.disclose(message.content, 2**30))


class Node:
    """One node, asked by hand."""

    def __init__(self, fed, folder, **how):
        self.fed, self.folder, self.asked = fed, folder, 0
        self.order = None
        self.grid = LocalGrid(client_app(lambda context: self.fed, folder=folder, **how), [{}])

    def ask(self, computation, state=None, *, number=0, closed=-1, privacy=None, parts=1, cohort=None, **header):
        release = None if privacy is None else Release(privacy, privacy.clip, b"", False, parts)
        about = {
            "format": wire.FORMAT,
            "op": "run",
            "run": "0" * 32,
            "number": number,
            "closed": closed,
            "computation": computations.described(computation),
            "key": [0, number, "step"],
            "measure": False,
            "release": wire.release_written(release),
            "measure_release": None,
            **header,
        }
        begin = computation.start(0) if state is None else state
        arrays = {f"state/{name}": values for name, values in begin.items()}
        return self.send(codec.pack({**arrays, "cohort": self.fed.ids if cohort is None else cohort}, about))

    def send(self, blob):
        self.asked += 1
        order = self.order or wire.Order(0, "0" * 16, self.asked)
        message = Message(wire.enclose(blob, order), dst_node_id=1, message_type="query.fedscape")
        self.grid.push_messages([message])
        return unpacked(self.grid.deliver(message)[0])

    def releases(self):
        return sum(line["kind"] == "release" for line in Ledger(self.folder / "ledger.jsonl").entries())


# -- a server that would like to know more -----------------------------------------------------------------------------


def test_asking_again_after_the_data_changed_gets_other_noise_and_costs_again(tmp_path):
    """The same noise on two sets of rows would give away their difference exactly."""
    node = Node(Federation({"y": [0] * 5 + [1] * 3}, [0, 8], ids=["a"]), tmp_path, terms=Terms(epsilon=1.0))
    privacy = Gaussian(clip=20.0, multiplier=20.0, place="local")
    first, about = node.ask(Histogram(3), number=5, privacy=privacy)
    assert (
        node.ask(Histogram(3), number=5, privacy=privacy)[0]["total/counts"].tolist() == first["total/counts"].tolist()
    )
    assert node.releases() == 1
    node.ask(Histogram(3), number=4, privacy=privacy)  # which drops the reply to 5
    node.fed = Federation({"y": [0] * 5 + [1] * 4}, [0, 9], ids=["a"])
    second, _ = node.ask(Histogram(3), number=5, privacy=privacy)
    difference = (second["total/counts"] - first["total/counts"]) * about["grids"]["counts"]
    assert np.abs(difference - [0, 1, 0]).max() > 1.0
    assert node.releases() == 3


def test_answers_without_noise_count_each_time_they_are_computed(tmp_path):
    node = Node(nodes.federation(2), tmp_path, terms=Terms(unnoised=2))
    for number in (5, 4):
        assert "refused" not in node.ask(Histogram(3), number=number)[1]
    assert "without noise than the owner allows" in node.ask(Histogram(3), number=5)[1]["refused"]


def test_compiled_loops_never_see_arrays_that_do_not_belong_together(tmp_path):
    """Of the components of a mixture of one, and of arrays of which some have none; in a process that has compiled."""
    fed = Federation({"y": np.arange(30_000) % 3}, np.arange(0, 30_001, 3000), ids=[f"c{i}" for i in range(10)])
    node = Node(fed, tmp_path)
    work = TailCountEM((1,), np.array([8, 8, 8, 32]))
    good = work.start(0)
    assert "refused" not in node.ask(work, good, measure=True)[1]
    many = {"weights": np.ones(5) / 5, "dispersion": np.full(5, 0.2), "sizes": np.repeat(good["sizes"], 5, axis=0)}
    for number, bad in enumerate((many, {"mean": np.zeros((0, 3))}, {"mean": np.zeros((5, 3))}), start=1):
        said = node.ask(work, {**good, **bad}, number=number, measure=True)[1]["refused"]
        assert "a state of other shapes than the computation's" in said
    said = node.ask(work, {**good, "table.by_total": np.zeros((1, 4))}, number=4)[1]["refused"]
    assert "look-up tables of the server's" in said


def test_a_state_that_only_a_row_shows_not_to_fit_is_found_in_plain_python(tmp_path):
    """Arrays that data fill later may have any length: the rehearsal must look at them, compiled or not."""
    node = Node(
        Federation({"y": np.zeros(40_000, dtype=int)}, [0, 40_000], ids=["a"]), tmp_path, computations=(Look(),)
    )
    assert "refused" not in node.ask(Look(), {"table": np.zeros(1)})[1]  # now the loop is compiled
    said = node.ask(Look(), number=1)[1]["refused"]
    assert "a state that does not fit the computation (IndexError)" in said


@kernel
def look_up(rows, table, out):
    for i in range(len(rows)):
        out[0] += table[rows[i]]


class Look(Computation):
    """Sums what a table, filled later, has for each row."""

    def start(self, seed):
        return {"table": np.zeros(0)}

    def step(self, state, clients, key):
        out = np.zeros(len(clients))
        look_up(clients["y"], state["table"], out)
        return {"out": out}, {}

    def update(self, state, total, key):
        return state


def test_without_compiling_wins_over_what_is_compiled():
    rows, out = np.array([0]), np.zeros(1)
    look_up(rows, np.ones(1), out)
    with uncompiled(), pytest.raises(IndexError):
        look_up(rows, np.zeros(0), out)


def test_an_owner_says_where_noise_must_be_and_in_how_many_parts(tmp_path):
    def said(name, privacy, split_over=1, **terms):
        node = Node(nodes.federation(3), tmp_path / name, terms=Terms(epsilon=10.0, unnoised=0, **terms))
        return node.ask(Histogram(3), privacy=privacy, parts=split_over)[1].get("refused")

    central = Gaussian(clip=1e9, multiplier=1000.0)
    split = Gaussian(clip=20.0, multiplier=100.0, place="distributed")
    local = Gaussian(clip=20.0, multiplier=100.0, place="local")
    assert said("1", central) is None
    assert "at a place that the owner does not accept" in said("2", central, places=("local",))
    assert "at a place that the owner does not accept" in said("3", split, places=("local",))
    assert said("4", local, places=("local",)) is None
    assert "in more parts than the owner accepts" in said("5", split, split_over=10**18)
    assert said("6", split, split_over=1000) is None
    assert "in more parts than the owner accepts" in said("7", split, split_over=11, parts=10)
    with pytest.raises(DataError, match=r"places must be among .* not \('here',\)"):
        Terms(places=("here",))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="bounding memory needs Linux")
def test_a_small_request_cannot_ask_for_any_amount_of_memory(tmp_path):
    node = Node(nodes.federation(2), tmp_path, terms=Terms(numbers=1000))
    limits, before = resource.getrlimit(resource.RLIMIT_DATA), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number, work in enumerate((Histogram(2 * 10**8), StartingPoints((2,), 10**8), Histogram(2**62))):
        said = node.ask(work, {}, number=number)[1]["refused"]
        assert "more memory than the owner allows" in said or "cannot begin (ValueError)" in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits
    assert "refused" not in node.ask(Histogram(3), number=9)[1]


def test_a_header_of_many_bytes_is_not_read(tmp_path):
    node = Node(nodes.federation(2), tmp_path)
    assert "torn, damaged or foreign" in node.ask(Histogram(3), more=[[]] * 2**21)[1]["refused"]


def test_the_least_whole_number_is_beyond_any_range(tmp_path):
    node = Node(nodes.federation(2), tmp_path)
    bad = {"counts": np.array([0, 0, np.iinfo(np.int64).min])}
    assert "beyond the owner's range" in node.ask(Histogram(3), bad)[1]["refused"]


def test_of_two_servers_that_took_up_one_run_the_first_is_heard_no_more(tmp_path):
    node = Node(nodes.federation(2), tmp_path)
    first, second, third = ("a" * 16, "b" * 16, "c" * 16)
    for number, (order, answered) in enumerate(
        (
            ((0, first, 5), True),
            ((0, first, 4), False),
            ((1, second, 0), True),
            ((0, first, 9), False),
            ((1, third, 0), True),  # from the same checkpoint as the second
            ((1, second, 9), False),
            ((1, third, 1), True),
            ((2, second, 0), True),
        )
    ):
        node.order = wire.Order(*order)
        said = node.ask(Histogram(3), number=number)[1].get("refused", "")
        assert said == ("" if answered else "refused: it is older than one that was answered before")


# -- a node that would like to spoil the run ---------------------------------------------------------------------------


class Spoiling(LocalGrid):
    """A grid in which node 2 changes its answers, or something on their way does."""

    change = staticmethod(lambda arrays, header: (arrays, header))

    def deliver(self, message):
        reply = super().deliver(message)[0]
        if unpacked(message)[1]["op"] != "run" or message.metadata.dst_node_id != 2:
            return [reply]
        return [Message(wire.enclose(codec.pack(*self.change(*unpacked(reply)))), reply_to=message)]


def spoiled(change):
    return type("Spoiled", (Spoiling,), {"change": staticmethod(change)})


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda a, h: (a, {**h, "grids": []}),
        lambda a, h: (a, {**h, "grids": {"counts": [1]}, "measure_grids": 7}),
        lambda a, h: ({**a, "total/ids": np.array(3)}, h),
        lambda a, h: ({**a, "total/ids": np.array(["c01", "c04"])}, h),
        lambda a, h: ({**a, "total/counts": a["total/counts"].astype(np.uint64)}, {**h, "clients": [1]}),
        lambda a, h: ({**a, "total/counts": np.array("text")}, h),
    ],
)
def test_whatever_one_node_answers_the_run_goes_on(change, private, tmp_path):
    fed = nodes.federation()
    engine = nodes.engine_of(fed, tmp_path, grid=spoiled(change), min_clients=1)
    privacy = Gaussian(clip=3.0, multiplier=1.0) if private else None
    done = next(rounds(Histogram(3), engine, n_rounds=1, privacy=privacy))
    assert dict(done.faults) in ({"corrupt": 1}, {})
    if not private:  # otherwise their number is noisy
        assert done.clients == (8 if done.faults else 12)
    if not private:
        wanted = fed if done.clients == 12 else fed.take([i for i in range(12) if i % 3 != 1])
        assert done.state["counts"].tolist() == wanted.counts("y", 3).sum(axis=0).tolist()


def test_answers_under_a_release_are_whole_numbers_of_one_kind(tmp_path):
    grid = spoiled(lambda a, h: ({**a, "total/counts": np.abs(a["total/counts"]).astype(np.uint64)}, h))
    engine = nodes.engine_of(nodes.federation(), tmp_path, grid=grid, min_clients=1)
    done = next(rounds(Histogram(3), engine, n_rounds=1, privacy=Gaussian(clip=3.0, multiplier=1.0)))
    assert dict(done.faults) == {"corrupt": 1}


def test_an_error_in_reading_an_answer_is_a_corrupt_answer(tmp_path, monkeypatch):
    engine = nodes.engine_of(nodes.federation(), tmp_path)

    def read(one, *_):
        raise ZeroDivisionError

    monkeypatch.setattr("fedscape.engines.flower.server.read_answer", read)
    done = next(rounds(Histogram(3), engine, n_rounds=1))
    assert done.abandoned
    assert dict(done.faults) == {"corrupt": 3}
    assert "its answer cannot be read (ZeroDivisionError)" in engine.troubles[0]


def test_a_torn_answer_is_waited_for_when_it_is_asked_for_again(tmp_path):
    """Over a grid that gives nothing at the first look."""

    class Slow(LocalGrid):
        looked, torn = (), False

        def pull_messages(self, message_ids):
            new = set(message_ids) - set(self.looked)
            self.looked = {*self.looked, *new}
            return super().pull_messages(set(message_ids) - new)

        def deliver(self, message):
            reply = super().deliver(message)[0]
            if unpacked(message)[1]["op"] != "run" or message.metadata.dst_node_id != 2 or self.torn:
                return [reply]
            self.torn = True
            return [Message(wire.enclose(b"torn"), reply_to=message)]

    engine = nodes.engine_of(nodes.federation(), tmp_path, grid=Slow, timeout=20.0)
    done = list(rounds(Histogram(3), engine, n_rounds=2))
    assert [(r.clients, dict(r.faults)) for r in done] == [(12, {})] * 2
    assert not engine.troubles


def test_a_fit_in_which_nothing_was_computed_is_an_error(tmp_path):
    mixture = MixtureOfDirichletMultinomials(2, n_categories=3, n_init=1, rounds=2)
    for number, work in enumerate((Histogram(3), Moments(column="y"), mixture)):
        engine = nodes.engine_of(nodes.federation(), tmp_path / str(number), min_clients=100)
        with pytest.raises(TooFewClients, match=r"in every round of \w+ \(min_clients is 100\), so that nothing was"):
            work.fit(engine)


@pytest.mark.parametrize("privacy", [Gaussian(clip=1.0, multiplier=1e-3), Laplace(clip=1.0, epsilon=1e3)])
def test_a_sum_longer_than_all_clips_together_is_left_out(privacy, tmp_path):
    """Each number of it could be a clipped client's; all of them together could not."""

    def every_number_at_the_clip(arrays, header):
        cells = int(0.999 * len(fed) / 3 / header["grids"]["counts"])
        return {**arrays, "total/counts": np.full(1000, cells)}, header

    fed = Federation({"y": np.arange(12) % 3}, np.arange(13))
    engine = nodes.engine_of(fed, tmp_path, grid=spoiled(every_number_at_the_clip))
    done = next(rounds(Histogram(1000), engine, n_rounds=1, privacy=privacy))
    assert dict(done.faults) == {"corrupt": 1}
    assert "more than 4 clipped clients can have" in engine.troubles[0]
    assert np.abs(done.state["counts"]).sum() == pytest.approx(8.0, abs=2.0)


def test_the_longest_sum_of_clipped_clients_is_taken():
    for privacy in (Gaussian(clip=2.0, multiplier=3.0, scales={"b": 5.0}), Laplace(clip=2.0, epsilon=3.0)):
        fed = Federation({}, np.zeros(8, dtype=int))
        rng = np.random.default_rng(0)
        for sign in (1.0, -1.0):  # all alike, far beyond the clip
            release = Release(privacy, 2.0, b"k", False, 1)
            rows = release.on_clients(
                {"a": np.tile(sign * rng.exponential(100, 5), (7, 1)), "b": np.full((7, 2, 2), 300.0)}, fed
            )
            release.check_sum({name: values.sum(axis=0) for name, values in rows.items()}, 7)


class Refusing(LocalGrid):
    """A grid on which some nodes refuse, in words of their own."""

    nodes = (1,)

    def deliver(self, message):
        about = unpacked(message)[1]
        if about["op"] != "run" or message.metadata.dst_node_id not in self.nodes:
            return super().deliver(message)
        request = wire.digest(wire.disclose(message.content, 2**30))
        said = {"format": wire.FORMAT, "request": request, "refused": "no\nround 9, node 3: forged \u202e" + "!" * 999}
        return [Message(wire.enclose(codec.pack({}, said)), reply_to=message)]


class Alone:
    """A sampler whose second cohort lies on the first node alone, and whose fourth on the others."""

    def draw(self, clients, key):
        return np.array({1: [0, 3, 6, 9], 3: [1, 2, 4, 5]}.get(key.round, range(12)))


def test_a_node_that_refuses_does_not_end_the_run_of_the_others(tmp_path):
    engine = nodes.engine_of(nodes.federation(), tmp_path, grid=Refusing)
    done = list(rounds(Histogram(3), engine, n_rounds=3, sampler=Alone()))
    assert [(r.clients, r.abandoned, dict(r.faults)) for r in done] == [
        (8, False, {"refused": 1}),
        (0, True, {"refused": 1}),
        (8, False, {"refused": 1}),
    ]
    assert engine.troubles[0].startswith("round 0, node 1: refused: no\\nround 9, node 3: forged \\u202e!")
    assert len(engine.troubles[0]) < 300


def test_nodes_that_all_refuse_end_the_run_also_where_no_cohort_has_all_of_them(tmp_path):
    engine = nodes.engine_of(nodes.federation(), tmp_path, grid=type("All", (Refusing,), {"nodes": (1, 2, 3)}))
    loop = rounds(Histogram(3), engine, n_rounds=4, sampler=Alone())
    loop.index = 1
    assert next(loop).abandoned
    loop.index = 3
    with pytest.raises(EngineError, match="round 3: every node refused; round 3, node 3: refused: no"):
        next(loop)
