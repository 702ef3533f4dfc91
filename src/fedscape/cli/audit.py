"""Attack a private computation with canaries, and compare the measured leakage with the claimed epsilon."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedscape.cli.options import Client, Column, Json, Seed
from fedscape.cli.show import as_text, pairs, show
from fedscape.errors import DataError, plural, require

if TYPE_CHECKING:
    from fedscape import Computation, Federation, Privacy, Sampler

KINDS = (
    "histogram", "moments", "kmeans", "mixture", "sketch", "fedavg", "quantiles", "heavy-hitters", "trees", "glm",
    "twin",
)  # fmt: skip
_CATEGORIES = ("histogram", "mixture", "heavy-hitters")  # kinds that look at a column of categories, by default y


def audit(
    what: Annotated[str, typer.Argument(help=f"One of {', '.join(KINDS)}.")],
    epsilon: Annotated[float, typer.Option(help="The claimed epsilon: noise is calibrated to it.")] = 1.0,
    delta: Annotated[float, typer.Option(help="The delta of the claim.")] = 1e-6,
    clients: Annotated[int, typer.Option(help="Number of synthetic clients; without --data.")] = 1000,
    data: Annotated[str | None, typer.Option(help="A name, a file or a folder, instead of synthetic clients.")] = None,
    client: Client = None,
    column: Column = None,
    unit: Annotated[str, typer.Option(help="What is protected: client or row.")] = "client",
    place: Annotated[str, typer.Option(help="Where noise is added: central, distributed or local.")] = "central",
    mechanism: Annotated[str, typer.Option(help="gaussian or laplace.")] = "gaussian",
    clip: Annotated[
        float | None, typer.Option(help="Clipping bound; by default one that fits the computation.")
    ] = None,
    sampler: Annotated[str, typer.Option(help="Client sampling: all, poisson:RATE or fixed:SIZE.")] = "all",
    rounds: Annotated[int, typer.Option(help="Rounds of a run; epsilon is the cost of all of them together.")] = 1,
    method: Annotated[str, typer.Option(help="repeats, one-run or resume.")] = "repeats",
    repeats: Annotated[int | None, typer.Option(help="Runs; by default 4000, or 20000 with a sampler.")] = None,
    confidence: Annotated[float, typer.Option(help="Confidence level of the bound.")] = 0.95,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for audit.json and audit.png.")] = None,
    json_: Json = False,
) -> None:
    """Attack to get a lower bound on epsilon and compare it with the claim; exit 1 if the bound is above the claim."""
    from fedscape.privacy.auditing import audit as audit_
    from fedscape.privacy.ranges import NOISE, check_positive

    check_positive("--epsilon", epsilon, NOISE, error=DataError)
    computation, federation = _computation(what, data, client, column, clients, seed)
    cohorts = _sampler(sampler)
    privacy = _privacy(computation, federation, mechanism, epsilon, delta, clip, unit, place, cohorts, rounds)
    result = audit_(
        computation,
        federation,
        privacy,
        sampler=cohorts,
        rounds=rounds,
        method=method,
        repeats=repeats,
        confidence=confidence,
        delta=delta,
        seed=seed,
    )
    about = result.about()
    if out is not None:
        _write(out, about)
    show({n: v for n, v in about.items() if n != "scores"}, json_, _for_people)
    if not result.holds:
        raise typer.Exit(1)


def _computation(
    what: str, data: str | None, client: str | None, column: str | None, clients: int, seed: int
) -> tuple[Computation, Federation]:
    import numpy as np

    import fedscape as fs

    if what not in KINDS:
        raise DataError(f"there is no audit of {what!r}: it is one of {', '.join(KINDS)}")
    if data is None and clients < 2:
        raise DataError(f"--clients must be at least 2, not {clients}")
    if what == "fedavg":
        require("torch", extra="learn")
    column = column or ("y" if what in _CATEGORIES else "x")
    if what == "twin":
        return _twin(data, client, clients, seed)
    if data is not None:
        federation = fs.datasets.read(data, client=client)
    else:
        rng = np.random.default_rng(seed)
        x = rng.normal(0, 0.3, (4 * clients, 2))
        y = rng.integers(0, 5, 4 * clients)
        own = y if what in _CATEGORIES else x
        federation = fs.Federation({"x": x, "y": y, column: own}, 4 * np.arange(clients + 1))
    categories = federation.categories(column) if what in ("histogram", "mixture") else 0
    if what == "histogram":
        return fs.Histogram(categories, column=column), federation
    if what == "moments":
        return fs.Moments(column=column, bound=1.0), federation
    if what == "kmeans":
        d = int(np.prod(federation[column].shape[1:]))
        starts = np.random.default_rng(seed).normal(0, 0.3, (1, 3, d))
        return fs.FederatedKMeans(3, column=column, bound=1.0, init=starts), federation
    if what == "sketch":
        return fs.DistributionSketch(rows=20, bits=2, column=column, centre=0.0), federation
    if what == "mixture":
        counts = fs.Federation({column: federation.counts(column, categories)}, np.arange(len(federation) + 1))
        return fs.MixtureOfDirichletMultinomials(2, n_init=1, seed=seed), counts
    if what == "quantiles":
        return fs.Quantiles([0.1, 0.5, 0.9], column=column, ranges=_ends(federation, column), cells=4), federation
    if what == "heavy-hitters":
        return fs.HeavyHitters(2, column=column, length=8, most=4), federation
    if what in ("trees", "glm"):
        return _tabular(what, federation, column)
    return _network(federation, column)


def _twin(data: str | None, client: str | None, clients: int, seed: int) -> tuple[Computation, Federation]:
    """A round of the twin's fit, on a log of devices or on devices that are there twice a day."""
    import numpy as np

    from fedscape.cli.plan import read_events
    from fedscape.twin import DevicePopulation, sessions

    if data is not None:
        log, tick = read_events(data, client)
        return DevicePopulation(2, tick=tick), log
    start = np.random.default_rng(seed).uniform(0, 4e4, (clients, 1)) + 43_200 * np.arange(6)
    device, begin = np.repeat(np.arange(clients), 6), start.ravel()
    return DevicePopulation(2, lengths=(0.5, 2.0), ages=(1.0,)), sessions(device, begin, begin + 600, window=(0.0, 3e5))


def _ends(federation: Federation, column: str) -> tuple[float, float]:
    """The range of a column, which a private run is told: the auditor may look."""
    import numpy as np

    values = np.asarray(federation[column], dtype=float)
    if not np.isfinite(values).any():
        raise DataError(f"column {column!r} has no value in any row: there is nothing to audit")
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return (low, high) if low < high else (low, low + 1.0)


def _tabular(what: str, federation: Federation, column: str) -> tuple[Computation, Federation]:
    """The rounds that `fedscape train --method trees|glm --epsilon` runs, on the features and the classes in y."""
    from fedscape import Local
    from fedscape.methods import Columns, Options, make

    if "y" not in federation:
        raise DataError(f"an audit of {what} needs a column 'y' of classes beside the features")
    if not federation.is_declared("y"):
        federation = federation.declare("y", [str(code) for code in range(federation.categories("y"))])
    ranges = {column: _ends(federation, column)}
    trees = 2 if what == "trees" else Options.trees
    options = Options(engine=Local(federation), private=True, ranges=ranges, trees=trees)
    computation: Computation = make(what, Columns(features=column), options)
    return computation, federation


def _network(federation: Federation, column: str) -> tuple[Computation, Federation]:
    import numpy as np

    import fedscape as fs
    from fedscape.learning import losses, models

    if "y" not in federation:
        raise DataError("an audit of fedavg needs a column 'y' of classes beside the features")
    features = int(np.prod(federation[column].shape[1:]))
    model = models.linear(features, federation.categories("y"))
    local = fs.LocalSGD(model, losses.cross_entropy, lr=0.1, epochs=1, batch_size=10, features=column, target="y")
    return fs.FedAvg(local), federation


def _sampler(text: str) -> Sampler:
    from fedscape import All, FixedSize, Poisson

    kind, _, number = text.partition(":")
    try:
        if kind == "all" and not number:
            return All()
        if kind == "poisson":
            return Poisson(float(number))
        if kind == "fixed":
            return FixedSize(int(number))
    except ValueError:
        pass
    raise DataError(f"--sampler must be all, poisson:RATE or fixed:SIZE, not {text!r}")


def _privacy(
    computation: Computation,
    federation: Federation,
    mechanism: str,
    epsilon: float,
    delta: float,
    clip: float | None,
    unit: str,
    place: str,
    sampler: Sampler,
    rounds: int,
) -> Privacy:
    """Return the mechanism for which the ledger would book the claimed epsilon."""
    from fedscape import All, Gaussian, Laplace, calibrate

    if mechanism not in ("gaussian", "laplace"):
        raise DataError(f"--mechanism must be gaussian or laplace, not {mechanism!r}")
    if clip is None:
        clip = 1.0
        if unit == "row":
            norm = 2 if mechanism == "gaussian" else 1
            clip = computation.row_bound(computation.start(0), norm, federation) or 1.0
    if mechanism == "laplace":
        draft = Laplace(clip=clip, epsilon=1.0, unit=unit, place=place)
        single = draft.entries(sampler, len(federation))["sum"]["multiplier"]  # 1 / epsilon of a round without sampling
        return Laplace(clip=clip, epsilon=epsilon / rounds * single, unit=unit, place=place)
    base = Gaussian(clip=clip, multiplier=1.0, unit=unit, place=place)
    entry = base.entries(sampler, len(federation))["sum"]
    drawn = sampler if entry["sampling"]["kind"] != "all" else All()
    multiplier = calibrate(epsilon, delta, rounds=rounds, sampler=drawn, n_clients=len(federation))
    if entry["sampling"]["kind"] == "all":
        multiplier /= entry["multiplier"]  # replacing a client changes the sum by up to twice the clip
    return Gaussian(clip=clip, multiplier=multiplier, unit=unit, place=place)


def _write(out: Path, about: dict[str, Any]) -> None:
    from fedscape.report.plots import plot_audit

    out.mkdir(parents=True, exist_ok=True)
    (out / "audit.json").write_text(as_text(about, indent=1) + "\n", "utf-8")
    plot_audit(about)[0].savefig(out / "audit.png", dpi=150)


def _for_people(about: dict[str, Any]) -> None:
    noticed = about["noticed"]
    rows = {
        "computation": textwrap.shorten(about["computation"], 160, placeholder=" ..."),
        "claim": f"epsilon {about['claim']:.4g} at delta {about['delta']:g} "
        f"({about['unit']}, {about['relation']}, {about['place']})",
        "bound": f"epsilon at least {about['bound']:.4g}, {100 * about['confidence']:g}% confidence; "
        f"{about['bound_any']:.4g} for any mechanism",
        "assumed": about["assumed"],
        "verdict": "holds: the bound is not above the claim" if about["holds"] else "BROKEN: more is spent than booked",
        "power": ", ".join(f"{100 * p:.0f}% at noise x {f}" for f, p in about["power"].items()) or "not estimated",
        "noticed": "no factor tried" if noticed is None else f"noise x {noticed:.3g} or less, with 80% or more",
        "from": f"{plural(about['repeats'], 'run')} of {plural(about['rounds'], 'round')}; parts: "
        + ", ".join(about["parts"][:6]),
    }
    pairs("audit", rows)
