"""Sessions and the event loop: closed forms, plain twins, and identities with rounds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from plain_twin import planted, protocol_by_lists
from scipy.stats import kstest

from fedscape import All, DataError, EngineError, Federation, Gaussian, Histogram, Key, Ledger, Local, Moments, rounds
from fedscape.core.kernel import uncompiled
from fedscape.errors import CheckpointError
from fedscape.statistics.kmeans import FederatedKMeans
from fedscape.twin import (
    Devices,
    FedAsync,
    FedBuff,
    SemiAsynchronous,
    Synchronous,
    always,
    payload_of,
    schedule,
    sessions,
    train,
)
from fedscape.twin.devices import stream_seeds
from fedscape.twin.events import DAY, HOUR
from fedscape.twin.kernels import uniform

PROTOCOLS = [
    Synchronous(4),
    Synchronous(4, over=1.5, deadline=900.0),
    SemiAsynchronous(concurrency=6, period=1200.0),
    FedBuff(concurrency=6, buffer=3),
    FedAsync(concurrency=5),
]


def even(rate: float, end: float, *, n: int, **changes) -> Devices:
    """Devices that come at one rate and stay exponentially long: an alternating renewal process."""
    twin = planted(
        weights=np.array([[1.0], [0.0]]), daily=np.full((2, 24), rate), weekly=np.ones((2, 7)), recency=np.ones((2, 3)),
        ends=np.full((2, 4, 15), end), shape=np.full(2, 1e6), **changes,
    )  # fmt: skip
    devices = twin.sample(n, Key(1))
    return replace(devices, activity=np.ones(n), warm=30 * DAY)


def durations_of(log):
    rows = log["watch"] == 0
    return (log["end"] - log["start"])[rows], log["start"][rows], log.client_of_row[rows]


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_an_alternating_renewal_process_has_its_closed_forms():
    """Availability = E on / (E on + E off), on and off exponential."""
    devices = even(0.2, 0.5, n=4000)
    length, start, who = durations_of(devices.sessions(0.0, 10 * DAY))
    share = np.bincount(who, length, len(devices)) / (10 * DAY)
    assert share.mean() == pytest.approx(0.2 / 0.7, abs=5 * share.std() / np.sqrt(len(devices)))
    inner = (start > 0) & (start < 8 * DAY)
    assert kstest(length[inner] / HOUR, "expon", args=(0, 2.0)).pvalue > 1e-5
    same = (np.diff(who) == 0) & inner[:-1]
    gaps = (start[1:] - (start + length)[:-1])[same]
    early = gaps[(start + length)[:-1][same] < 6 * DAY]
    assert kstest(early / HOUR, "expon", args=(0, 5.0)).statistic < 5 / np.sqrt(len(early))


def test_many_rare_devices_are_an_m_g_infinity_queue():
    """Concurrency is Poisson with mean arrivals an hour x mean session (Little's law)."""
    devices = even(1e-4, 2.0, n=200_000)
    length, start, _ = durations_of(devices.sessions(0.0, 5 * DAY))
    moments = np.arange(0.5, 5, 0.25) * DAY
    present = np.array([((start <= t) & (t < start + length)).sum() for t in moments])
    wanted = 200_000 * 1e-4 * 0.5
    assert present.mean() == pytest.approx(wanted, abs=5 * np.sqrt(wanted / len(moments)))
    assert present.var(ddof=1) == pytest.approx(wanted, rel=5 * np.sqrt(2 / len(moments)))


def test_a_poisson_rhythm_is_what_thinning_gives():
    """With short sessions arrivals are a Poisson process of the weekly rate: counts by hour, beside thinned points."""
    daily = 0.02 * (1 + np.cos(np.arange(24) * np.pi / 12))
    devices = even(0.0, 3000.0, n=3000)
    hourly = np.tile(daily, 7)
    devices = replace(devices, laws=replace(devices.laws, rhythm=np.tile(np.append(0, np.cumsum(hourly)), (2, 1))))
    _, start, _ = durations_of(devices.sessions(0.0, 14 * DAY))
    mine = np.bincount((start // HOUR % 24).astype(int), minlength=24)
    rng = np.random.default_rng(0)
    candidates = rng.uniform(0, 14 * DAY, rng.poisson(0.04 * 14 * 24 * 3000))
    thinned = candidates[rng.random(len(candidates)) < daily[(candidates // HOUR % 24).astype(int)] / 0.04]
    theirs = np.bincount((thinned // HOUR % 24).astype(int), minlength=24)
    expected = daily * 14 * 3000
    assert (np.abs(mine - expected) < 5 * np.sqrt(expected) + 1).all()
    assert (np.abs(mine - theirs) < 5 * np.sqrt(2 * expected) + 1).all()


def test_recency_and_ticks():
    quick = even(0.5, 2.0, n=2000)
    quick = replace(quick, laws=replace(quick.laws, recency=np.tile([0.0 + 1e-9, 1.0, 1.0], (2, 1))))
    length, start, who = durations_of(quick.sessions(0.0, 5 * DAY))
    gaps = (start[1:] - (start + length)[:-1])[np.diff(who) == 0]
    assert gaps.min() >= HOUR * (1 - 1e-9)  # nobody comes back within the first hour
    slotted = replace(quick, laws=replace(quick.laws, tick=1800.0))
    log = slotted.sessions(0.0, 5 * DAY)
    assert (log["start"] % 1800 == 0).all()
    assert (log["end"] % 1800 == 0).all()


def test_sessions_are_the_same_in_plain_python_and_in_parts():
    devices = planted().sample(12, Key(3))
    whole = devices.sessions(0.0, 2 * DAY)
    with uncompiled():
        plain = devices.sessions(0.0, 2 * DAY)
    np.testing.assert_allclose(whole["start"], plain["start"], rtol=1e-12)
    part = devices.take([5, 2]).sessions(0.0, 2 * DAY)
    assert part.take([0])["start"].tobytes() == whole.take([5])["start"].tobytes()


# -- the event loop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
@pytest.mark.parametrize("tick", [0.0, 1800.0])
def test_the_queue_does_what_plain_lists_do(protocol, tick):
    devices = even(0.2, 0.5, n=40)
    devices = replace(devices, laws=replace(devices.laws, tick=tick)).with_speed(np.linspace(200, 4000, 40))
    begin, days = 3 * DAY, 1.0
    log = devices.sessions(begin, begin + days * DAY + 30 * DAY)
    rows = log["watch"] == 0
    own = [[] for _ in range(40)]
    for i, s, e in zip(log.client_of_row[rows], log["start"][rows], log["end"][rows], strict=True):
        own[i].append((s, e))
    table = schedule(devices, protocol, days=days, begin=begin, n_updates=60, key=Key(9))
    server, drawn = stream_seeds(Key(9).to("selection"), 1)[0], iter(range(1, 10**7))

    def pick(idle):
        with uncompiled():
            u = uniform(server, np.uint64(next(drawn)))
        return idle[min(int(u * len(idle)), len(idle) - 1)]

    code, size, wanted, deadline = protocol.loop
    plain = protocol_by_lists(
        own, lambda i, task: devices.seconds[i], code, size, wanted, deadline, begin=begin, horizon=begin + days * DAY,
        pick=pick, n_updates=60,
    )  # fmt: skip
    assert len(table) == len(plain) > 5
    np.testing.assert_allclose(table.times, [t for t, _ in plain], rtol=1e-12)
    for u, (_, reports) in enumerate(plain):
        part = slice(table.stops[u], table.stops[u + 1])
        assert list(zip(table.clients[part].tolist(), table.bases[part].tolist(), strict=True)) == reports


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_a_trace_of_the_same_sessions_gives_the_same_timetable(protocol):
    devices = planted().sample(60, Key(3))
    horizon = 2 * DAY
    log = devices.sessions(0.0, 60 * DAY)  # sessions go on after the horizon, as the queue knows
    true = replace(Devices.of_trace(log), seconds=devices.seconds, within=devices.within, bandwidth=devices.bandwidth,
                   finish=devices.finish, task_streams=devices.task_streams)  # fmt: skip
    a, b = (schedule(d, protocol, days=horizon / DAY, n_updates=50, key=Key(4)) for d in (devices, true))
    assert len(a) > 3
    assert a.times.tobytes() == b.times.tobytes()
    assert a.clients.tobytes() == b.clients.tobytes()
    again = schedule(devices, protocol, days=horizon / DAY, n_updates=50, key=Key(4))
    assert (again.times.tobytes(), again.busy.tobytes()) == (a.times.tobytes(), a.busy.tobytes())


def test_costs_add_up():
    devices = always(10).with_speed(np.arange(1.0, 11.0) * 60, bandwidth=1e3)
    table = schedule(devices, Synchronous(5, over=2.0), days=1, n_updates=1, payload=(6e4, 6e4))
    cost = table.cost()
    work = np.arange(1, 11) * 60 + 120
    assert table.times.tolist() == [work[4]]
    assert cost.device_hours == pytest.approx((work[:5].sum() + 5 * work[4]) / 3600)
    assert cost.wasted_hours == pytest.approx(5 * work[4] / 3600)
    assert (cost.dispatched, cost.late, cost.used, cost.bytes_down, cost.bytes_up) == (10, 5, 5, 600_000, 300_000)


def test_a_deadline_leaves_out_the_slow():
    devices = always(20).with_speed(np.repeat([60.0, 6000.0], 10))
    table = schedule(devices, Synchronous(10, over=2.0, deadline=600.0), days=1, n_updates=30)
    assert table.used[10:].sum() == 0
    assert table.used[:10].min() == 30


def test_devices_that_leave_or_fail_do_not_report():
    log = sessions([0, 1], [0.0, 0.0], [50.0, 5000.0], window=(-1.0, 6000.0))
    table = schedule(Devices.of_trace(log).with_speed(100.0), Synchronous(2), days=0.06, n_updates=9)
    assert table.cohort(0).tolist() == [1]
    assert table.cost().left == 1
    flaky = always(400).with_speed(100.0, finish=0.8)
    cost = schedule(flaky, Synchronous(400), days=0.5, n_updates=20).cost()
    assert cost.failed / cost.dispatched == pytest.approx(0.2, abs=5 * np.sqrt(0.16 / cost.dispatched))


# -- training ----------------------------------------------------------------------------------------------------------


def data() -> tuple[FederatedKMeans, Federation]:
    rng = np.random.default_rng(2)
    fed = Federation({"x": rng.normal(size=(90, 2))}, np.arange(0, 91, 3))
    return FederatedKMeans(3, init=rng.normal(size=(1, 3, 2))), fed


def same(a: dict, b: dict) -> bool:
    return set(a) == set(b) and all(np.asarray(a[n]).tobytes() == np.asarray(b[n]).tobytes() for n in a)


def test_synchronous_without_deadline_is_local_to_the_byte():
    computation, fed = data()
    table = schedule(always(len(fed)), Synchronous(len(fed)), days=1, n_updates=5)
    mine = [u.state for u in train(computation, fed, table, seed=3)]
    theirs = [r.state for r in rounds(computation, Local(fed), n_rounds=5, sampler=All(), seed=3, measure=0)]
    assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("protocol", [FedBuff(concurrency=30, buffer=30), SemiAsynchronous(concurrency=30, period=2.0)])
def test_without_overlap_asynchronous_is_synchronous_to_the_byte(protocol):
    computation, fed = data()
    table = schedule(always(len(fed)), protocol, days=1, n_updates=5)
    mine = list(train(computation, fed, table, seed=3))
    theirs = [r.state for r in rounds(computation, Local(fed), n_rounds=5, seed=3, measure=0)]
    assert max(u.staleness for u in mine) == 0
    assert all(same(a.state, b) for a, b in zip(mine, theirs, strict=True))


def test_stale_reports_weigh_less_as_fedbuff_and_fedasync_say():
    """A computation that moves a mean: what each protocol does is a formula of the timetable."""
    fed = Federation({"x": np.arange(12.0)[:, None]}, np.arange(13))
    step = MeanStep()
    for protocol in (FedBuff(concurrency=6, buffer=2), FedAsync(concurrency=4, alpha=0.5)):
        devices = always(12).with_speed(np.arange(1.0, 13.0) ** 2)
        table = schedule(devices, protocol, days=1, n_updates=40)
        versions = [0.0]
        for u in range(len(table)):
            part = slice(table.stops[u], table.stops[u + 1])
            who, base = table.clients[part], table.bases[part]
            w = (1.0 + u - base) ** -0.5
            moves = 0.5 * (np.arange(12.0)[who] - np.array(versions)[base])
            if isinstance(protocol, FedAsync):
                client = versions[base[0]] + moves[0]
                versions.append(versions[-1] + 0.5 * w[0] * (client - versions[-1]))
            else:
                versions.append(versions[-1] + (w * moves).sum() / len(who))
        mine = [float(u.state["w"]) for u in train(step, fed, table)]
        assert table.bases.max() > 5
        np.testing.assert_allclose(mine, versions[1:], rtol=1e-12)


class MeanStep(Moments):
    """Moves halfway to the mean of the cohort's values: FedAvg in one number."""

    name = "mean-step"

    def start(self, seed):
        return {"w": np.zeros(())}

    def step(self, state, clients, key):
        return {"move": 0.5 * (clients["x"][:, 0] - state["w"])}, {}

    def total(self, state, clients, key):
        return None

    def update(self, state, total, key):
        return {"w": np.asarray(state["w"] + total["move"] / total["clients"])}

    def measure(self, state, clients):
        return {}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_a_killed_run_goes_on_to_the_same_bytes_with_any_number_of_threads(protocol, tmp_path):
    """Killed after the third update, resumed on four threads: the states of one that ran through on one."""
    fed = Federation({"x": np.arange(60.0)[:, None]}, np.arange(61))
    devices = always(60).with_speed(np.arange(1.0, 61.0) ** 1.5)
    table = schedule(devices, protocol, days=1, n_updates=12, key=Key(2))
    step = MeanStep()
    whole = [u.state for u in train(step, Local(fed, threads=1), table)]
    states = []
    for update in train(step, Local(fed, threads=1), table, checkpoint=tmp_path / "run"):
        states.append(update.state)
        if update.index == 2:
            break
    rest = list(train(step, Local(fed, threads=4), table, checkpoint=tmp_path / "run"))
    assert [u.index for u in rest] == list(range(3, 12))
    assert all(same(a, b) for a, b in zip([*states, *(u.state for u in rest)], whole, strict=True))
    assert not list(train(step, Local(fed), table, checkpoint=tmp_path / "run"))  # it has ended
    other = schedule(devices, protocol, days=1, n_updates=12, key=Key(3))
    with pytest.raises(CheckpointError, match="belongs to another run"):
        next(train(step, Local(fed), other, checkpoint=tmp_path / "run"))


def test_a_process_that_is_killed_leaves_a_checkpoint_that_can_be_read(tmp_path):
    """SIGKILL in the middle of a run in another process; the file is whole, and the run ends with the same bytes."""
    program = (
        "import os, signal, sys\nimport numpy as np\nfrom fedscape import Federation, Histogram, Local\n"
        "from fedscape.twin import FedBuff, always, schedule, train\n"
        "fed = Federation({'y': np.arange(20) % 3}, np.arange(21))\n"
        "devices = always(20).with_speed(np.arange(1.0, 21.0))\n"
        "table = schedule(devices, FedBuff(concurrency=8, buffer=3), days=1, n_updates=9)\n"
        "for u in train(Histogram(3), Local(fed), table, checkpoint=sys.argv[1]):\n"
        "    if u.index == 4 and sys.argv[2] == 'kill': os.kill(os.getpid(), signal.SIGKILL)\n"
        "print(u.index, u.state['counts'].tobytes().hex())\n"
    )

    def run(name, how):
        return subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / name), how], capture_output=True, text=True, check=False
        )

    assert run("a", "kill").returncode == -9
    went_on, whole = run("a", "end"), run("b", "end")
    assert went_on.stdout == whole.stdout
    assert whole.stdout.startswith("8 ")


def test_a_synchronous_timetable_runs_privately_and_an_asynchronous_one_is_refused():
    fed, ledger = Federation({"y": [0, 1, 1]}, [0, 1, 2, 3]), Ledger()
    privacy = Gaussian(clip=1.0, multiplier=1.0)
    table = schedule(always(3), Synchronous(2), days=1, n_updates=2)
    assert len(list(train(Histogram(2), fed, table, privacy=privacy, ledger=ledger))) == 2
    assert {line["entry"]["relation"] for line in ledger.entries() if line["kind"] == "reserve"} == {"replace-one"}
    stale = schedule(always(3), FedBuff(concurrency=2, buffer=2), days=1, n_updates=2)
    with pytest.raises(EngineError, match="no privacy"):
        next(train(Histogram(2), fed, stale, privacy=privacy))
    with pytest.raises(DataError, match=r"use twin\.train"):
        next(rounds(Histogram(2), fed, n_rounds=1, sampler=stale))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Synchronous(0), "size must be"),
        (lambda: Synchronous(3, over=0.5), "over must be at least 1"),
        (lambda: Synchronous(3, deadline=-1.0), "deadline must be a positive number"),
        (lambda: FedAsync(alpha=2.0), "alpha must be above 0"),
        (lambda: FedBuff(exponent=-1.0), "exponent must be at least 0"),
        (lambda: schedule(always(3), Synchronous(4), days=1), "needs 4 devices at once, but there are 3"),
        (lambda: schedule(always(3), Synchronous(1), days=0), "needs devices, days and when it begins"),
        (lambda: schedule(always(3), Synchronous(1), days=1, begin=np.nan), "needs devices, days and when it begins"),
        (lambda: schedule(always(3), Synchronous(1), days=1, units=[1.0, 2.0]), "one for each of the 3 devices"),
        (lambda: schedule(always(3), Synchronous(1), days=1, units=np.nan), "must be above 0 and finite"),
        (lambda: schedule(always(3), Synchronous(1), days=1, payload=(np.inf, 1)), "payloads must be at least 0"),
        (lambda: schedule(always(3), Synchronous(1), days=1, n_updates=10**12), "at most 100,000,000"),
        (lambda: schedule(always(3), Synchronous(1), days=1, n_updates=2.5), "n_updates must be a whole number"),
        (lambda: schedule(always(3).with_speed(1.0, finish=2.0), Synchronous(1), days=1), "finish a probability"),
        (lambda: schedule(always(3).with_speed(0.0), Synchronous(1), days=1), "must be above 0"),
        (
            lambda: next(
                train(Histogram(2), Federation({"y": [0]}, [0, 1]), schedule(always(3), Synchronous(1), days=1))
            ),
            "sample one device for each client",
        ),
    ],
)
def test_bad_settings_are_refused_with_what_to_do(build, message):
    with pytest.raises(DataError, match=message):
        build()


def test_payloads_are_those_of_the_computation():
    computation, fed = data()
    assert payload_of(computation, fed) == (3 * 2 * 8 + 3 * 8, 3 * 2 * 8 + 3 * 8)
