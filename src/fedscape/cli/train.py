"""Commands that train networks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscape import datasets
from fedscape.cli.options import (
    Address,
    Client,
    EngineName,
    Force,
    Json,
    Quiet,
    Seed,
    Source,
    Workers,
    free,
    placing,
    say_revealed,
)
from fedscape.cli.show import show, table
from fedscape.cli.temporal import TEMPORAL, of_modes, sampler_for, temporal_method
from fedscape.engine import Engine
from fedscape.errors import DataError, require
from fedscape.federation import Federation

if TYPE_CHECKING:
    from fedscape.learning import FedAvg, LocalSGD

PERSONAL = ("local", "fedavg+", "clustered", "ifca", "pfedme", "fedem", "fedgmm", "ditto", "fedrep")
Model = Annotated[str, typer.Option(help="linear, mlp, cnn, lenet5, resnet18, mobilenet_v2 or char_lstm.")]
Features = Annotated[str, typer.Option(help="The column of features, or several names with commas between.")]
Target = Annotated[str, typer.Option(help="The column of classes.")]
Epochs = Annotated[int, typer.Option(help="How often a client goes through its rows in a round.")]
BatchSize = Annotated[int, typer.Option(help="Rows of a step.")]
Cohort = Annotated[int, typer.Option(help="Clients of a round; 0 means all.")]
Standardise = Annotated[bool, typer.Option("--standardise", help="Give every feature mean 0 and deviation 1.")]
Test = Annotated[float, typer.Option(help="The share of each client's rows that is held out.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Strategy = Annotated[str, typer.Option(help="auto, sequential, vmap, compiled or scripted.")]


def train(
    source: Source,
    model: Model = "mlp",
    method: Annotated[
        str, typer.Option(help=f"fedavg, fedprox, fedadam, qfedavg; {', '.join((*PERSONAL, *TEMPORAL))}.")
    ] = "fedavg",
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 20,
    cohort: Cohort = 10,
    lr: Annotated[float, typer.Option(help="The clients' learning rate.")] = 0.05,
    epochs: Epochs = 1,
    batch_size: BatchSize = 10,
    proximal: Annotated[float, typer.Option(help="fedprox: how strongly clients are held to the model sent.")] = 0.0,
    q: Annotated[float | None, typer.Option(help="qfedavg: how much the worst-off weigh; 1 by default.")] = None,
    server_lr: Annotated[float | None, typer.Option(help="The server's learning rate.")] = None,
    features: Features = "x",
    target: Target = "y",
    standardise: Standardise = False,
    test: Test = 0.2,
    schedule: Annotated[
        str | None, typer.Option(help="Availability: linear, cosine, blocks, steady or zones, as cosine:p=1,T=256.")
    ] = None,
    prior: Annotated[
        str, typer.Option(help="What fedtem and fedtkm believe of it: linear, cosine, soft, none, or a schedule.")
    ] = "linear",
    modes: Annotated[
        str | None, typer.Option(help="Day and night clients: COLUMN:CUT, as y:10; by default half of the classes.")
    ] = None,
    every: Annotated[int, typer.Option(help="Evaluate and save after so many rounds.")] = 5,
    epsilon: Annotated[float | None, typer.Option(help="Train privately within this budget, with --clip.")] = None,
    delta: Annotated[float, typer.Option(help="The delta of the budget.")] = 1e-6,
    clip: Annotated[float, typer.Option(help="Private: the longest move of a client that counts whole.")] = 1.0,
    out: Annotated[Path | None, typer.Option(help="Folder for checkpoint, model, clients and table.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that is in --out.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for what TensorBoard shows.")] = None,
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
    """Train a network over cohorts of clients and evaluate every client; a run that was stopped can go on."""
    require("torch", extra="learn")
    from fedscape.learning.running import training
    from fedscape.learning.tracking import Board

    _check_out(out, resume, force)
    place = placing(engine, address, workers)
    _check_schedule(method, schedule, modes)
    if epsilon is not None and standardise:
        raise DataError("--standardise takes exact means of all rows, which --epsilon does not cover: scale them first")
    fed = _read(source, client, features)
    if schedule is not None:
        fed, mode_of_client = of_modes(fed, modes, target)
        chosen = sampler_for(schedule, mode_of_client, cohort)
    learners, held_out, local = _parts(
        fed, model, features, target, standardise, test, seed,
        lr=lr, epochs=epochs, batch_size=batch_size, proximal=proximal, device=device, strategy=strategy,
    )  # fmt: skip
    sampler = _sampler(cohort, len(learners)) if schedule is None else chosen
    if method in PERSONAL:
        if resume or any(given is not None for given in (epsilon, server_lr, tensorboard, q)):
            raise DataError(
                f"--resume, --epsilon, --server-lr, --tensorboard and --q go with fedavg and its kin, not {method}"
            )
        can_be_read = "," not in features and not standardise
        how = {"n_rounds": rounds, "sampler": sampler, "seed": seed}
        parts = (local, learners, place(learners), held_out)
        about = _personal(method, model, *parts, how, _folder(out, False), can_be_read)
        show(about, json_, lambda made: _finish(made, out, quiet))
        return
    computation, judge = _computation(
        method, local, learners, sampler, prior, server_lr=server_lr, q=q, private=epsilon is not None, seed=seed
    )
    folder = _folder(out, resume)
    how = _private(epsilon, delta, clip, rounds, sampler, len(learners), folder)
    said: list[dict[str, Any]] = []
    board = None if tensorboard is None else Board(tensorboard)
    for r, found, rows in training(
        computation, place(learners), test=held_out, n_rounds=rounds, sampler=sampler, seed=seed, every=every,
        checkpoint=folder and folder / "checkpoint", allow=computation.reveals, judge=judge, **how,
    ):  # fmt: skip
        _say(rows[len(said) :], quiet or json_, first=not said)
        if board is not None:
            board.write(rows[len(said) :])
        said = list(rows)
        if folder is not None:
            _write(folder, model, computation.local, r.state, found, rows)
    if not said:
        raise DataError(f"the run in {out} has made its {rounds} rounds already: raise --rounds to go on")
    result = {"model": model, "method": method, "clients": len(learners), "rounds": rounds, "table": said}
    if how:
        result["epsilon"] = {" ".join(group): spent for group, spent in how["ledger"].spent().items()}
    show(result, json_, lambda about: _finish(about, folder, quiet))


def sweep(
    source: Source,
    model: Model = "mlp",
    lr: Annotated[str, typer.Option(help="Learning rates to try, with commas between.")] = "0.01,0.03,0.1,0.3",
    proximal: Annotated[str, typer.Option(help="Proximal weights to try.")] = "0",
    server: Annotated[str, typer.Option(help="Factors on the server's learning rate to try.")] = "1",
    seeds: Annotated[str, typer.Option(help="Seeds of shuffles and first weights.")] = "0",
    rounds: Annotated[int, typer.Option(help="Rounds of the settings that stay to the end.")] = 20,
    rungs: Annotated[int, typer.Option(help="How often the worse two thirds leave; 1: all stay.")] = 1,
    cohort: Cohort = 10,
    epochs: Epochs = 1,
    batch_size: BatchSize = 10,
    features: Features = "x",
    target: Target = "y",
    standardise: Standardise = False,
    test: Test = 0.2,
    out: Annotated[Path | None, typer.Option(help="Folder for the table and what a stopped sweep needs.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep that is in --out.")] = False,
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
    """Try many settings of a training as one run, on the same cohorts; the best by held-out loss comes first."""
    require("torch", extra="learn")
    from fedscape.learning import grid
    from fedscape.learning import sweep as swept

    _check_out(out, resume, force)
    learners, held_out, local = _parts(
        _read(source, client, features), model, features, target, standardise, test, seed,
        lr=1.0, epochs=epochs, batch_size=batch_size, device=device, strategy=strategy,
    )  # fmt: skip
    place = placing(engine, address, workers)
    lists = {name: _list(text, name) for name, text in (("lr", lr), ("proximal", proximal), ("server", server))}
    whole = [int(s) for s in _list(seeds, "seeds")]
    folder = _folder(out, resume)
    trials = swept(
        local, place(learners), grid(**lists, seeds=whole), n_rounds=rounds, validation=held_out, rungs=rungs,
        sampler=_sampler(cohort, len(learners)), initial="seed", seed=seed,
        checkpoint=folder and folder / "checkpoint", progress=False if quiet or json_ else None,
    )  # fmt: skip
    result = [
        {**asdict(t.setting), "rounds": t.rounds, "diverged": t.diverged, **t.evaluation.summary()} for t in trials
    ]
    if folder is not None:
        (folder / "table.json").write_text(json.dumps(result, indent=1) + "\n")
    show(result, json_, _sweep_for_people)


def _computation(
    method: str,
    local: LocalSGD,
    learners: Federation,
    sampler: Any,
    prior: str,
    *,
    server_lr: float | None,
    q: float | None,
    private: bool,
    seed: int,
) -> tuple[FedAvg, Any]:
    """What clients are to train, and how a state of it is judged where that is not by its model alone."""
    from fedscape.learning.running import method_for

    weighting = "equal" if private else "samples"
    if method not in TEMPORAL:
        return method_for(method, local, server_lr=server_lr, weighting=weighting, q=q), None
    if q is not None:
        raise DataError(f"q goes with qfedavg, not with {method}")
    server = method_for("fedavg" if server_lr is None else "fedadam", local, server_lr=server_lr).server
    return temporal_method(method, local, learners, sampler, prior, server=server, weighting=weighting, seed=seed)


def _check_schedule(method: str, schedule: str | None, modes: str | None) -> None:
    if schedule is not None:
        return
    if method in TEMPORAL:
        raise DataError(f"{method} needs --schedule, such as cosine:p=1,T=256: who is there when")
    if modes is not None:
        raise DataError("--modes goes with --schedule")


def _read(source: str, client: str | None, features: str) -> Federation:
    from fedscape.learning.running import with_features

    return with_features(datasets.read(source, client=client), features.split(","))


def _parts(
    fed: Federation,
    model: str,
    features: str,
    target: str,
    standardise: bool,
    test: float,
    seed: int,
    **how: Any,
) -> tuple[Federation, Federation, LocalSGD]:
    from fedscape.learning import LocalSGD, cross_entropy
    from fedscape.learning.running import model_for, standardising

    names = features.split(",")
    column = names[0] if len(names) == 1 else "x"
    learners, held_out = fed.split(test=test, seed=seed)
    network = model_for(model, fed, features=column, target=target, seed=seed)
    if standardise:
        if model == "char_lstm":
            raise DataError("--standardise is for numbers, and char_lstm reads codes of characters")
        network = standardising(network, learners, column)
    return learners, held_out, LocalSGD(network, cross_entropy, features=column, target=target, **how)


def _check_out(out: Path | None, resume: bool, force: bool) -> None:
    if not resume:
        free(out, force)
    elif out is None:
        raise DataError("--resume goes with --out, the folder of the run to go on with")


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


def _list(text: str, name: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise DataError(f"--{name} must be numbers with commas between, such as 0.01,0.1, not {text!r}") from None


def _folder(out: Path | None, resume: bool) -> Path | None:
    if out is None:
        return None
    out.mkdir(parents=True, exist_ok=True)
    if not resume:
        for old in out.glob("checkpoint*"):
            old.unlink()
    return out


def _write(folder: Path, model: str, local: Any, state: Any, found: Any, rows: list[dict[str, Any]]) -> None:
    from fedscape.learning import save_model

    save_model(folder / "model.safetensors", local.model, state, about={"model": model, "round": rows[-1]["round"]})
    _write_tables(folder, found, rows)


def _write_tables(folder: Path, found: Any, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.csv

    from fedscape.checkpoint import replace_file

    clients = pa.table(found.table())
    replace_file(folder / "clients.csv", lambda file: pyarrow.csv.write_csv(clients, file))
    replace_file(folder / "table.json", lambda file: file.write((json.dumps(rows, indent=1) + "\n").encode()))


_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "round": lambda row: f"{row['round']:,}",
    "cohort": lambda row: f"{row['cohort']:,}",
    "seconds": lambda row: f"{row['seconds']:.1f}",
    "loss": lambda row: f"{row['loss_pooled']:.4f}",
    "accuracy": lambda row: f"{row['accuracy_pooled']:.4f}",
    "mean of clients": lambda row: f"{row['accuracy_of_clients']:.4f}",
    "worst tenth": lambda row: f"{row['accuracy_worst_decile']:.4f}",
}


def _say(rows: list[dict[str, Any]], quiet: bool, *, first: bool) -> None:
    if quiet:
        return
    if first:
        typer.echo("  ".join(f"{name:>15}" for name in _COLUMNS))
    for row in rows:
        typer.echo("  ".join(f"{tell(row):>15}" for tell in _COLUMNS.values()))


def _personal(
    method: str,
    model: str,
    local: LocalSGD,
    learners: Federation,
    engine: Engine,
    held_out: Federation,
    how: dict[str, Any],
    folder: Path | None,
    can_be_read: bool,
) -> dict[str, Any]:
    from fedscape.learning.running import arguments_for
    from fedscape.personal import save_personal
    from fedscape.personal import train as trained

    made = trained(method, local, engine, **how)
    say_revealed(method, made.method.reveals)
    found = made.evaluate(held_out)
    rows = [{"round": how["n_rounds"], **found.summary()}]
    if folder is not None:
        _write_tables(folder, found, rows)
        if can_be_read and method in ("fedem", "fedgmm", "ifca"):  # `adapt` and `novelty` read these
            given = arguments_for(model, learners, features=local.features, target=local.target)
            save_personal(folder / "personal", made, architecture=model, arguments=given)
        else:
            why = f"{method}, or features that were joined or standardised, cannot be made again from a file"
            typer.echo(f"nothing is written for 'fedscape adapt': {why}", err=True)
    return {"model": model, "method": method, "clients": len(learners), "rounds": how["n_rounds"], "table": rows}


def _finish(about: dict[str, Any], folder: Path | None, quiet: bool) -> None:
    last = about["table"][-1]
    names = ("p5", "p25", "p50", "p75", "p95", "worst_decile", "spread")
    if not quiet:
        columns = ["of clients", *names]
        lines = [[what, *[f"{last[f'{what}_{name}']:.4f}" for name in names]] for what in ("accuracy", "loss")]
        table(f"{last['clients_with_rows']:,} clients after {last['round']:,} rounds", columns, lines)
    for group, spent in about.get("epsilon", {}).items():
        typer.echo(f"spent: epsilon {spent:.3g} ({group}); the table of clients is the simulation's view, not private")
    if folder is not None:
        typer.echo(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")


def _sweep_for_people(rows: list[dict[str, Any]]) -> None:
    names = ["lr", "proximal", "server", "seed", "rounds"]
    shown = {"loss": "loss_pooled", "accuracy": "accuracy_pooled", "worst tenth": "accuracy_worst_decile"}
    lines = [
        [*[f"{row[n]:g}" for n in names], *["diverged" if row["diverged"] else f"{row[k]:.4f}" for k in shown.values()]]
        for row in rows
    ]
    table("settings, best first", [*names, *shown], lines)
