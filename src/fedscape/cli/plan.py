"""The command that plans a training: cohort, deadline and protocol, from a log of who is there when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscape.cli.options import Client, Force, Json, Quiet, Seed, Source, check_json, free, overrules
from fedscape.cli.rows import Features, Standardise, Target, Test, network_of, read_rows, say_lines, split_rows
from fedscape.cli.show import short, show, table
from fedscape.cli.validate import whole_numbers
from fedscape.errors import DataError, plural, require

if TYPE_CHECKING:
    from fedscape.core.federation import Federation
    from fedscape.twin import Twin


def plan(
    source: Source,
    events: Annotated[str, typer.Option(help="Who was there when: a log, a data set, or a .json twin of --out.")],
    accuracy: Annotated[float, typer.Option(help="The accuracy to reach, 0 to 1.")],
    sizes: Annotated[str, typer.Option(help="Cohort sizes to try, comma-separated.")] = "10,30",
    deadlines: Annotated[str, typer.Option(help="Deadlines to try, in seconds; none waits for all.")] = "300,none",
    days: Annotated[float, typer.Option(help="How many days of virtual time.")] = 5.0,
    seconds: Annotated[float, typer.Option(help="Median seconds of a task, where the log has no work.")] = 60.0,
    spread: Annotated[float, typer.Option(help="How unlike devices are then: deviation of the log of seconds.")] = 1.0,
    kinds: Annotated[int, typer.Option(help="How many kinds of devices the twin has.")] = 3,
    device: Annotated[str | None, typer.Option(help="Column of the log that says which device a row is of.")] = None,
    model: Annotated[str, typer.Option(help="linear, mlp, cnn, lenet5 or another that train has.")] = "linear",
    lr: Annotated[float, typer.Option(help="The clients' learning rate.")] = 0.05,
    epochs: Annotated[int, typer.Option(help="How often a client goes through its rows in a task.")] = 1,
    batch_size: Annotated[int, typer.Option(help="Rows of a step.")] = 10,
    reports: Annotated[int, typer.Option(help="Reports that a run adds up, at most.")] = 2000,
    seeds: Annotated[str, typer.Option(help="Seeds of devices and training, comma-separated.")] = "0,1,2",
    features: Features = None,
    target: Target = "y",
    standardise: Standardise = False,
    test: Test = 0.2,
    client: Client = None,
    out: Annotated[Path | None, typer.Option(help="Where the twin goes: a .json file.")] = None,
    force: Force = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Which cohort, deadline and protocol reach an accuracy soonest, and whom that leaves out, in virtual time."""
    require("torch", extra="learn")
    import numpy as np

    from fedscape.core.random import Key
    from fedscape.learning import FedAvg, LocalSGD, cross_entropy
    from fedscape.learning.evaluation import evaluate
    from fedscape.twin import candidates, payload_of
    from fedscape.twin import plan as planned

    if not 0 < accuracy < 1:
        raise DataError(f"--accuracy must lie between 0 and 1, not {accuracy:g}")
    if not 0 < seconds < np.inf or not 0 <= spread < np.inf:
        raise DataError(f"--seconds must be above 0 and --spread at least 0, not {seconds:g} and {spread:g}")
    free(out, force)
    check_json(out)
    protocols = candidates(whole_numbers(sizes, "sizes"), _deadlines(deadlines))
    twin, log = _twin(events, device, kinds, seed)
    if out is not None:
        twin.save(out)
    fed, reading, lines = read_rows(source, client=client, features=features, target=target, overrules=overrules())
    learners, held_out, inputs, more = split_rows(
        fed, reading, target=target, fill=None, standardise=standardise, shape=None, test=test, seed=seed, client=client
    )
    own, remark = _own_devices(log, learners)
    say_lines([*lines, *more, remark], quiet)
    network, _ = network_of(model, learners, inputs, seed)
    local = LocalSGD(
        network,
        cross_entropy,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
        features=inputs.column,
        target=inputs.target,
    )
    computation = FedAvg(local)
    n = len(learners)

    def devices(number: int) -> Any:
        key = Key(number, purpose="plan")
        drawn = twin.sample(n, key) if own is None else twin.sample_like(own, key)
        if "work" in twin.arrays:
            return drawn
        speed = seconds * np.exp(spread * Key(number, purpose="speeds").generator().standard_normal(n))
        return replace(drawn, seconds=speed)

    def judge(state: Any) -> Any:
        evaluation = evaluate(local, state, held_out)
        return evaluation.accuracy, evaluation.rows

    rows = learners.sizes.astype(float)
    units = rows * epochs if "work" in twin.arrays else np.maximum(rows, 1) / max(float(rows.mean()), 1.0)
    answer = planned(
        computation, learners, devices, judge, protocols, target=accuracy, days=days, units=np.maximum(units, 1e-3),
        payload=payload_of(computation, learners), seeds=whole_numbers(seeds, "seeds"), n_reports=reports,
    )  # fmt: skip
    show(answer.table(), json_, _for_people)


def _twin(events: str, device: str | None, kinds: int, seed: int) -> tuple[Twin, Federation | None]:
    """The twin of a .json file, or one fitted to a log, and that log."""
    from fedscape.twin import fit, load

    if events.endswith(".json"):
        return load(events), None
    log, tick = read_events(events, device)
    if len(log) < 2:
        raise DataError(f"--events has {plural(len(log), 'device')}, and one says nothing of others: name --device?")
    return fit(log, n_kinds=kinds, tick=tick, seed=seed, n_init=2), log


def _own_devices(log: Federation | None, learners: Federation) -> tuple[Federation | None, str]:
    """The log with one device for each client, without rows where it knows none; None where most are unknown."""
    import numpy as np

    from fedscape.core.federation import Federation

    position = {str(name): i for i, name in enumerate(learners.ids)}
    own = np.array([position.get(str(name), -1) for name in ([] if log is None else log.ids)], dtype=np.int64)
    matched = int((own >= 0).sum())
    if log is None or matched < 0.5 * len(learners):
        return None, (
            "devices are drawn from the twin, apart from the clients' rows: whether the model is worse for those left "
            "out shows only where --events names the clients as devices"
        )
    rows = log.where(own[log.client_of_row] >= 0)
    owner = learners.ids[own[rows.client_of_row]]
    of_clients = Federation.from_arrays(dict(rows.columns), owner, ids=learners.ids)
    return of_clients, f"{matched:,} of {plural(len(learners), 'client')} are devices of the log, and come as they did"


def read_events(events: str, device: str | None) -> tuple[Federation, float]:
    """A log of devices from a file or a data set, and the tick of its clock."""
    from fedscape import datasets
    from fedscape.twin import events_of

    return events_of(datasets.read(events, client=device))


def _deadlines(text: str) -> list[float | None]:
    try:
        return [None if part.strip() == "none" else float(part) for part in text.split(",")]
    except ValueError:
        raise DataError(f"--deadlines must be seconds or none, comma-separated, not {text!r}") from None


def _for_people(about: dict[str, Any]) -> None:
    names = ["protocol", "hours to it", "±", "accuracy", "device-hours", "of them wasted"]
    keys = ("mean_hours", "half_width", "accuracy", "device_hours", "wasted_hours")
    from fedscape.twin.bias import RARE

    rows = [[row["protocol"], *(short(row[key]) for key in keys)] for row in about["rows"]]
    table(f"hours to an accuracy of {about['target']:g}, the soonest first", names, rows)
    if not any(row["device_hours"] for row in about["rows"]):
        typer.echo("nobody reported: too few devices are there at once; try smaller --sizes or more --days")
        return
    names = ["kind", "devices", "reports, 1 is fair", "from", "to", "never", "accuracy less that of all", "from", "to"]
    numbers = ("ratio", "ratio_low", "ratio_high", "never", "gap", "gap_low", "gap_high")
    rows = [[part["kind"], part["devices"], *(short(part[key]) for key in numbers)] for part in about["parts"]]
    table(f"who takes part in {about['parts_of']}", names, rows)
    if rare := [str(part["kind"]) for part in about["parts"] if part["reporting"] < RARE]:
        typer.echo(f"little is known of kind {', '.join(rare)}: fewer than {RARE} of its devices reported")
    typer.echo(f"does asynchronous training help: {_helps(about['asynchronous'])}")


def _helps(answer: dict[str, Any]) -> str:
    """The answer with hours and interval; hours alone would claim what seeds do not show."""
    if answer["answer"] not in ("yes", "no"):
        return str(answer["answer"])
    hours, low, high = (answer[key] for key in ("hours", "low", "high"))
    if answer["answer"] == "no":
        hours, low, high = -hours, -high, -low
    most = "at least " if answer["at_least"] else ""
    ends = f"[{low:.3g}, {high:.3g}]" if high < float("inf") else f"[{low:.3g}, ...)"
    which = "sooner" if answer["answer"] == "yes" else "later"
    return f"{answer['answer']}, {most}{hours:.3g} hours {which} {ends}"
