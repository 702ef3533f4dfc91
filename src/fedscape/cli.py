"""The command line: each command is one library call, printed for people or, with --json, for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

import fedscape
from fedscape import datasets
from fedscape.errors import CheckpointError, DataError, FedscapeError

T = TypeVar("T")

app = typer.Typer(
    name="fedscape",
    help="Measure, model, simulate and learn the landscape of client data in federated learning.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Look at and convert data.", no_args_is_help=True)
privacy = typer.Typer(help="What was spent, and how much noise a budget needs.", no_args_is_help=True)
app.add_typer(data, name="data")
app.add_typer(privacy, name="privacy")

Source = Annotated[str, typer.Argument(help="A name (see 'fedscape data info'), a file or a folder.")]
Client = Annotated[str | None, typer.Option("--client", help="Column that says whose a row is (Parquet, CSV).")]
Column = Annotated[str | None, typer.Option("--column", help="The column to model: categories or ready counts.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Seed = Annotated[int, typer.Option("--seed", help="Everything random is a function of it.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, no remarks.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]


def main() -> None:
    """Run the command line: exit 0 on success, 2 for bad input, 1 for any other failure."""
    try:
        app()
    except FedscapeError as error:
        sys.stderr.write(f"fedscape: {error}\n")
        sys.exit(2 if isinstance(error, DataError | CheckpointError) else 1)
    except KeyboardInterrupt:
        sys.stderr.write("fedscape: stopped\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        sys.stderr.write(f"fedscape: {error.filename or ''}: {error.strerror or error}\n")
        sys.exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedscape {fedscape.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def describe(source: Source, column: Column = None, client: Client = None, seed: Seed = 0, json_: Json = False) -> None:
    """Clients, sizes, columns and missing values; with --column also how far clients are apart in it."""
    from fedscape.description import describe as described

    about = described(datasets.read(source, client=client), column=column, seed=seed)
    _show(about, json_, _describe_for_people)


@app.command()
def study(
    source: Annotated[
        str, typer.Argument(help="A name, a file or a folder; without one, embedded writers.")
    ] = "femnist-mini",
    column: Annotated[str, typer.Option("--column", help="The column to model: categories or ready counts.")] = "y",
    client: Client = None,
    epsilon: Annotated[float, typer.Option(help="The budget of the private count.")] = 2.0,
    out: Annotated[Path | None, typer.Option(help="Folder for result.json.")] = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Describe a federation, measure how its clients differ, and count its categories privately."""
    from fedscape.study import save
    from fedscape.study import study as studied

    fed = datasets.read(source, client=client)
    result = studied(fed, column=column, epsilon=epsilon, seed=seed, progress=False if quiet else None)
    if out is not None:
        save(result, out)
    _show(result, json_, _study_for_people)


@app.command()
def fit(
    source: Source,
    column: Annotated[str, typer.Option("--column", help="The column to model: categories or ready counts.")] = "y",
    components: Annotated[str, typer.Option(help="How many kinds of clients: 3, or 1-6 to choose among them.")] = "1-6",
    out: Annotated[Path | None, typer.Option(help="Where the population goes: a .json file.")] = None,
    client: Client = None,
    solver: Annotated[str, typer.Option(help="exact, newton or fixed_point.")] = "exact",
    starts: Annotated[int, typer.Option(help="How many starts run side by side.")] = 4,
    rounds: Annotated[int, typer.Option(help="At most this many rounds.")] = 30,
    force: Force = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Model the population of clients as a mixture of Dirichlet-multinomials, and save it."""
    from fedscape.study import population

    if out is not None and out.exists() and not force:
        raise DataError(f"{out} is there already: pass --force to replace it")
    fed = datasets.read(source, client=client)
    made, about = population(
        fed,
        column,
        candidates=_numbers(components),
        solver=solver,
        n_init=starts,
        rounds=rounds,
        seed=seed,
        progress=False if quiet else None,
    )
    if out is not None:
        made.save(out)
    _show(about, json_, _population_for_people)


@app.command()
def sample(
    population: Annotated[Path, typer.Argument(help="A .json file that 'fedscape fit' wrote.")],
    clients: Annotated[int, typer.Option(help="How many clients to draw.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="Where their counts go: .parquet, .json (LEAF) or a folder.")] = None,
    force: Force = False,
    seed: Seed = 0,
    json_: Json = False,
) -> None:
    """Draw new clients from a fitted population: their counts, one row a client."""
    from fedscape.study import draw

    fed = draw(population, clients, seed=seed)
    if out is not None:
        datasets.write(fed, out, overwrite=force)
    from fedscape.description import describe as described

    _show(described(fed, column="y", seed=seed), json_, _describe_for_people)


@app.command()
def doctor(json_: Json = False) -> None:
    """Python, packages, extras, GPU and data folder: what is here and what is missing."""
    from fedscape.doctor import examine

    _show(examine(), json_, lambda found: _pairs("fedscape doctor", _flat(found)))


@data.command("info")
def data_info(
    name: Annotated[str | None, typer.Argument(help="A name; none lists all.")] = None, json_: Json = False
) -> None:
    """List the data sets, or say what is known about one."""
    if name is not None:
        _show(datasets.info(name), json_, lambda about: _pairs(str(about["name"]), _flat(about)))
        return
    _show([datasets.info(each) for each in datasets.names()], json_, _names_for_people)


@data.command("convert")
def data_convert(
    source: Source,
    target: Annotated[Path, typer.Argument(help="Ends in .parquet, .csv, .json (LEAF), or is a folder to make.")],
    client: Client = None,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Write data in another format."""
    fed = datasets.read(source, client=client)
    datasets.write(fed, target, overwrite=force)
    done = {"written": str(target), "clients": len(fed), "rows": fed.n_rows}
    _show(done, json_, lambda about: typer.echo(f"{target}: {len(fed):,} clients, {fed.n_rows:,} rows"))


@privacy.command("show")
def privacy_show(ledger: Annotated[Path, typer.Argument(help="The ledger's file.")], json_: Json = False) -> None:
    """What was spent and what is reserved, for each (unit, relation, place)."""
    from fedscape.ledger import summary

    _show(summary(ledger), json_, _ledger_for_people)


@privacy.command("calibrate")
def privacy_calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    rounds: Annotated[int, typer.Option(help="How many rounds.")],
    delta: Annotated[float, typer.Option(help="The delta of the budget.")] = 1e-6,
    rate: Annotated[float | None, typer.Option(help="Poisson sampling: the share of clients in a round.")] = None,
    size: Annotated[
        int | None, typer.Option(help="Fixed-size sampling: the clients in a round, with --clients.")
    ] = None,
    clients: Annotated[int, typer.Option(help="How many clients there are.")] = 0,
    json_: Json = False,
) -> None:
    """The Gaussian noise multiplier that keeps a run within a budget."""
    from fedscape import All, FixedSize, Poisson, Sampler, calibrate

    if rate is not None and size is not None:
        raise DataError("give --rate or --size, not both")
    sampler: Sampler = Poisson(rate) if rate is not None else FixedSize(size) if size is not None else All()
    multiplier = calibrate(epsilon, delta, rounds=rounds, sampler=sampler, n_clients=clients)
    about = {"multiplier": multiplier, "epsilon": epsilon, "delta": delta, "rounds": rounds, "sampler": repr(sampler)}
    _show(about, json_, lambda found: _pairs("calibration", _flat(found)))


def _numbers(text: str) -> list[int]:
    """3 is [3], 1-6 is [1, ..., 6]."""
    low, dash, high = text.partition("-")
    try:
        found = list(range(int(low), int(high if dash else low) + 1))
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise DataError(f"--components must be a number such as 3 or a range such as 1-6, not {text!r}")
    return found


# -- printing ----------------------------------------------------------------------------------------------------------


def _show(result: T, as_json: bool, for_people: Callable[[T], None]) -> None:
    if as_json:
        typer.echo(json.dumps(result, indent=2, default=float))
    else:
        for_people(result)


def _table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*[Text(f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v)) for v in row])
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _pairs(title: str, pairs: dict[str, Any]) -> None:
    _table(title, ["what", "value"], [[name, value] for name, value in pairs.items()])


def _flat(about: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in about.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def _describe_for_people(about: dict[str, Any]) -> None:
    columns = about.pop("columns")
    skew = about.pop("skew", None)
    _pairs("federation", _flat(about))
    names = ["name", "type", "shape", "missing", "categories", "min", "mean", "max"]
    _table("columns", names, [[column.get(name, "") for name in names] for column in columns])
    if skew is not None:
        _pairs(f"skew of {skew.pop('column')}: mean distance to all clients together (0 to 1)", _flat(skew))


def _names_for_people(sets: list[dict[str, Any]]) -> None:
    rows = []
    for about in sets:
        where = "embedded" if about["embedded"] else "found" if about["size"] is not None else "needs FEDSCAPE_DATA"
        rows.append([about["name"], about["clients"], about["rows"], where, about["description"]])
    _table("data sets", ["name", "clients", "rows", "where", "what"], rows)


def _ledger_for_people(about: dict[str, Any]) -> None:
    if not about["private"]:
        typer.echo("NOT PRIVATE: some of this noise came from a noise_seed and can be foretold.")
    rows = [
        [t["unit"], t["relation"], t["place"], f"{t['spent']:.4g}", f"{t['reserved']:.4g}"] for t in about["totals"]
    ]
    budget = "no limit" if about["epsilon"] is None else f"{about['epsilon']:g}"
    title = f"epsilon at delta {about['delta']:g}; budget of each line: {budget}; {about['releases']:,} releases"
    _table(title, ["unit", "relation", "place", "spent", "with reserved"], rows)


def _study_for_people(result: dict[str, Any]) -> None:
    _describe_for_people(dict(result["describe"]))
    census = result["census"]
    title = (
        f"private count (unit client, epsilon {census['epsilon']:g}, delta {census['delta']:g}): "
        f"noisy shares are {census['error']:.4f} from the exact ones"
    )
    largest = sorted(zip(census["names"], census["exact"], census["private"], strict=True), key=lambda row: -row[1])
    _table(title, ["category", "exact share", "private share"], [list(row) for row in largest[:10]])
    _population_for_people(result["population"])
    if "clusters" in result:
        _pairs("clusters of the features, by sums alone", _flat(result["clusters"]))
    typer.echo(f"done in {result['seconds']:.1f} s")


def _population_for_people(about: dict[str, Any]) -> None:
    if len(about["candidates"]) > 1:
        names = ["components", "held-out log-likelihood", "behind the best", "standard error"]
        _table("how many kinds of clients", names, [list(row.values()) for row in about["candidates"]])
    rows = [[c["weight"], c["scale"], c["mean_size"], c["most"]] for c in about["components"]]
    title = f"{len(rows)} kinds of clients, found in {about['rounds']} rounds of {about['bytes_up']:,} bytes per client"
    _table(title, ["share of clients", "alpha_0 (large: alike)", "mean size", "most frequent categories"], rows)
