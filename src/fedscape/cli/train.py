"""Commands that train: one method, or many settings of one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from click import get_current_context
from click.core import ParameterSource

from fedscape.cli.finetuning import Base, Lora, LoraLayers, base_of, check_base, with_adapters
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
)
from fedscape.cli.results import folder_for, sweep_table
from fedscape.cli.rows import (
    Classes,
    Features,
    Fill,
    Shape,
    Standardise,
    Target,
    Test,
    named_rows,
    network_of,
    read_rows,
    say_lines,
    split_rows,
)
from fedscape.cli.show import as_text, show
from fedscape.cli.training import Request, local_training, run, sampler_of
from fedscape.cli.validate import check_out, fractions, whole_numbers
from fedscape.errors import DataError, require
from fedscape.methods import FAMILIES
from fedscape.methods import names as method_names

Model = Annotated[str, typer.Option(help="linear, mlp, cnn, lenet5, resnet18, mobilenet_v2, char_lstm or transformer.")]
Epochs = Annotated[int, typer.Option(help="Local epochs per round.")]
BatchSize = Annotated[int, typer.Option(help="Rows per local step.")]
Cohort = Annotated[int, typer.Option(help="Clients per round; 0 means all.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Strategy = Annotated[str, typer.Option(help="auto, sequential, vmap, recorded, compiled or stacked.")]
GroupSize = Annotated[
    int | None, typer.Option(help="Clients trained side by side: with --engine ray each GPU trains whole groups.")
]
Method = Annotated[
    str | None,
    typer.Option(
        help=f"{'; '.join(', '.join(method_names(f, command=True)) for f in FAMILIES)}. By default fedavg, with "
        "--schedule fedclock."
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(help="How many rounds: by default 20; of trees one a level, of a glm until it settles, at most 100."),
]
Some = Annotated[int | None, typer.Option(help="Clients of a round; 0 means all. By default 10, of trees and glm all.")]
Rate = Annotated[float, typer.Option(help="The clients' learning rate.")]
Proximal = Annotated[float, typer.Option(help="fedprox: weight of the proximal term.")]
Fairness = Annotated[
    float | None, typer.Option(help="qfedavg: exponent q, larger favours the worst-off clients; 1 by default.")
]
ServerRate = Annotated[float | None, typer.Option(help="The server's learning rate.")]
Schedule = Annotated[
    str | None, typer.Option(help="Availability: linear, cosine, blocks, steady or zones, such as cosine:p=1,T=256.")
]
Prior = Annotated[
    str | None,
    typer.Option(
        help="Prior of fedclock and related methods: linear (default), cosine, soft, harmonics, none, or a curve."
    ),
]
Modes = Annotated[
    str | None, typer.Option(help="Day and night clients: COLUMN:CUT, such as y:10; by default half of the classes.")
]
Trees = Annotated[int | None, typer.Option(help="--method trees: number of trees; 100 by default.")]
Family = Annotated[
    str | None,
    typer.Option(help="Distribution of the target, glm: gaussian, logistic, poisson, gamma; trees: poisson."),
]
Ranges = Annotated[
    str | None,
    typer.Option(help="--epsilon of trees and glm: least and greatest value of each number, as age:0:120,pay:0:9e4."),
]
Every = Annotated[int, typer.Option(help="Evaluate and save every N rounds.")]
Epsilon = Annotated[float | None, typer.Option(help="Train with differential privacy within this budget; see --clip.")]
Find = Annotated[
    float | None,
    typer.Option(help="With --epsilon: share of the budget to find undeclared names, ranges and scales with, as 0.2."),
]
Delta = Annotated[float | None, typer.Option(help="The delta of the budget; 1e-6 by default.")]
Clip = Annotated[
    float | None, typer.Option(help="With --epsilon: clipping bound on the norm of a client's update; 1 by default.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the checkpoint, the model and the tables.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")]
Tensorboard = Annotated[Path | None, typer.Option(help="Folder for TensorBoard logs.")]
Mlflow = Annotated[str | None, typer.Option(help="Log to MLflow at this URI, such as sqlite:///runs.db.")]
Wandb = Annotated[Path | None, typer.Option(help="Folder for a Weights & Biases run, offline: nothing is sent.")]


def train(
    source: Source,
    model: Model = "mlp",
    base: Base = None,
    lora: Lora = None,
    lora_layers: LoraLayers = None,
    method: Method = None,
    rounds: Rounds = None,
    cohort: Some = None,
    lr: Rate = 0.05,
    epochs: Epochs = 1,
    batch_size: BatchSize = 10,
    proximal: Proximal = 0.0,
    q: Fairness = None,
    server_lr: ServerRate = None,
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
    schedule: Schedule = None,
    prior: Prior = None,
    modes: Modes = None,
    trees: Trees = None,
    family: Family = None,
    ranges: Ranges = None,
    every: Every = 5,
    epsilon: Epsilon = None,
    find: Find = None,
    delta: Delta = None,
    clip: Clip = None,
    out: Out = None,
    resume: Resume = False,
    tensorboard: Tensorboard = None,
    mlflow: Mlflow = None,
    wandb: Wandb = None,
    client: Client = None,
    device: Device = "cpu",
    strategy: Strategy = "auto",
    group_size: GroupSize = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    force: Force = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Train a method over cohorts of clients and evaluate every client; a run that was stopped can go on."""
    settings = dict(locals())
    run(Request(**settings, typed=_typed(settings)))


def _typed(names: Iterable[str]) -> frozenset[str]:
    """Those of these options that were on the command line."""
    context = get_current_context()
    return frozenset(n for n in names if context.get_parameter_source(n) == ParameterSource.COMMANDLINE)


def sweep(
    source: Source,
    model: Model = "mlp",
    base: Base = None,
    lora: Lora = None,
    lora_layers: LoraLayers = None,
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
    group_size: GroupSize = None,
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
    check_base(base, lora, lora_layers, _typed(("model", "features", "standardise", "fill", "shape")))
    lists = {name: fractions(text, name) for name, text in (("lr", lr), ("proximal", proximal), ("server", server))}
    for name in ("lr", "server"):
        if min(lists[name]) == 0:
            raise DataError(f"--{name} must be numbers above 0: with 0 nothing is learned")
    whole = whole_numbers(seeds, "seeds")
    for name, value in (("rounds", rounds), ("rungs", rungs)):
        if value < 1:
            raise DataError(f"--{name} must be at least 1, not {value}")
    over = overrules(categorical, numeric, ignore, keep)
    fed, reading, lines = read_rows(source, client=client, features=features, target=target, overrules=over)
    fed, left_out = named_rows(fed, target, names)
    start = None if base is None else base_of(base, target)
    learners, held_out, inputs, more = split_rows(
        fed, reading, target=target, fill=fill, standardise=standardise, shape=shape, test=test, seed=seed,
        client=client, inputs=None if start is None else start.inputs,
    )  # fmt: skip
    network = start.network if start is not None else network_of(model, learners, inputs, seed)[0]
    network, adapters = with_adapters(network, lora, lora_layers, seed)
    local = local_training(
        network, inputs, lr=1.0, epochs=epochs, batch_size=batch_size, device=device, strategy=strategy,
        group_size=group_size,
    )  # fmt: skip
    place = placing(engine, address, workers, device=device)
    say_lines([*lines, *left_out, *more, *adapters], quiet)
    folder = folder_for(out, resume, quiet)
    trials = swept(
        local, place(learners), grid(**lists, seeds=whole), n_rounds=rounds, validation=held_out, rungs=rungs,
        sampler=sampler_of(cohort, len(learners)), seed=seed,
        initial="seed" if start is None or lora is not None else "given",
        checkpoint=folder and folder / "checkpoint", progress=False if quiet else None,
    )  # fmt: skip
    result = [
        {**asdict(t.setting), "rounds": t.rounds, "diverged": t.diverged, **t.evaluation.summary()} for t in trials
    ]
    if folder is not None:
        (folder / "table.json").write_text(as_text(result, indent=1) + "\n", "utf-8")
    show(result, json_, sweep_table)
