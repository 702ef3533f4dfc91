"""A run of `fedscape train`: from what was asked to a model in a folder, the same way for every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscape.cli.options import overrules, placing, say_revealed
from fedscape.cli.results import directions_lines, finish, folder_for, say, say_worse, write
from fedscape.cli.rows import (
    check_declared_rows,
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
    from fedscape.types import Arrays


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `fedscape train`; `typed` names those that were on the command line."""

    source: str
    model: str
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
    delta: float | None
    clip: float | None
    out: Path | None
    resume: bool
    tensorboard: Path | None
    client: str | None
    device: str
    strategy: str
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


def run(asked: Request) -> None:
    """Read the table, train, evaluate on the way, and show and keep what came of it."""
    require("torch", extra="learn")
    from fedscape.cli.tables import table_task

    check_out(asked.out, asked.resume, asked.force)
    place = placing(asked.engine, asked.address, asked.workers)
    method, private = asked.name, asked.epsilon is not None
    check_request(method, asked)
    check_private(asked.epsilon, asked.delta, asked.clip, asked.standardise, asked.fill)
    over = overrules(asked.categorical, asked.numeric, asked.ignore, asked.keep)
    fed, reading, lines = read_rows(
        asked.source, client=asked.client, features=asked.features, target=asked.target, overrules=over
    )
    fed, left_out = named_rows(fed, asked.target, asked.names)
    tabular = METHODS[method].family == "tabular"
    task = table_task(asked, fed, reading) if tabular else network_task(asked, fed, reading)
    say_lines([*lines, *left_out, *task.lines], asked.quiet)
    course = Course(method, task.local, place(task.learners), task.options, private=private)
    say_revealed(method, METHODS[method].reveals)
    folder = folder_for(asked.out, asked.resume, asked.quiet)
    how = _privacy(asked, task, folder)
    table = _train(asked, task, course, folder, how)
    result = {"method": method, "clients": len(task.learners), "rounds": table[-1]["round"], "table": table}
    result |= task.about(course)
    if how:
        result["epsilon"] = {" ".join(group): spent for group, spent in how["ledger"].spent().items()}
        result["parts_of_a_client"] = parts_of_client(task.options.sampler)
    say_worse(result, task.n_classes, asked.quiet)
    show(result, asked.json_, lambda about: finish(about, folder, asked.quiet))


def _train(
    asked: Request, task: NetworkTask | TableTask, course: Course, folder: Path | None, how: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The loop of every method: print, log and keep each evaluation; the table of rounds."""
    from fedscape.learning.run import training
    from fedscape.learning.tracking import Board

    said: list[dict[str, Any]] = []
    board = None if asked.tensorboard is None else Board(asked.tensorboard)
    for r, found, rows in training(
        course.computation, course.engine, test=task.held_out, n_rounds=task.rounds, sampler=task.options.sampler,
        seed=asked.seed, every=asked.every, checkpoint=folder and folder / "checkpoint",
        allow=course.computation.reveals, judge=course.judge, done=course.is_done,
        progress=False if asked.quiet else None, **how,
    ):  # fmt: skip
        say(rows[len(said) :], asked.quiet or asked.json_, first=not said)
        if board is not None:
            board.write(rows[len(said) :])
        said = list(rows)
        if folder is not None:
            task.save(folder, course, r.state, found, rows)
    if not said:
        raise DataError(f"the run in {asked.out} has made its {task.rounds} rounds already: raise --rounds to go on")
    return said


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

    def save(self, folder: Path, course: Course, state: Arrays, found: Evaluation, rows: list[dict[str, Any]]) -> None:
        """Write the model and the tables."""
        write(folder, self.architecture, self.arguments, self.inputs, self.method, course, state, found, rows)

    def about(self, course: Course) -> dict[str, Any]:
        """What the result says beside the table of rounds."""
        return {"model": self.architecture}


def network_task(asked: Request, fed: Federation, reading: Reading) -> NetworkTask:
    """Rows as inputs, the network, how clients train it, and who takes part."""
    lines: list[str] = []
    if asked.epsilon is not None:
        check_declared_rows(fed, reading, asked.target)
    chosen = None
    if asked.schedule is not None:
        fed, mode_of_client = of_modes(fed, asked.modes, asked.target)
        chosen = sampler_for(asked.schedule, mode_of_client, _cohort(asked))
        lines += [] if asked.epsilon is None else [_PARTS.format(chosen.curve.n_modes)]
    learners, held_out, inputs, more = split_rows(
        fed, reading, target=asked.target, fill=asked.fill, standardise=asked.standardise, shape=asked.shape,
        test=asked.test, seed=asked.seed, client=asked.client,
    )  # fmt: skip
    network, arguments = network_of(asked.model, learners, inputs, asked.seed)
    local = local_training(
        network, inputs, lr=asked.lr, epochs=asked.epochs, batch_size=asked.batch_size, proximal=asked.proximal,
        device=asked.device, strategy=asked.strategy,
    )  # fmt: skip
    sampler = sampler_of(_cohort(asked), len(learners)) if chosen is None else chosen
    options = Options(
        server_lr=asked.server_lr, q=asked.q, sampler=sampler, seed=asked.seed, progress=False if asked.quiet else None
    )
    if METHODS[asked.name].family == "temporal":
        options = options_on(options, sampler, asked.prior)
    lines += [*more, *directions_lines(asked.name, local, held_out)]
    rounds = 20 if asked.rounds is None else asked.rounds
    return NetworkTask(learners, held_out, local, options, rounds, lines, inputs, asked.model, arguments, asked.name)


_PARTS = "a client is cut into up to {0} by its modes: noise and ledger are for all its parts together"


def _cohort(asked: Request) -> int:
    return 10 if asked.cohort is None else asked.cohort


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


def _privacy(asked: Request, task: NetworkTask | TableTask, folder: Path | None) -> dict[str, Any]:
    """Noise for the budget over all rounds, and the ledger of the run."""
    if asked.epsilon is None:
        return {}
    from fedscape import All, Gaussian, Ledger, calibrate

    delta, sampler = asked.delta or 1e-6, task.options.sampler or All()
    multiplier = calibrate(asked.epsilon, delta, rounds=task.rounds, sampler=sampler, n_clients=len(task.learners))
    ledger = Ledger(None if folder is None else folder / "ledger.jsonl", epsilon=asked.epsilon, delta=delta)
    return {"privacy": Gaussian(clip=asked.clip or 1.0, multiplier=multiplier), "ledger": ledger}
