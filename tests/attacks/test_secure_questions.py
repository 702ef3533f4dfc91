"""Masked sums against a server that asks nodes different things: a total is then one node's sum plus what it knows."""

from __future__ import annotations

import numpy as np
import pytest

import fedscape as fs
from fedscape.core import codec
from fedscape.engines.flower import LocalGrid, Terms, client_app, wire
from fedscape.engines.flower.node_store import log_entries
from fedscape.secure.two_servers import SecondServer

NODES = 6
SECURE = {
    "sum": lambda: fs.SecureSum(dropouts=0.34, colluders=0.0),
    "two": lambda: fs.TwoServers(helper=SecondServer()),
}


def population() -> fs.Federation:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    return fs.Federation({"y": y, "z": np.zeros(60, dtype=np.int64)}, np.arange(0, 61, 10))


class TwoFaced(LocalGrid):
    """A grid that changes requests on their way to some nodes; their replies look like replies to the original."""

    def __init__(self, *how) -> None:
        super().__init__(*how)
        self.victims: set[int] = set()  # nodes that get the original request
        self.change = lambda header, arrays: None

    def deliver(self, message):
        blob = wire.disclose(message.content)
        arrays, header = wire.read(blob)
        if header["op"] != "run" or message.metadata.dst_node_id in self.victims:
            return super().deliver(message)
        arrays = dict(arrays)
        self.change(header, arrays)
        order = wire.order_of(message.content)
        message.content["fedscape"] = wire.enclose(codec.pack(arrays, header), order)["fedscape"]
        replies = super().deliver(message)
        answered, about = wire.read(wire.disclose(replies[0].content))
        about["request"] = wire.digest(blob)
        replies[0].content["fedscape"] = wire.enclose(codec.pack(answered, about))["fedscape"]
        return replies


def engine_of(tmp_path, secure, terms=None) -> fs.Flower:
    fed = population()
    app = client_app(
        lambda context: fed.take([context.node_id - 1]),
        folder=lambda context: tmp_path / str(context.node_id),
        terms=terms or Terms(),
    )
    return fs.Flower(TwoFaced(app, [{}] * NODES), min_clients=2, poll=0.001, timeout=0.05, secure=secure)


def opened(engine, computation, privacy=None) -> dict[str, np.ndarray] | None:
    """The state after one round; None if the round was abandoned."""
    done = next(fs.rounds(computation, engine, n_rounds=1, privacy=privacy))
    return None if done.abandoned else done.state


def another_column(header, arrays) -> None:
    header["computation"]["parameters"]["column"] = "z"  # all zeros: a histogram that the server knows


@pytest.mark.parametrize("kind", SECURE)
def test_a_node_that_is_asked_alone_stays_hidden(kind, tmp_path):
    """Node 1 is asked for y, the others for a column of zeros: the bins 1 and 2 of the total are node 1's."""
    engine = engine_of(tmp_path, SECURE[kind]())
    engine.grid.victims, engine.grid.change = {1}, another_column
    state = opened(engine, fs.Histogram(3))
    own = np.bincount(population()["y"][:10], minlength=3)
    assert state is None or not np.array_equal(state["counts"][1:], own[1:])
    engine.grid.change = lambda header, arrays: None
    honest = opened(engine, fs.Histogram(3))
    assert np.array_equal(honest["counts"], np.bincount(population()["y"], minlength=3))


def test_noise_split_over_parties_that_nobody_adds_up_is_not_opened(tmp_path):
    """All nodes are told that 500 share the noise, the helper that three do: five sixths of a percent would be left."""
    engine = engine_of(tmp_path, fs.TwoServers(helper=SecondServer()))

    def thin(header, arrays) -> None:
        header["release"]["min_clients"] = header["secure"]["least"] = header["secure"]["parties"] = 500

    engine.grid.change = thin
    privacy = fs.Gaussian(clip=5.0, multiplier=1.0, place="distributed")
    assert opened(engine, fs.Histogram(3), privacy) is None
    assert all("not signed for this round and question" in trouble for trouble in engine.troubles)


BAD = [
    {"parties": 0},
    {"parties": -3},
    {"parties": 1.5},
    {"least": 1},
    {"least": 7},
    {"least": True},
    {"colluders": 2.0},
    {"colluders": "few"},
    {"session": "none"},
    {"index": -1},
    {"bounds": 0.0},
    {"helper": "ab"},
    {"kind": "three"},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_rounds_that_cannot_be_are_refused_before_rows_are_read(bad, tmp_path):
    engine = engine_of(tmp_path, fs.TwoServers(helper=SecondServer()))
    engine.grid.change = lambda header, arrays: header["secure"].update(bad)
    with pytest.raises(fs.EngineError, match="every node refused"):
        fs.Histogram(3).fit(engine)
    assert {log_entries(tmp_path / str(node))[-1]["outcome"] for node in range(1, NODES + 1)} == {"refused"}


@pytest.mark.parametrize(
    ("terms", "secure", "why"),
    [
        (Terms(smallest=4), fs.TwoServers(least=3), "fewer honest nodes than the owner demands"),
        (Terms(smallest=4), fs.TwoServers(least=4), ""),
        (Terms(colluders=0.1), fs.TwoServers(least=4), "fewer colluding nodes than the owner demands"),
        (Terms(colluders=0.1), fs.TwoServers(least=4, colluders=0.1), ""),
        (Terms(smallest=4), fs.SecureSum(dropouts=0.34, colluders=0.0), "fewer honest nodes than the owner demands"),
        (Terms(smallest=4), fs.SecureSum(dropouts=0.1, colluders=0.0), ""),
        (Terms(colluders=0.1), fs.SecureSum(dropouts=0.1, colluders=0.0), "fewer colluding nodes than the owner"),
        (Terms(colluders=0.1), fs.SecureSum(dropouts=0.1, colluders=0.1), ""),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else type(value).__name__,
)
def test_an_owner_can_ask_for_a_smallest_sum_and_for_colluders(terms, secure, why, tmp_path):
    engine = engine_of(tmp_path, secure, terms)
    if not why:
        counts = fs.Histogram(3).fit(engine).counts_
        assert np.array_equal(counts, np.bincount(population()["y"], minlength=3))
        return
    with pytest.raises(fs.EngineError, match=r"every node refused|so that nothing was counted"):
        fs.Histogram(3).fit(engine)
    assert why in log_entries(tmp_path / "1")[-1]["why"]


class LyingHelper(SecondServer):
    """A second server that adds something to the sum of masks, or does not answer."""

    lie = 0
    away = False

    def sum_masks(self, round_, packages):
        if self.away:
            raise fs.EngineError("the second server does not answer")
        return super().sum_masks(round_, packages) + np.uint64(self.lie)


def test_a_helper_that_is_away_or_lies_beyond_the_range_costs_a_round_and_a_small_lie_is_not_seen(tmp_path):
    helper = LyingHelper()
    engine = engine_of(tmp_path, fs.TwoServers(helper=helper))
    truth = np.bincount(population()["y"], minlength=3)
    loop = fs.rounds(fs.Histogram(3), engine, n_rounds=4)
    helper.away = True
    assert next(loop).abandoned
    helper.away, helper.lie = False, 2**63
    done = next(loop)
    assert done.abandoned
    assert done.faults["corrupt"] == 1
    helper.lie = 2
    assert np.array_equal(next(loop).state["counts"], truth - 2)  # as docs/secure-sums.md says
    helper.lie = 0
    assert np.array_equal(next(loop).state["counts"], truth)


def test_under_a_release_a_helpers_lie_is_seen_if_clipped_clients_cannot_have_the_sum(tmp_path):
    helper = LyingHelper()
    engine = engine_of(tmp_path, fs.TwoServers(helper=helper))
    helper.lie = 2**50
    assert opened(engine, fs.Histogram(3), fs.Gaussian(clip=5.0, multiplier=1.0)) is None
