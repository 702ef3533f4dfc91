"""`fedscape plan`: from a log and a table to a protocol, and refusals in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from shell import fedscape, ok, refused, started


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A log of devices of which half are slow, and a table that a line separates."""
    folder, rng = tmp_path_factory.mktemp("plan"), np.random.default_rng(0)
    lines = ["device,start,end,work"]
    for device in range(40):
        t = rng.exponential(2e4)
        while t < 4e5:
            stay = rng.exponential(8000)
            lines.append(f"{device},{t:.0f},{t + stay + 60:.0f},{(1 if device % 2 else 5) * rng.lognormal(0, 0.2):.3f}")
            t += stay + 60 + rng.exponential(20_000)
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    rows = ["who,a,b,y"]
    for who in range(40):
        for _ in range(20):
            a, b = rng.normal(size=2)
            rows.append(f"{who},{a:.4f},{b:.4f},{int(a + b > 0)}")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    return folder


def call(folder, *more, accuracy=0.8):
    return (
        "plan", folder / "rows.csv", "--client", "who", "--events", folder / "log.csv", "--device", "device",
        "--accuracy", accuracy, "--sizes", "4", "--deadlines", "60,none", "--days", "2", "--kinds", "2",
        "--seeds", "0,1",
        *more,
    )  # fmt: skip


def test_a_plan_ranks_protocols_and_says_who_takes_part(files):
    about = json.loads(ok(*call(files, "--json", "--out", files / "twin.json")))
    hours = [row["mean_hours"] for row in about["rows"]]
    assert len(hours) == 5
    reached = [hour for hour in hours if hour is not None]
    assert reached == sorted(reached)
    assert reached
    assert sum(part["devices"] for part in about["parts"]) == 40
    assert sorted(part["devices"] for part in about["parts"]) == [20, 20]  # the slow ones are half, as in the log


def test_devices_that_are_clients_come_as_their_log_says(files):
    """Of other devices nobody can say whether the model is worse for those left out, and the command says so."""
    known = [*map(str, call(files, "--json"))]
    first = fedscape(*known, "--out", str(files / "other.json"), "--force")
    assert first.returncode == 0, first.stderr
    assert "40 of 40 clients are devices of the log, and come as they did" in first.stderr
    other = [str(files / "other.json") if part == str(files / "log.csv") else part for part in known]
    runs = [fedscape(*other) for _ in range(2)]
    assert "devices are drawn from the twin, apart from the clients' rows" in runs[0].stderr
    assert runs[0].stdout == runs[1].stdout  # the saved twin gives the same plan


def test_a_plan_sees_that_the_model_is_worse_for_those_left_out(tmp_path):
    """Every fourth device is too slow for the deadline and has labels of its own."""
    rng = np.random.default_rng(0)
    log, rows, centres = ["device,start,end,work"], ["who,a,b,y"], rng.normal(0, 2, (4, 2))
    for device in range(60):
        slow, t = device % 4 == 0, rng.exponential(2e4)
        while t < 4e5:
            stay = rng.exponential(12_000) + 300
            log.append(f"{device},{t:.0f},{t + stay:.0f},{(3.0 if slow else 0.6) * rng.lognormal(0, 0.2):.3f}")
            t += stay + rng.exponential(15_000)
        for y in rng.integers(0, 2, 25) + 2 * slow:
            a, b = centres[y] + rng.normal(size=2)
            rows.append(f"{device},{a:.3f},{b:.3f},{y}")
    for name, lines in (("log.csv", log), ("rows.csv", rows)):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    call = [
        "plan", tmp_path / "rows.csv", "--client", "who", "--events", tmp_path / "log.csv", "--device", "device",
        "--accuracy", 0.95, "--sizes", 6, "--deadlines", 30, "--days", 1, "--kinds", 2,
        "--seeds", "0", "--reports", 300,
    ]  # fmt: skip
    least = min(json.loads(ok(*call, "--json"))["parts"], key=lambda part: part["ratio"])
    assert (least["devices"], round(least["ratio"], 1)) == (15, 0.0)
    assert least["gap_high"] < -0.2


def test_people_read_tables(files):
    text = started("plan", *call(files, "--force")[1:])
    assert "the soonest first" in text
    assert "does asynchronous training help" in text


def test_bad_input_is_one_line(files):
    assert "--accuracy must lie between 0 and 1" in refused(2, *call(files, accuracy=2))
    assert "--deadlines must be seconds or none" in refused(2, *call(files, "--deadlines", "soon"))
    single = files / "single.csv"
    single.write_text("device,start,end\n1,2024-03-01 08:00,2024-03-01 09:00\n1,2024-03-02 08:00,2024-03-02 09:00\n")
    wrong = [single if part == files / "log.csv" else part for part in call(files)]
    assert "--events has 1 device, and one says nothing of others" in refused(2, *wrong)
    wrong = [files / "rows.csv" if part == files / "log.csv" else part for part in call(files, "--device", "who")]
    assert "a log of devices has the columns" in refused(2, *wrong)
