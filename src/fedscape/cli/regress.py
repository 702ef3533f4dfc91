"""The command for latent-class regression on nested data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from fedscape import datasets
from fedscape.cli.options import (
    Address,
    Categorical,
    EngineName,
    Force,
    Ignore,
    Json,
    Numeric,
    Quiet,
    Seed,
    Source,
    Workers,
    check_json,
    free,
    numbers,
    overrules,
    placing,
    say_reading,
)
from fedscape.cli.show import pairs, short, show, table
from fedscape.errors import plural

Agent = Annotated[str | None, typer.Option("--client", help="Column with the client of each row (Parquet, CSV).")]
FEWEST_DRAWS = 50  # per chain: with fewer, R-hat is often above 1.1 even for chains that agree


def regress(
    source: Source,
    target: Annotated[str, typer.Option("--column", help="The column to predict.")],
    features: Annotated[str, typer.Option(help="The columns to predict it from (comma-separated).")],
    agent: Agent = None,
    entity: Annotated[
        str | None, typer.Option(help="Column with the entity of each row; by default each row is an entity.")
    ] = None,
    components: Annotated[str, typer.Option(help="Number of classes: 3, or 1-8 to choose.")] = "1-8",
    method: Annotated[str, typer.Option(help="federated, central, central-exact or em.")] = "federated",
    link: Annotated[str, typer.Option(help="identity, or logistic or probit for a target of 0 and 1.")] = "identity",
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 20,
    chains: Annotated[int, typer.Option(help="Number of chains, compared by R-hat.")] = 1,
    alpha: Annotated[float, typer.Option(help="Dirichlet prior of the class shares over all clients.")] = 1.0,
    beta: Annotated[float, typer.Option(help="Concentration of each client's shares around them.")] = 1.0,
    learn_prior: Annotated[bool, typer.Option("--learn-prior", help="Learn alpha and beta instead.")] = False,
    fill: Annotated[
        str, typer.Option(help="Missing features: drop the row, or mean or median of the training rows.")
    ] = "drop",
    out: Annotated[Path | None, typer.Option(help="Where to write the regression: a .json file.")] = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    ignore: Ignore = None,
    force: Force = False,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    json_: Json = False,
) -> None:
    """Sort the entities of clients into classes, each with its own regression; a fifth of the rows is held out."""
    from fedscape.mixtures.latent_class.baselines import Fill, regression
    from fedscape.mixtures.latent_class.model import Link, Method

    free(out, force)
    check_json(out)
    columns = overrules(categorical, numeric, ignore)
    fed, reading = datasets.read_table(source, client=agent, overrules=columns)
    say_reading(reading, json_, features=False)
    fitted, about = regression(
        fed,
        target=target,
        features=[name.strip() for name in features.split(",") if name.strip()],
        entity=entity,
        candidates=numbers(components),
        method=cast(Method, method),
        link=cast(Link, link),
        rounds=rounds,
        chains=chains,
        alpha=None if learn_prior else alpha,
        beta=None if learn_prior else beta,
        fill=cast(Fill, fill),
        seed=seed,
        progress=False if quiet else None,
        place=placing(engine, address, workers),
    )
    if out is not None:
        fitted.save(out)
    show(about, json_, _for_people)


def _for_people(about: dict[str, Any]) -> None:
    if about["candidates"]:
        names = ["classes", "held-out log-likelihood per row", "behind the best", "standard error"]
        table("how many classes", names, [[short(v) for v in row.values()] for row in about["candidates"]])
    names = list(about["classes"][0]["coefficients"])
    rows = [
        [short(c["share"]), round(c["entities"]), round(c["events"]), short(c["intercept"])]
        + [f"{short(v)} ± {short(e)}" for v, e in zip(c["coefficients"].values(), c["errors"].values(), strict=True)]
        for c in about["classes"]
    ]
    title = f"{plural(len(rows), 'class', 'classes')} of entities: {about['target']} by class"
    table(title, ["share", "entities", "rows", "intercept", *names], rows)
    if "r_hat" in about:
        remark = "the chains agree" if about["r_hat"] < 1.1 else "the chains differ: use more rounds or fewer classes"
        if about["late_draws"] < FEWEST_DRAWS:
            remark = f"{about['late_draws']} late draws per chain are too few to tell, use --rounds {2 * FEWEST_DRAWS}"
        typer.echo(f"largest R-hat {about['r_hat']:.3g}: {remark}")
    pairs("held-out rows", {name: short(value) for name, value in about["test"].items()})
