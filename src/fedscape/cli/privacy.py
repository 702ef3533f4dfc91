"""Commands for privacy budgets: what was spent, and how much noise a budget needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedscape.cli.options import Json
from fedscape.cli.show import flat, pairs, show, table
from fedscape.errors import DataError

privacy = typer.Typer(help="Privacy budgets: what was spent, and how much noise a budget needs.", no_args_is_help=True)


@privacy.command("show")
def privacy_show(ledger: Annotated[Path, typer.Argument(help="The ledger's file.")], json_: Json = False) -> None:
    """Show what was spent and reserved, for each (unit, relation, place)."""
    from fedscape.privacy.ledger import summary

    show(summary(ledger), json_, _ledger_for_people)


@privacy.command("calibrate")
def privacy_calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    rounds: Annotated[int, typer.Option(help="Number of rounds.")],
    delta: Annotated[float, typer.Option(help="The delta of the budget.")] = 1e-6,
    rate: Annotated[float | None, typer.Option(help="Poisson sampling: the share of clients in a round.")] = None,
    size: Annotated[
        int | None, typer.Option(help="Fixed-size sampling: the clients in a round, with --clients.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 0,
    json_: Json = False,
) -> None:
    """Compute the Gaussian noise multiplier that keeps a run within a budget."""
    from fedscape import All, FixedSize, Poisson, Sampler, calibrate

    if rate is not None and size is not None:
        raise DataError("give --rate or --size, not both")
    sampler: Sampler = Poisson(rate) if rate is not None else FixedSize(size) if size is not None else All()
    multiplier = calibrate(epsilon, delta, rounds=rounds, sampler=sampler, n_clients=clients)
    about = {"multiplier": multiplier, "epsilon": epsilon, "delta": delta, "rounds": rounds, "sampler": repr(sampler)}
    show(about, json_, lambda result: pairs("calibration", flat(result)))


def _ledger_for_people(about: dict[str, Any]) -> None:
    if not about["private"]:
        typer.echo("NOT PRIVATE: some of this noise came from a noise_seed and is predictable.")
    rows = [
        [t["unit"], t["relation"], t["place"], f"{t['spent']:.4g}", f"{t['reserved']:.4g}"] for t in about["totals"]
    ]
    budget = "no limit" if about["epsilon"] is None else f"{about['epsilon']:g}"
    title = f"epsilon at delta {about['delta']:g}; budget of each line: {budget}; {about['releases']:,} releases"
    table(title, ["unit", "relation", "place", "spent", "with reserved"], rows)
