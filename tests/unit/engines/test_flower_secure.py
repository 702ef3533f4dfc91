"""Secure sums over Flower's messages: plain totals whoever drops out, the bytes of Local, what a lying server gets."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import fedscape as fs
from fedscape.core import codec
from fedscape.engines.flower import LocalGrid, Terms, wire
from fedscape.engines.flower.library import Message
from fedscape.engines.flower.node_store import log_entries
from fedscape.engines.flower.secure_node import KEY, PEERS, verifying_key
from fedscape.errors import PrivacyError
from fedscape.secure.primitives import random_seed, verifier_of

_spec = importlib.util.spec_from_file_location("nodes", Path(__file__).with_name("nodes.py"))
nodes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(nodes)
engine_of, federation, Remember = nodes.engine_of, nodes.federation, nodes.Remember

SECURE = fs.SecureSum(dropouts=0.34, colluders=0.0)


class Recording(LocalGrid):
    """A grid that counts messages by what they ask for, and loses some: `lost` has (op, node)."""

    def __init__(self, *how):
        super().__init__(*how)
        self.seen: list[tuple[str, int, bytes, bytes]] = []
        self.lost: set[tuple[str, int]] = set()

    def deliver(self, message):
        blob = wire.disclose(message.content)
        node, op = message.metadata.dst_node_id, wire.read(blob)[1]["op"]
        if (op, node) in self.lost:
            return []
        reply = super().deliver(message)
        self.seen.append((op, node, blob, wire.disclose(reply[0].content)))
        return reply

    def asks(self, node: int, header: dict, arrays: dict | None = None) -> dict:
        """What a server that lies hears from a node."""
        blob = codec.pack(arrays or {}, header)
        order = wire.Order(0, "0" * 16, 10**6 + len(self.seen))
        message = Message(wire.enclose(blob, order), dst_node_id=node, message_type="query.fedscape")
        self.push_messages([message])
        return wire.read(wire.disclose(LocalGrid.deliver(self, message)[0].content))[1]

    def last(self, op: str, node: int) -> tuple[dict, dict]:
        """The last request of this kind to a node: arrays and header."""
        return wire.read([blob for o, n, blob, _ in self.seen if (o, n) == (op, node)][-1])


class Shows(fs.Histogram):
    reveals = ("counts",)


def masked(tmp_path, *, n: int = 6, clients: int = 12, secure=SECURE, **how):
    fed = federation(clients)
    return fed, engine_of(fed, tmp_path, nodes=n, grid=Recording, secure=secure, **how)


def test_a_round_takes_two_messages_more_and_with_a_second_server_none(tmp_path):
    for secure, wanted in ((SECURE, {"share": 6, "run": 6, "unmask": 6}), (fs.TwoServers(), {"run": 6})):
        _, engine = masked(tmp_path / type(secure).__name__, secure=secure)
        before = len(engine.grid.seen)
        fs.Histogram(3).fit(engine)
        assert Counter(op for op, *_ in engine.grid.seen[before:]) == wanted


@pytest.mark.parametrize("stage", ["share", "run", "unmask"])
@pytest.mark.parametrize("gone", [(2,), (1, 6)])
def test_nodes_that_drop_out_at_any_stage_leave_the_plain_sum_of_the_others(stage, gone, tmp_path):
    fed, engine = masked(tmp_path)
    engine.grid.lost = {(stage, node) for node in gone}
    histogram = fs.Histogram(3).fit(engine)
    there = [i for i in range(12) if stage == "unmask" or i % 6 + 1 not in gone]
    assert np.array_equal(histogram.counts_, fs.Histogram(3).fit(fed.take(there)).counts_)
    assert histogram.history_["missing"] == [len(gone)]
    assert histogram.history_["clients"] == [len(there)]


def test_with_too_many_gone_the_round_is_abandoned_nothing_is_opened_and_the_next_one_works(tmp_path):
    fed, engine = masked(tmp_path)
    loop = fs.rounds(fs.Histogram(3), engine, n_rounds=4)
    for stage in ("share", "run", "unmask"):
        engine.grid.lost = {(stage, node) for node in (1, 2, 3)}
        before = len(engine.grid.seen)
        done = next(loop)
        assert done.abandoned
        assert done.faults["missing"] == 3
        asked = {op for op, *_ in engine.grid.seen[before:]}
        assert "unmask" not in asked or stage == "unmask"
    engine.grid.lost = set()
    assert np.array_equal(next(loop).state["counts"], fs.Histogram(3).fit(fed).counts_)


@pytest.mark.parametrize("secure", [SECURE, fs.TwoServers()], ids=["sum", "two"])
def test_a_mixture_fitted_privately_has_the_bytes_of_local(secure, tmp_path):
    fed, engine = masked(tmp_path, secure=secure)
    privacy = fs.Gaussian(clip=1.5, multiplier=1.0, noise_seed=3)

    def fit(where):
        mixture = fs.MixtureOfDirichletMultinomials(2, n_init=1, rounds=2, column="y", n_categories=3, seed=0)
        return mixture.fit(where, privacy=privacy)

    plain, hidden = fit(fs.Local(fed, min_clients=2)), fit(engine)
    assert engine.troubles == []
    assert hidden.concentrations_.tobytes() == plain.concentrations_.tobytes()
    assert hidden.weights_.tobytes() == plain.weights_.tobytes()


@pytest.mark.parametrize("secure", [SECURE, fs.TwoServers()], ids=["sum", "two"])
def test_what_nodes_send_is_masked_and_their_sum_is_not_in_it(secure, tmp_path):
    _, engine = masked(tmp_path, secure=secure)
    fs.Histogram(3).fit(engine)
    fs.Histogram(3).fit(engine)  # the same counts, other words
    words = [wire.read(reply)[0] for op, _, _, reply in engine.grid.seen if op == "run"]
    assert all(set(arrays) == {"masked"} for arrays in words)
    values = np.array([arrays["masked"] for arrays in words])
    assert len(np.unique(values)) == values.size
    assert (values > 2**40).mean() > 0.9  # counts are below 100


def test_what_clients_keep_is_theirs_and_a_lost_answer_does_not_part_them(tmp_path):
    fed = federation(12)
    engine = engine_of(fed, tmp_path, nodes=6, grid=Recording, secure=SECURE, own=[Remember()])
    loop = fs.rounds(Remember(), engine, n_rounds=3)
    next(loop)
    engine.grid.lost = {("unmask", node) for node in (1, 2, 3)}
    assert next(loop).abandoned
    engine.grid.lost = set()
    hidden = next(loop).state["past"]
    plain = fs.rounds(Remember(), fs.Local(fed), n_rounds=3)
    first = next(plain).state
    kept = fs.Local(fed)
    kept_loop = fs.rounds(Remember(), kept, n_rounds=3)
    next(kept_loop)
    # the abandoned round left no trace: the third step adds to what the first kept
    reply = kept.run(Remember(), first, np.arange(12), fs.Key(0, 2))
    assert float(hidden) == pytest.approx(float(first["past"] + reply.total["sum"]), abs=1e-9)


def test_a_node_with_other_columns_is_left_out_and_not_fatal(tmp_path):
    fed = federation(12)
    odd = fs.Federation({"y": fed["y"], "extra": fed["y"]}, fed.offsets, ids=fed.ids)
    from fedscape.engines.flower import client_app

    def load(context):
        mine = np.arange(context.node_id - 1, 12, 6)
        return fed.take(mine) if context.node_id != 4 else odd.take(mine).select(["extra"])

    app = client_app(load, folder=lambda context: tmp_path / str(context.node_id))
    engine = fs.Flower(LocalGrid(app, [{}] * 6), min_clients=2, poll=0.001, timeout=0.05, secure=SECURE)
    histogram = fs.Histogram(3, column="y").fit(engine)
    assert histogram.history_["clients"] == [10]
    assert len(engine.troubles) == 1


def test_settings_that_reveal_or_are_too_few_are_refused_before_anything_is_asked(tmp_path):
    _, engine = masked(tmp_path)
    before = len(engine.grid.seen)

    with pytest.raises(PrivacyError, match="lets the server see counts client by client"):
        engine.run(Shows(3), {}, np.arange(12), fs.Key(0))
    with pytest.raises(PrivacyError, match="not safe for a cohort of 2 "):
        engine.run(fs.Histogram(3), fs.Histogram(3).start(0), np.array([0, 1, 6, 7]), fs.Key(0))
    assert len(engine.grid.seen) == before


# -- a server that lies ------------------------------------------------------------------------------------------------


def refusal(said: dict) -> str:
    assert "answer" not in said
    return said["refused"]


def test_a_node_is_not_asked_twice_nor_about_lists_that_overlap(tmp_path):
    _, engine = masked(tmp_path)
    fs.Histogram(3).fit(engine)
    grid = engine.grid
    _, unmask = grid.last("unmask", 1)
    again = {**unmask, "living": [u for u in unmask["living"] if u != 3], "dead": [3]}
    assert "already done: nothing is answered twice" in refusal(grid.asks(1, again))
    _, share = grid.last("share", 1)
    assert "round 0 was begun before" in refusal(grid.asks(1, {**share, "how": {**share["how"], "dropouts": 0.2}}))
    grid.asks(1, {**share, "index": 5})  # a round of another number
    assert "was not begun here" in refusal(grid.asks(1, again))
    assert [line["asked"] for line in log_entries(tmp_path / "1")][-1] == "secure sum: unmask"


def begun(engine, index: int) -> dict[str, list[str]]:
    """Let a server that lies share keys with all nodes, and stop there; what node 1 must be sent next."""
    answers = {}
    for node in range(1, 7):
        _, header = engine.grid.last("share", node)
        answers[node] = engine.grid.asks(node, {**header, "index": index})["answer"]
    return {str(node - 1): [said["public"], said["packages"]["0"]] for node, said in answers.items() if node != 1}


def test_a_round_without_its_neighbours_keys_and_an_unmasking_before_it_are_refused_before_rows_are_read(tmp_path):
    _, engine = masked(tmp_path)
    fs.Histogram(3).fit(engine)
    begun(engine, 7)
    arrays, run = engine.grid.last("run", 1)
    _, unmask = engine.grid.last("unmask", 1)
    few = {**run, "number": 50, "secure": {**run["secure"], "index": 7, "received": {}}}
    assert "0 of 5 neighbours sent keys, 3 must" in refusal(engine.grid.asks(1, few, arrays))
    old = {**run, "number": 51, "secure": {**run["secure"], "index": 7}}
    assert "not for this client, round, roster and cohort" in refusal(engine.grid.asks(1, old, arrays))
    assert "already shared" in refusal(engine.grid.asks(1, {**unmask, "index": 7}))
    assert [line["outcome"] for line in log_entries(tmp_path / "1")][-3:] == ["refused"] * 3


def test_a_cohort_of_one_another_roster_and_softer_parameters_are_refused(tmp_path):
    _, engine = masked(tmp_path, terms=Terms(smallest=2))
    fs.Histogram(3).fit(engine)
    _, share = engine.grid.last("share", 1)
    about = {**share, "index": 9}
    assert "not safe for a cohort of 1 " in refusal(engine.grid.asks(1, {**about, "cohort": [0]}))
    assert "at least 3 are needed" in refusal(engine.grid.asks(1, {**about, "roster": share["roster"][:2]}))
    known = [verifying_key(tmp_path / str(node)).hex() for node in range(1, 7)]
    (tmp_path / "1" / PEERS).write_text("\n".join(f"{key} # node" for key in known[:5]))
    assert "who is not on this node's roster" in refusal(engine.grid.asks(1, about))
    (tmp_path / "1" / PEERS).write_text("\n".join(known))
    swapped = [[*share["roster"][5][:1], os.urandom(32).hex(), share["roster"][5][2]]]
    forged = {**about, "roster": [*share["roster"][:5], *swapped]}
    assert "is not signed for this run" in refusal(engine.grid.asks(1, forged))
    (tmp_path / "1" / PEERS).write_text("no key")
    assert "roster.txt cannot be read" in refusal(engine.grid.asks(1, about))


def test_an_owner_can_demand_masks_a_roster_and_honest_nodes(tmp_path):
    fed = federation(12)
    strict = Terms(secure=True, smallest=2)
    with pytest.raises(fs.EngineError, match="every node refused"):
        fs.Histogram(3).fit(engine_of(fed, tmp_path / "plain", nodes=6, terms=strict))
    assert log_entries(tmp_path / "plain" / "1")[-1]["why"].startswith("a sum that would leave unmasked")
    engine = engine_of(fed, tmp_path / "bare", nodes=6, terms=strict, secure=SECURE)
    with pytest.raises(fs.EngineError, match=r"every node|so that nothing was counted"):
        fs.Histogram(3).fit(engine)
    assert "for a node that has no roster.txt" in log_entries(tmp_path / "bare" / "1")[-1]["why"]
    keys = [random_seed() for _ in range(6)]
    for i, key in enumerate(keys):
        folder = tmp_path / "known" / str(i + 1)
        folder.mkdir(parents=True)
        (folder / KEY).write_text(key.hex())
        (folder / PEERS).write_text("\n".join(verifier_of(k).hex() for k in keys))
    known = engine_of(fed, tmp_path / "known", nodes=6, terms=strict, secure=SECURE)
    assert np.array_equal(fs.Histogram(3).fit(known).counts_, fs.Histogram(3).fit(fed).counts_)
    demanding = engine_of(fed, tmp_path / "more", nodes=6, terms=Terms(colluders=0.2), secure=SECURE)
    with pytest.raises(fs.EngineError):
        fs.Histogram(3).fit(demanding)
    assert "fewer colluding nodes than the owner demands" in log_entries(tmp_path / "more" / "1")[-1]["why"]


def test_noise_split_into_more_parts_than_a_sum_holds_is_refused(tmp_path):
    _, engine = masked(tmp_path)
    privacy = fs.Gaussian(clip=5.0, multiplier=1.0, place="distributed")
    fs.Histogram(3).fit(engine, privacy=privacy)
    arrays, run = engine.grid.last("run", 1)
    said = {**run, "number": 50, "secure": {**run["secure"], "index": 7, "received": begun(engine, 7)}}
    more = {**said, "release": {**run["release"], "min_clients": 3}}
    assert "more parts than the smallest sum that can be opened" in refusal(engine.grid.asks(1, more, arrays))
    assert "form" in engine.grid.asks(1, said, arrays)  # with as many as there are it is answered
    ledger = [line["entry"] for line in fs.Ledger(tmp_path / "1" / "ledger.jsonl").entries() if "entry" in line]
    assert ledger[-1]["note"] == "masked: any sum that can be opened holds 2 parts of the noise, which is all"


def test_a_node_of_many_clients_adds_one_part_of_the_noise(tmp_path):
    """Six nodes of 10 clients: the noise is that of 6 parts of which 2 make up the whole."""
    n = 60
    fed = fs.Federation({"y": np.zeros(0, dtype=np.int64)}, [0] * (n + 1), ids=[f"c{i:02d}" for i in range(n)])
    engine = engine_of(fed, tmp_path, nodes=6, secure=SECURE)
    privacy = fs.Gaussian(clip=1.0, multiplier=100.0, place="distributed")
    counts = fs.Histogram(2000).fit(engine, privacy=privacy).counts_
    wanted = 100.0**2 * 6 / SECURE.smallest(6)
    assert abs(np.mean(counts**2) / wanted - 1) < 5 * np.sqrt(2 / 2000)


def test_keys_and_shares_on_a_nodes_disk_are_its_owners(tmp_path):
    _, engine = masked(tmp_path)
    fs.Histogram(3).fit(engine)
    files = [tmp_path / "1" / KEY, *(tmp_path / "1" / "secure").glob("*.json")]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    turn = json.loads(files[1].read_text())["turn"]
    assert turn["stage"] == "done"
    assert not turn["held"]
    assert not turn["b"]  # nothing is left that could be opened later


def test_another_second_server_than_the_node_knows_is_refused(tmp_path):
    from fedscape.secure.two_servers import SecondServer

    helper = SecondServer()
    fed, engine = masked(tmp_path, secure=fs.TwoServers(helper=helper))
    for node in range(1, 7):
        (tmp_path / str(node) / "helper.pub").write_text(helper.public.hex())
    assert np.array_equal(fs.Histogram(3).fit(engine).counts_, fs.Histogram(3).fit(fed).counts_)
    other = engine_of(fed, tmp_path, nodes=6, secure=fs.TwoServers())
    with pytest.raises(fs.EngineError, match="another second server than the node knows"):
        fs.Histogram(3).fit(other)


# -- methods with learners on nodes that have fitted nothing -----------------------------------------------------------


@pytest.mark.parametrize("name", ["fedgmm", "fedem"])
def test_nodes_that_have_no_fitted_mixture_train_with_the_servers(name, tmp_path):
    torch = pytest.importorskip("torch")
    from fedscape.learning import cross_entropy, models

    rng = np.random.default_rng(0)
    fed = fs.Federation(
        {"x": rng.normal(size=(90, 3)).astype(np.float32), "y": rng.integers(0, 2, 90)}, np.arange(0, 91, 15)
    )
    torch.manual_seed(0)
    step = fs.LocalSGD(models.linear(3, 2), cross_entropy, lr=0.1, epochs=1, batch_size=5)
    gaussians = fs.GaussianMixture(2, column="x", regularisation=0.1, rounds=3)
    bare = fs.GaussianMixture(2, column="x", regularisation=0.1, rounds=3)
    if name == "fedgmm":
        mine, theirs = fs.FedGMM(step, gaussians.fit(fed), 2, warm=0), fs.FedGMM(step, bare, 2, warm=0)
        with pytest.raises(fs.DataError, match="mixture must be a fitted GaussianMixture"):
            theirs.start(0)
    else:
        mine = theirs = fs.FedEM(step, 2)
    for secure in (None, SECURE):
        folder = tmp_path / str(secure is None)
        engine = engine_of(fed, folder, nodes=6, own=[theirs], secure=secure, timeout=20)
        over, here = (list(fs.rounds(mine, where, n_rounds=2)) for where in (engine, fed))
        assert engine.troubles == []
        assert all(np.allclose(over[-1].state[n], here[-1].state[n], atol=1e-5) for n in here[-1].state)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"regularisation": 0.2}, "regularisation is 0.2 on the node, 0.1 at the server"),
        ({"bound": 5.0}, "bound is 5.0 on the node, None at the server"),
        ({"column": "z"}, "column is 'z' on the node, 'x' at the server"),
        ({"rounds": 9, "seed": 7, "n_init": 2}, ""),  # how the server has fitted it is its own business
    ],
    ids=str,
)
def test_a_node_with_another_mixture_than_the_servers_says_what_differs(other, why, tmp_path):
    pytest.importorskip("torch")
    from fedscape.learning import cross_entropy, models

    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(40, 2)).astype(np.float32), "y": rng.integers(0, 2, 40)}
    fed = fs.Federation(columns, np.arange(0, 41, 20))
    step = fs.LocalSGD(models.linear(2, 2), cross_entropy, lr=0.1, epochs=1, batch_size=5)
    how = {"column": "x", "regularisation": 0.1, "rounds": 2}
    mine = fs.FedGMM(step, fs.GaussianMixture(2, **how).fit(fed), 2)
    theirs = fs.FedGMM(step, fs.GaussianMixture(2, **{**how, **other}), 2)
    engine = engine_of(fed, tmp_path, nodes=2, own=[theirs], timeout=20)
    loop = fs.rounds(mine, engine, n_rounds=1)
    if not why:
        assert next(loop).clients == 2
        return
    with pytest.raises(fs.EngineError, match="every node refused") as refused:
        next(loop)
    assert why in str(refused.value)


def test_a_node_that_cannot_say_whom_it_holds_is_left_out_and_the_run_begins(tmp_path):
    from fedscape.engines.flower import client_app

    fed = federation(12)

    def load(context):
        return fed.take(np.arange(context.node_id - 1, 12, 6)) if context.node_id != 2 else 1 / 0

    app = client_app(load, folder=lambda context: tmp_path / str(context.node_id))
    engine = fs.Flower(LocalGrid(app, [{}] * 6), nodes=6, min_clients=2, poll=0.001, timeout=0.05, secure=SECURE)
    assert len(engine.clients.ids) == 10
    assert len(engine.troubles) == 1
    assert fs.Histogram(3).fit(engine).history_["clients"] == [10]
