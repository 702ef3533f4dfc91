"""Commands that train networks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscape.cli.options import (
    Address,
    Categorical,
    Client,
    EngineName,
    Force,
    Ignore,
    Json,
    Keep,
    Numeric,
    Quiet,
    Seed,
    Source,
    Workers,
    overrules,
    placing,
    say_revealed,
)
from fedscape.cli.results import finish, folder_for, say, say_directions, say_worse, sweep_table, write
from fedscape.cli.rows import (
    Classes,
    Features,
    Fill,
    Shape,
    Standardise,
    Target,
    Test,
    check_declared_rows,
    named_rows,
    network_of,
    read_rows,
    say_lines,
    split_rows,
)
from fedscape.cli.show import as_text, show
from fedscape.cli.tables import TABLES, check_table, train_table
from fedscape.cli.temporal import of_modes, options_on, sampler_for
from fedscape.cli.validate import (
    check_method,
    check_out,
    check_private,
    check_schedule,
    fractions,
    whole_numbers,
)
from fedscape.errors import DataError, require
from fedscape.methods import FAMILIES, METHODS, Course, Options
from fedscape.methods import names as method_names

if TYPE_CHECKING:
    from fedscape.learning import LocalSGD
    from fedscape.learning.inputs import Inputs

Model = Annotated[str, typer.Option(help="linear, mlp, cnn, lenet5, resnet18, mobilenet_v2 or char_lstm.")]
Epochs = Annotated[int, typer.Option(help="Local epochs per round.")]
BatchSize = Annotated[int, typer.Option(help="Rows per local step.")]
Cohort = Annotated[int, typer.Option(help="Clients per round; 0 means all.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Strategy = Annotated[str, typer.Option(help="auto, sequential, vmap, compiled or stacked.")]


def train(
    source: Source,
    model: Model = "mlp",
    method: Annotated[
        str | None,
        typer.Option(
            help=f"{'; '.join(', '.join(method_names(f, command=True)) for f in FAMILIES)}; trees, glm. By "
            "default fedavg, with --schedule fedclock."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 20,
    cohort: Cohort = 10,
    lr: Annotated[float, typer.Option(help="The clients' learning rate.")] = 0.05,
    epochs: Epochs = 1,
    batch_size: BatchSize = 10,
    proximal: Annotated[float, typer.Option(help="fedprox: weight of the proximal term.")] = 0.0,
    q: Annotated[
        float | None, typer.Option(help="qfedavg: exponent q, larger favours the worst-off clients; 1 by default.")
    ] = None,
    server_lr: Annotated[float | None, typer.Option(help="The server's learning rate.")] = None,
    features: Features = None,
    target: Target = "y",
    standardise: Standardise = False,
    fill: Fill = None,
    shape: Shape = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    keep: Keep = None,
    names: Classes = None,
    test: Test = 0.2,
    schedule: Annotated[
        str | None,
        typer.Option(help="Availability: linear, cosine, blocks, steady or zones, such as cosine:p=1,T=256."),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            help="Prior of fedclock and related methods: linear (default), cosine, soft, none, or a schedule."
        ),
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="Day and night clients: COLUMN:CUT, such as y:10; by default half of the classes."),
    ] = None,
    trees: Annotated[int | None, typer.Option(help="--method trees: number of trees; 100 by default.")] = None,
    family: Annotated[
        str | None,
        typer.Option(help="Distribution of the target, glm: gaussian, logistic, poisson, gamma; trees: poisson."),
    ] = None,
    every: Annotated[int, typer.Option(help="Evaluate and save every N rounds.")] = 5,
    epsilon: Annotated[
        float | None, typer.Option(help="Train with differential privacy within this budget; see --clip.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of the budget; 1e-6 by default.")] = None,
    clip: Annotated[
        float | None,
        typer.Option(help="With --epsilon: clipping bound on the norm of a client's update; 1 by default."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the checkpoint, the model and the tables.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard logs.")] = None,
    client: Client = None,
    device: Device = "cpu",
    strategy: Strategy = "auto",
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    force: Force = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Train a network over cohorts of clients and evaluate every client; a stopped run can be resumed."""
    require("torch", extra="learn")
    from fedscape.learning.run import training
    from fedscape.learning.tracking import Board

    check_out(out, resume, force)
    place = placing(engine, address, workers)
    method = method or ("fedavg" if schedule is None else "fedclock")
    if method in TABLES:
        check_table(method, epsilon, resume, trees)
        over = overrules(categorical, numeric, ignore, keep)
        fed, reading, lines = read_rows(source, client=client, features=features, target=target, overrules=over)
        fed, left_out = named_rows(fed, target, names)
        train_table(
            method, fed, reading, target=target, family=family, rounds=trees, test=test, seed=seed, place=place,
            out=out, lines=[*lines, *left_out], quiet=quiet, json_=json_,
        )  # fmt: skip
        return
    if family is not None or trees is not None:
        raise DataError(f"--family and --trees need --method trees or glm, not {method}")
    check_method(method, rounds, every, proximal=proximal, q=q, server_lr=server_lr, private=epsilon is not None)
    check_schedule(method, schedule, modes, prior)
    check_private(epsilon, delta, clip, standardise, fill)
    over = overrules(categorical, numeric, ignore, keep)
    fed, reading, lines = read_rows(source, client=client, features=features, target=target, overrules=over)
    fed, left_out = named_rows(fed, target, names)
    if epsilon is not None:
        check_declared_rows(fed, reading, target)
    if schedule is not None:
        fed, mode_of_client = of_modes(fed, modes, target)
        chosen = sampler_for(schedule, mode_of_client, cohort)
        lines += [] if epsilon is None else [_PARTS.format(chosen.curve.n_modes)]
    learners, held_out, inputs, more = split_rows(
        fed, reading, target=target, fill=fill, standardise=standardise, shape=shape, test=test, seed=seed,
        client=client,
    )  # fmt: skip
    network, arguments = network_of(model, learners, inputs, seed)
    local = _local(
        network, inputs,
        lr=lr, epochs=epochs, batch_size=batch_size, proximal=proximal, device=device, strategy=strategy,
    )  # fmt: skip
    sampler = _sampler(cohort, len(learners)) if schedule is None else chosen
    options = Options(server_lr=server_lr, q=q, sampler=sampler, seed=seed, progress=False if quiet else None)
    if METHODS[method].family == "temporal":
        options = options_on(options, sampler, prior)
    say_lines([*lines, *left_out, *more], quiet)
    say_directions(method, local, held_out, quiet)
    course = Course(method, local, place(learners), options, private=epsilon is not None)
    say_revealed(method, METHODS[method].reveals)
    folder = folder_for(out, resume, quiet)
    how = _private(epsilon, delta or 1e-6, clip or 1.0, rounds, sampler, len(learners), folder)
    printed: list[dict[str, Any]] = []
    board = None if tensorboard is None else Board(tensorboard)
    for r, evaluation, rows in training(
        course.computation, course.engine, test=held_out, n_rounds=rounds, sampler=sampler, seed=seed, every=every,
        checkpoint=folder and folder / "checkpoint", allow=course.computation.reveals, judge=course.judge,
        progress=False if quiet else None, **how,
    ):  # fmt: skip
        say(rows[len(printed) :], quiet or json_, first=not printed)
        if board is not None:
            board.write(rows[len(printed) :])
        printed = list(rows)
        if folder is not None:
            write(folder, model, arguments, inputs, method, course, r.state, evaluation, rows)
    if not printed:
        raise DataError(f"the run in {out} has already finished its {rounds} rounds: raise --rounds to continue")
    result = {"model": model, "method": method, "clients": len(learners), "rounds": rounds, "table": printed}
    if how:
        result["epsilon"] = {" ".join(group): spent for group, spent in how["ledger"].spent().items()}
        result["parts_of_a_client"] = 1 if schedule is None else chosen.curve.n_modes
    say_worse(result, len(inputs.classes), quiet)
    show(result, json_, lambda about: finish(about, folder, quiet))


def sweep(
    source: Source,
    model: Model = "mlp",
    lr: Annotated[str, typer.Option(help="Learning rates to try (comma-separated).")] = "0.01,0.03,0.1,0.3",
    proximal: Annotated[str, typer.Option(help="Proximal weights to try.")] = "0",
    server: Annotated[str, typer.Option(help="Factors of the server's learning rate to try.")] = "1",
    seeds: Annotated[str, typer.Option(help="Seeds of the shuffles and initial weights.")] = "0",
    rounds: Annotated[int, typer.Option(help="Rounds of the settings that survive to the end.")] = 20,
    rungs: Annotated[
        int, typer.Option(help="Rungs of successive halving: after each the worse two thirds stop; 1: none stop early.")
    ] = 1,
    cohort: Cohort = 10,
    epochs: Epochs = 1,
    batch_size: BatchSize = 10,
    features: Features = None,
    target: Target = "y",
    standardise: Standardise = False,
    fill: Fill = None,
    shape: Shape = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    keep: Keep = None,
    names: Classes = None,
    test: Test = 0.2,
    out: Annotated[Path | None, typer.Option(help="Folder for the table and the checkpoint.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the sweep in --out.")] = False,
    client: Client = None,
    device: Device = "cpu",
    strategy: Strategy = "auto",
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    force: Force = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Train many settings in one run on the same cohorts; list them by held-out loss, best first."""
    require("torch", extra="learn")
    from fedscape.learning import grid
    from fedscape.learning import sweep as swept

    check_out(out, resume, force)
    lists = {name: fractions(text, name) for name, text in (("lr", lr), ("proximal", proximal), ("server", server))}
    seed_values = whole_numbers(seeds, "seeds")
    for name, value in (("rounds", rounds), ("rungs", rungs)):
        if value < 1:
            raise DataError(f"--{name} must be at least 1, not {value}")
    over = overrules(categorical, numeric, ignore, keep)
    fed, reading, lines = read_rows(source, client=client, features=features, target=target, overrules=over)
    fed, left_out = named_rows(fed, target, names)
    learners, held_out, inputs, more = split_rows(
        fed, reading, target=target, fill=fill, standardise=standardise, shape=shape, test=test, seed=seed,
        client=client,
    )  # fmt: skip
    network, _ = network_of(model, learners, inputs, seed)
    local = _local(network, inputs, lr=1.0, epochs=epochs, batch_size=batch_size, device=device, strategy=strategy)
    place = placing(engine, address, workers)
    say_lines([*lines, *left_out, *more], quiet)
    folder = folder_for(out, resume, quiet)
    trials = swept(
        local, place(learners), grid(**lists, seeds=seed_values), n_rounds=rounds, validation=held_out, rungs=rungs,
        sampler=_sampler(cohort, len(learners)), initial="seed", seed=seed,
        checkpoint=folder and folder / "checkpoint", progress=False if quiet else None,
    )  # fmt: skip
    result = [
        {**asdict(t.setting), "rounds": t.rounds, "diverged": t.diverged, **t.evaluation.summary()} for t in trials
    ]
    if folder is not None:
        (folder / "table.json").write_text(as_text(result, indent=1) + "\n")
    show(result, json_, sweep_table)


_PARTS = (
    "a client is split by mode into up to {0} parts, each protected separately: a client with rows of all modes "
    "spends up to {0} times the epsilon in the ledger"
)


def _local(network: Any, inputs: Inputs, **how: Any) -> LocalSGD:
    from fedscape.learning import LocalSGD, cross_entropy

    return LocalSGD(network, cross_entropy, features=inputs.column, target=inputs.target, **how)


def _sampler(cohort: int, n_clients: int) -> Any:
    from fedscape import All, FixedSize

    if cohort < 0:
        raise DataError(f"--cohort must be at least 1, or 0 for all clients, not {cohort}")
    return All() if cohort == 0 or cohort >= n_clients else FixedSize(cohort)


def _private(
    epsilon: float | None, delta: float, clip: float, rounds: int, sampler: Any, n_clients: int, folder: Path | None
) -> dict[str, Any]:
    if epsilon is None:
        return {}
    from fedscape import Gaussian, Ledger, calibrate

    multiplier = calibrate(epsilon, delta, rounds=rounds, sampler=sampler, n_clients=n_clients)
    ledger = Ledger(None if folder is None else folder / "ledger.jsonl", epsilon=epsilon, delta=delta)
    return {"privacy": Gaussian(clip=clip, multiplier=multiplier), "ledger": ledger}
