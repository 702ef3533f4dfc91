"""A run of `fedscape train`: from what was asked to a model in a folder, the same way for every method."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.cli.finding import found_by, undeclared, with_found
from fedscape.cli.finetuning import base_of, with_adapters
from fedscape.cli.options import overrules, placing, say_revealed
from fedscape.cli.results import directions_lines, finish, folder_for, say, say_worse, write
from fedscape.cli.rows import (
    check_declared_rows,
    check_named_features,
    inferred_kinds,
    named_rows,
    network_of,
    read_rows,
    say_lines,
    split_rows,
)
from fedscape.cli.show import show
from fedscape.cli.temporal import of_modes, options_on, sampler_for
from fedscape.cli.validate import check_out, check_private, check_request
from fedscape.core.sampling import parts_of_client
from fedscape.errors import DataError, require
from fedscape.methods import METHODS, Course, Options

if TYPE_CHECKING:
    from fedscape.cli.tables import TableTask
    from fedscape.core.federation import Federation
    from fedscape.core.sampling import Sampler
    from fedscape.formats.reading import Reading
    from fedscape.learning import LocalSGD
    from fedscape.learning.evaluation import Evaluation
    from fedscape.learning.inputs import Inputs
    from fedscape.learning.tracking import Sink
    from fedscape.privacy.ledger import Ledger
    from fedscape.statistics.undeclared import Discovery
    from fedscape.types import Arrays


_LARGE = 10.0  # root mean square of features


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `fedscape train`; `typed` names those that were on the command line."""

    source: str
    model: str
    base: Path | None
    lora: int | None
    lora_layers: str | None
    method: str | None
    rounds: int | None
    cohort: int | None
    lr: float
    epochs: int
    batch_size: int
    proximal: float
    q: float | None
    server_lr: float | None
    features: str | None
    target: str
    standardise: bool
    fill: str | None
    shape: str | None
    categorical: str | None
    numeric: str | None
    ignore: str | None
    keep: str | None
    names: str | None
    test: float
    schedule: str | None
    prior: str | None
    modes: str | None
    trees: int | None
    family: str | None
    ranges: str | None
    every: int
    epsilon: float | None
    find: float | None
    delta: float | None
    clip: float | None
    out: Path | None
    resume: bool
    tensorboard: Path | None
    mlflow: str | None
    wandb: Path | None
    client: str | None
    device: str
    strategy: str
    group_size: int | None
    engine: str
    address: str | None
    workers: int | None
    force: bool
    seed: int
    quiet: bool
    json_: bool
    typed: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The method: by default fedavg, on a schedule fedclock."""
        return self.method or ("fedavg" if self.schedule is None else "fedclock")


def run(request: Request) -> None:
    """Read the table, train, evaluate on the way, and show and keep what came of it."""
    require("torch", extra="learn")
    from fedscape.cli.tables import declared_ranges, is_number, table_task

    check_out(request.out, request.resume, request.force)
    place = placing(request.engine, request.address, request.workers, device=request.device)
    method, private = request.name, request.epsilon is not None
    check_request(method, request)
    check_private(request.epsilon, request.delta, request.clip, request.standardise, request.fill, request.find)
    over = overrules(request.categorical, request.numeric, request.ignore, request.keep)
    fed, reading, lines = read_rows(
        request.source, client=request.client, features=request.features, target=request.target, overrules=over
    )
    if private and request.features is None:
        check_named_features(fed, reading, request.target)
    fed, left_out = named_rows(fed, request.target, request.names)
    lines += inferred_kinds(fed, reading, request.numeric) if private else []
    tabular = METHODS[method].family == "tabular"
    discovery, folder, ledger = None, None, None
    if request.find is not None:  # what it finds is needed from here on, and what it spends is kept whatever follows
        sought = undeclared(
            request, fed, reading, set(declared_ranges(request.ranges)), tabular and is_number(request, fed)
        )
        folder = folder_for(request.out, request.resume, request.quiet)
        ledger = _ledger(request, folder)
        assert ledger is not None  # --find comes with --epsilon
        some = request.cohort or 0 if tabular else _cohort(request)
        exchanges = request.schedule is not None or 0 < some < len(fed)
        discovery = found_by(request, fed, sought, ledger, folder, exchanges=exchanges)
        fed, reading, more = with_found(request, fed, reading, discovery)
        lines += more
    task = table_task(request, fed, reading, discovery) if tabular else network_task(request, fed, reading, discovery)
    say_lines([*lines, *left_out, *task.lines], request.quiet)
    course = Course(method, task.local, place(task.learners), task.options, private=private)
    say_revealed(method, METHODS[method].reveals)
    folder = folder_for(request.out, request.resume, request.quiet) if discovery is None else folder
    how = _privacy(request, task, course, ledger or _ledger(request, folder))
    table = _train(request, task, course, folder, how)
    result = {"method": method, "clients": len(task.learners), "rounds": table[-1]["round"], "table": table}
    result |= task.about(course)
    if how:
        result["epsilon"] = {" ".join(group): spent for group, spent in how["ledger"].spent().items()}
        result["parts_of_a_client"] = parts_of_client(task.options.sampler)
    say_worse(result, task.n_classes, request.quiet, large=not (tabular or private) and _are_large(request, task))
    show(result, request.json_, lambda about: finish(about, folder, request.quiet))


def _are_large(request: Request, task: NetworkTask | TableTask) -> bool:
    """Whether features that could be scaled are far from 1: a rate that suits others makes them diverge."""
    column = task.local.features
    if request.standardise or request.base is not None or not isinstance(column, str):
        return False
    values = task.learners[column]
    return values.dtype.kind == "f" and float(np.square(values, dtype=float).mean()) > _LARGE**2


def _train(
    request: Request, task: NetworkTask | TableTask, course: Course, folder: Path | None, how: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The loop of every method: print, log and keep each evaluation; the table of rounds."""
    from fedscape.learning.run import training

    printed: list[dict[str, Any]] = []
    with _boards(request) as boards:
        for r, evaluation, rows in training(
            course.computation, course.engine, test=task.held_out, n_rounds=task.rounds, sampler=task.options.sampler,
            seed=request.seed, every=request.every, checkpoint=folder and folder / "checkpoint",
            allow=course.computation.reveals, judge=course.judge, done=course.is_done,
            progress=False if request.quiet else None, **how,
        ):  # fmt: skip
            say(rows[len(printed) :], request.quiet or request.json_, first=not printed)
            for board in boards:
                board.write(rows[len(printed) :])
            printed = list(rows)
            if folder is not None:
                task.save(folder, course, r.state, evaluation, rows)
    if not printed:
        raise DataError(f"the run in {request.out} has made its {task.rounds} rounds already: raise --rounds to go on")
    return printed


@contextlib.contextmanager
def _boards(request: Request) -> Iterator[list[Sink]]:
    """The tools that look on, as asked."""
    from fedscape.learning.tracking import Board, MLflow, WandB

    settings = {name: getattr(request, name) for name in ("lr", "epochs", "cohort", "seed")} | {"method": request.name}
    if request.epsilon is not None:  # who sees the board did not see the command
        settings |= {"epsilon": request.epsilon, "metrics": "exact: the simulation's view, not private"}
    with contextlib.ExitStack() as open_:
        sinks: list[Sink] = []
        if request.tensorboard is not None:
            sinks.append(open_.enter_context(Board(request.tensorboard)))
        if request.mlflow is not None:
            sinks.append(open_.enter_context(MLflow(request.mlflow, settings=settings)))
        if request.wandb is not None:
            sinks.append(open_.enter_context(WandB("fedscape", folder=request.wandb, settings=settings)))
        yield sinks


@dataclass(frozen=True)
class NetworkTask:
    """A network on the rows of a table."""

    learners: Federation
    held_out: Federation
    local: LocalSGD
    options: Options
    rounds: int
    lines: list[str]
    inputs: Inputs
    architecture: str
    arguments: dict[str, Any]
    method: str

    @property
    def n_classes(self) -> int:
        return len(self.inputs.classes)

    def save(
        self, folder: Path, course: Course, state: Arrays, evaluation: Evaluation, rows: list[dict[str, Any]]
    ) -> None:
        """Write the model and the tables."""
        write(folder, self.architecture, self.arguments, self.inputs, self.method, course, state, evaluation, rows)

    def about(self, course: Course) -> dict[str, Any]:
        """What the result says beside the table of rounds."""
        return {"model": self.architecture}


def network_task(
    request: Request, fed: Federation, reading: Reading, discovery: Discovery | None = None
) -> NetworkTask:
    """Rows as inputs, the network, how clients train it, and who takes part."""
    lines: list[str] = []
    if request.epsilon is not None:
        check_declared_rows(fed, reading, request.target)
    chosen = None
    if request.schedule is not None:
        fed, mode_of_client = of_modes(fed, request.modes, request.target)
        chosen = sampler_for(request.schedule, mode_of_client, _cohort(request))
        lines += [] if request.epsilon is None else [_PARTS.format(chosen.curve.n_modes)]
    base = None if request.base is None else base_of(request.base, request.target)
    learners, held_out, inputs, more = split_rows(
        fed, reading, target=request.target, fill=request.fill, standardise=request.standardise, shape=request.shape,
        test=request.test, seed=request.seed, client=request.client, discovery=discovery,
        inputs=None if base is None else base.inputs,
    )  # fmt: skip
    if base is None:
        architecture, private = request.model, request.epsilon is not None
        network, arguments = network_of(architecture, learners, inputs, request.seed, private=private)
    else:
        network, architecture, arguments = base.network, base.architecture, base.arguments
    network, adapters = with_adapters(network, request.lora, request.lora_layers, request.seed)
    local = local_training(
        network, inputs, lr=request.lr, epochs=request.epochs, batch_size=request.batch_size, proximal=request.proximal,
        device=request.device, strategy=request.strategy, group_size=request.group_size,
    )  # fmt: skip
    sampler = sampler_of(_cohort(request), len(learners)) if chosen is None else chosen
    options = Options(
        server_lr=request.server_lr,
        q=request.q,
        initial="given" if base is not None and request.lora is None else None,
        sampler=sampler,
        seed=request.seed,
        progress=False if request.quiet else None,
    )
    if METHODS[request.name].family == "temporal":
        options = options_on(options, sampler, request.prior)
    lines += [*more, *adapters, *directions_lines(request.name, local, held_out)]
    rounds = 20 if request.rounds is None else request.rounds
    return NetworkTask(learners, held_out, local, options, rounds, lines, inputs, architecture, arguments, request.name)


_PARTS = "a client is cut into up to {0} by its modes: noise and ledger are for all its parts together"


def _cohort(request: Request) -> int:
    return 10 if request.cohort is None else request.cohort


def local_training(network: Any, inputs: Inputs, **how: Any) -> LocalSGD:
    """How a client trains this network on these inputs."""
    from fedscape.learning import LocalSGD, cross_entropy

    return LocalSGD(network, cross_entropy, features=inputs.column, target=inputs.target, **how)


def sampler_of(cohort: int, n_clients: int) -> Sampler:
    """Cohorts of this many clients; 0 is all."""
    from fedscape import All, FixedSize

    if cohort < 0:
        raise DataError(f"--cohort must be at least 1, or 0 for all clients, not {cohort}")
    return All() if cohort == 0 or cohort >= n_clients else FixedSize(cohort)


def _ledger(request: Request, folder: Path | None) -> Ledger | None:
    if request.epsilon is None:
        return None
    from fedscape import Ledger

    path = None if folder is None else folder / "ledger.jsonl"
    return Ledger(path, epsilon=request.epsilon, delta=request.delta or 1e-6)


def _privacy(request: Request, task: NetworkTask | TableTask, course: Course, ledger: Ledger | None) -> dict[str, Any]:
    """Noise for what --find leaves of the budget, over all rounds, and the ledger of the run."""
    if request.epsilon is None:
        return {}
    from fedscape import All, Gaussian, calibrate

    left, sampler = 1 - (request.find or 0.0), task.options.sampler or All()
    epsilon, delta = left * request.epsilon, left * (request.delta or 1e-6)
    multiplier = calibrate(epsilon, delta, rounds=task.rounds, sampler=sampler, n_clients=len(task.learners))
    privacy = course.under(Gaussian(clip=request.clip or 1.0, multiplier=multiplier))
    return {"privacy": privacy, "ledger": ledger}
