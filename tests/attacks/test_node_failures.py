"""A server that learns about rows from what fails on a node, and how."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from asking import Asker

from fedscape import Computation, Federation, Flower, Gaussian, Histogram, rounds
from fedscape.engines.flower import LocalGrid, Terms, client_app
from fedscape.engines.flower.node_store import FAILURES

STRICT = Terms(epsilon=0.01, unnoised=0, places=("local",))
LOCAL = Gaussian(clip=1.0, multiplier=1e5, place="local")


def names(number):
    return f"{number:032x}"


def test_bisection_reads_no_salary(tmp_path):
    """Histogram(k) fails exactly if a value is at least k: seventeen questions read a salary."""
    salary = 73_412
    node = Asker(Federation({"salary": [salary]}, [0, 1], ids=["a"]), tmp_path, terms=STRICT)
    low, high, forms = 1, 2**17, set()
    while low < high:
        middle = (low + high) // 2
        arrays, about = node.ask(Histogram(middle, column="salary"), run=names(middle), privacy=LOCAL)
        answered = "total/counts" in arrays
        forms.add((tuple(sorted(about)), answered, about.get("clients"), about.get("keeps")))
        if answered:  # the answer has the shape that was asked for, whatever the rows
            assert arrays["total/counts"].shape == (middle,)
            assert arrays["total/counts"].dtype == np.int64
        low, high = (low, middle) if answered else (middle + 1, high)
    assert low != salary + 1
    assert forms == {(("clients", "format", "grids", "keeps", "measure_grids"), True, 1, False)}
    assert node.releases == 17
    assert all("salary" in line["asked"] and line["columns"] == ["salary"] for line in node.log)


@pytest.mark.parametrize("value", [0, 5, 10**6, -3])
def test_replies_have_one_size_and_one_form_whatever_the_rows(value, tmp_path):
    """Other bytes of the reply than the noised sum are the same to the last one."""
    fed = Federation({"y": np.array([value] * 3), "x": np.full((3, 2), float(value))}, [0, 3], ids=["a"])
    replies = []
    for i, data in enumerate((fed, Federation({"y": [0], "x": np.zeros((1, 2))}, [0, 1], ids=["a"]))):
        node = Asker(data, tmp_path / str(i), terms=Terms())
        arrays, about = node.ask(Histogram(4), privacy=LOCAL)
        replies.append((len(node.bytes), about, {n: (v.shape, v.dtype) for n, v in arrays.items()}))
    assert replies[0] == replies[1]


# -- what fails all the same -------------------------------------------------------------------------------------------


def broken_loads():
    def missing(context):
        raise FileNotFoundError("/secret/path/of/Annabel")

    def full(context):
        raise MemoryError

    return {
        "a file": missing,
        "memory": full,
        "no federation": lambda context: [73_412],
        "exit": lambda context: sys.exit("73412"),
    }


def test_what_fails_looks_the_same_whatever_it_was(tmp_path):
    fed = Federation({"y": [1]}, [0, 1], ids=["a"])
    heard = {}
    for number, (name, load) in enumerate(broken_loads().items()):
        node = Asker(fed, tmp_path / str(number), load=load, terms=STRICT)
        node.ask(Histogram(3), privacy=LOCAL)
        heard[name] = node.bytes
        assert node.log[-1]["outcome"] == "failed"
        assert "histogram" in node.log[-1]["asked"]
    node = Asker(fed, tmp_path / "disk", terms=STRICT)
    (tmp_path / "disk" / "runs").mkdir(parents=True)
    (tmp_path / "disk" / "runs" / ("0" * 32)).write_text("a file where a folder must be")
    node.ask(Histogram(3), privacy=LOCAL)
    heard["disk"] = node.bytes
    assert node.releases == 1  # it was entered before it failed, and is paid for
    assert len(set(heard.values())) == 1
    assert b"Annabel" not in heard["a file"]
    assert b"Error" not in heard["a file"]


def test_a_run_that_failed_is_not_answered_again_also_by_other_processes(tmp_path):
    good = Federation({"y": [1]}, [0, 1], ids=["a"])
    broken = [True]

    def load(context):
        return 1 / 0 if broken[0] else good

    node = Asker(good, tmp_path, load=load, terms=STRICT)
    assert node.ask(Histogram(3), privacy=LOCAL)[1] == {"format": 2, "away": True}
    broken[0] = False
    assert node.ask(Histogram(3), privacy=LOCAL)[1] == {"format": 2, "away": True}
    other = Asker(good, tmp_path, terms=STRICT)
    other.number = 5
    assert other.ask(Histogram(3), privacy=LOCAL)[1] == {"format": 2, "away": True}
    assert "total/counts" in other.ask(Histogram(3), run="1" * 32, privacy=LOCAL)[0]
    assert "division by zero" in node.log[0]["why"]
    assert "failed before" in node.log[1]["why"]


def test_failures_are_limited_over_all_runs_and_their_list_is_short(tmp_path):
    """A server that takes a new run for each question learns one bit of each of a few, and no more."""
    fed = Federation({"y": [1]}, [0, 1], ids=["a"])
    failing = Asker(fed, tmp_path, load=lambda context: 1 / 0)
    for number in range(FAILURES + 9):
        failing.ask(Histogram(3), run=names(number))
    assert len(json.loads((tmp_path / "failed.json").read_text())) == FAILURES
    sound = Asker(fed, tmp_path)
    assert sound.ask(Histogram(3), run=names(10**6))[1] == {"format": 2, "away": True}
    (tmp_path / "failed.json").unlink()  # the owner has looked
    assert "total/counts" in sound.ask(Histogram(3), run=names(10**6))[0]


def test_a_process_that_is_killed_counts_as_well(tmp_path):
    code = f"""
import os, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from pathlib import Path
from asking import Asker
from fedscape import Federation, Histogram
fed = Federation({{"y": [1]}}, [0, 1], ids=["a"])
node = Asker(fed, Path({str(tmp_path)!r}), load=lambda context: os.kill(os.getpid(), signal.SIGKILL))
node.number = int(sys.argv[1])
node.ask(Histogram(3))
"""
    fed = Federation({"y": [1]}, [0, 1], ids=["a"])
    node = Asker(fed, tmp_path)
    for _ in range(3):
        assert "total/counts" in node.ask(Histogram(3))[0]  # a machine may stop now and then
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(node.number)], check=False)
        assert done.returncode == -signal.SIGKILL
    assert node.ask(Histogram(3))[1] == {"format": 2, "away": True}


def test_refusals_are_no_failures(tmp_path):
    node = Asker(Federation({"y": [1]}, [0, 1], ids=["a"]), tmp_path, terms=STRICT)
    for number in range(5):
        assert "without noise" in node.ask(Histogram(3))[1]["refused"], number
    assert "does not hold" in node.ask(Histogram(3), privacy=LOCAL, cohort=np.array(["b"]))[1]["refused"]
    assert "total/counts" in node.ask(Histogram(3), privacy=LOCAL)[0]
    assert json.loads((tmp_path / "failed.json").read_text()) == {}


def test_categories_that_only_some_nodes_have_do_not_show_in_the_rehearsal(tmp_path):
    """The rehearsal knows names and types of columns, not the texts that occur in them."""
    from fedscape.engines.flower.rehearsal import nobody_like

    here = Federation({"t": np.array(["Annabel", "b"])}, [0, 2], ids=["a"])
    empty = Federation({"t": np.array(["Annabel", "b"])}, [0, 2], ids=["a"]).where(np.array([False, False]))
    assert nobody_like(here).names == nobody_like(empty).names == {"t": ("nobody",)}


def test_a_loop_that_reads_beyond_an_array_is_found_under_a_release_too(tmp_path):
    """Engines hide what fails under a release; the rehearsal must not, or compiled loops read foreign memory."""
    node = Asker(Federation({"y": [0]}, [0, 1], ids=["a"]), tmp_path, computations=(Look(),))
    said = node.ask(Look(), privacy=LOCAL)[1]["refused"]
    assert "a state that does not fit the computation (IndexError)" in said
    assert "total/out" in node.ask(Look(), state={"table": np.zeros(1)}, privacy=LOCAL)[0]


class Look(Computation):
    """Sums what a table, filled later, has for each row."""

    def start(self, seed):
        return {"table": np.zeros(0)}

    def step(self, state, clients, key):
        return {"out": clients.segment_sum(np.array([state["table"][code] for code in clients["y"]]))}, {}

    def update(self, state, total, key):
        return state


class Rowwise(Computation):
    """A computation of a careless owner: what it sends has the shape of the rows."""

    def start(self, seed):
        return {"n": np.zeros(())}

    def step(self, state, clients, key):
        return {"n": np.zeros((len(clients), max(int(clients["y"].max(initial=0)), 1)))}, {}

    def update(self, state, total, key):
        return {"n": state["n"]}


def test_an_answer_whose_shape_depends_on_rows_does_not_leave(tmp_path):
    node = Asker(Federation({"y": [7]}, [0, 1], ids=["a"]), tmp_path, computations=(Rowwise(),))
    assert node.ask(Rowwise(), privacy=LOCAL) == ({}, {"format": 2, "away": True})
    assert "would tell about rows" in node.log[-1]["why"]
    assert node.releases == 1


# -- the server's side -------------------------------------------------------------------------------------------------


class Counting(LocalGrid):
    asked = 0

    def deliver(self, message):
        self.asked += 1
        return super().deliver(message)


def test_the_server_takes_it_for_a_node_that_is_away_and_does_not_ask_again(tmp_path):
    fed = Federation({"y": np.arange(12) % 3}, np.arange(13))
    broken = [False]

    def load(context):
        if broken[0] and context.node_id == 2:
            raise ValueError("73412")
        return fed.take(np.arange(context.node_id - 1, 12, 3))

    grid = Counting(client_app(load, folder=lambda context: tmp_path / str(context.node_id)), [{}] * 3)
    engine = Flower(grid, min_clients=1, poll=0.001, timeout=0.05, attempts=3)
    broken[0], grid.asked = True, 0
    done = list(rounds(Histogram(3), engine, n_rounds=2, privacy=Gaussian(clip=3.0, multiplier=1.0)))
    assert [dict(r.faults) for r in done] == [{"missing": 1}] * 2
    assert grid.asked == 6
    assert engine.troubles[0] == "round 0, node 2: missing: it cannot answer in this run, its own log says why"
