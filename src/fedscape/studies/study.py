"""The study, end to end: describe, measure, model, simulate, learn, advise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from fedscape.core.engine import Engine, Local
from fedscape.core.federation import Federation
from fedscape.core.progress import working
from fedscape.errors import DataError
from fedscape.formats.kinds import Overrules
from fedscape.formats.reading import Reading
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.ranges import NOISE, check_positive, check_share
from fedscape.studies.advise import advise
from fedscape.studies.against import Reference, with_reference
from fedscape.studies.budget import DEFAULT, Budget, budget_of
from fedscape.studies.clock import advice as clock_advice
from fedscape.studies.clock import study_clock
from fedscape.studies.dates import over_time
from fedscape.studies.describe import about_study, described, name_clients
from fedscape.studies.fidelity import LEAST, simulating
from fedscape.studies.intervals import FEW
from fedscape.studies.kinds import CENSUS_DELTA, census, declared_counts, found_names, model
from fedscape.studies.learn import learn, why_not
from fedscape.studies.measure import measure
from fedscape.studies.media import images, sequences
from fedscape.studies.numbers import numbers
from fedscape.studies.prepare import Prepared, prepare
from fedscape.studies.presence import log_of, study_presence
from fedscape.studies.presence_advice import advice as presence_advice
from fedscape.studies.reference import reference
from fedscape.studies.result import Study
from fedscape.studies.schema import FORMAT, Result
from fedscape.studies.sites import are_sites
from fedscape.studies.stages import STAGES, Stages
from fedscape.studies.tournament import entrants
from fedscape.studies.virtual_time import Log
from fedscape.types import Array


def study(
    federation: Federation,
    *,
    column: str | None = None,
    features: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    overrules: Overrules | None = None,
    reading: Reading | None = None,
    budget: str = DEFAULT,
    rounds: int | None = None,
    seeds: int | None = None,
    sites: bool | None = None,
    methods: Sequence[str] | None = None,
    epsilon: float | None = None,
    find: float | None = None,
    show_clients: bool = False,
    events: Federation | None = None,
    tick: float = 0.0,
    against: Reference | None = None,
    source: str = "a federation",
    command: str | None = None,
    ledger: Ledger | None = None,
    seed: int = 0,
    progress: bool | None = None,
    engine_for: Callable[[Federation], Engine] = Local,
) -> Study:
    """Study a federation: how clients differ, what kinds there are, which method to train, and whom it fails.

    Parameters
    ----------
    federation
        The clients.
    column
        Categories, count vectors, or a number (binned); by default y, label, labels, target or class. Without any
        of them cells of the features stand in.
    features
        Columns to learn from; by default x, or all other columns of numbers and of few categories.
    names
        Names of the categories, in the order of their codes. With epsilon, only these are counted.
    overrules
        Kinds of columns that override the inferred ones.
    reading
        How the columns were read, from `datasets.read_table`; by default they are read here.
    budget
        Size of the tournament: "30s", "2min" or "20min", about the time of a study on one core. It caps clients, rows,
        rounds and repeats; the clock is not read.
    rounds, seeds
        Rounds and repeats of the tournament, instead of the budget's. Each repeat trains every method for this many
        rounds, with other rows held out.
    sites
        True: the clients are a few sites, a whole population, and intervals are over rows inside each. False: they are
        a sample. By default fewer than 20 clients are sites.
    methods
        Methods of the tournament, by their names in `fedscape.methods.METHODS`, beside fedavg and local. By default a
        few of them; on tables with boosted trees and a GLM.
    epsilon
        Also count the categories privately within this budget (unit client, delta 1e-5). They must be declared, by
        `names` or by the data. The noise is secret, so two such studies differ. Without it the same inputs and seed
        give the same bytes.
    find
        With epsilon: the share of it that finds the categories instead, those that enough clients have.
    show_clients
        Put ids and a row per client into the result. By default a result may be shared: clients are numbered by their
        position on the map.
    events, tick
        Who was there when: a log, such as one of `fs.twin.sessions`, and the seconds to which its times are known. Its
        clients are found by their ids. By default dates with a time of day, if rows have them, are check-ins.
    against
        A reference, an earlier study or a population, that every figure of the report shows beside this one.
    source
        Name of the data in the report.
    command
        Command that repeats this study, printed in the report; by default a call of this function.
    ledger
        Ledger of the private count; by default one in memory with this budget.
    seed
        Seed of all randomness except the noise.
    progress
        True shows a bar, False nothing; by default a bar on a terminal, elsewhere a line per minute.
    engine_for
        Makes the engine on which the kinds of clients are fitted and private counts are made; the result is the same.

    >>> from fedscape import datasets
    >>> done = study(datasets.load("acs-race").take(slice(40)))
    >>> done.result["describe"]["clients"], done.result["advise"][0]["answer"]
    (40, 'yes')
    """
    limits = budget_of(budget, rounds=rounds, repeats=seeds)
    entrants(methods)  # refuse unknown ones before the long work
    counted = None
    if epsilon is not None:
        check_positive("epsilon", epsilon, NOISE, error=DataError)
        class_names = names if names is not None or overrules is None else overrules.names
        # before the long work, so that an exceeded budget fails at once
        counted = _counted(federation, column, class_names, epsilon, find, ledger, engine_for)
    least = 1 if show_clients else FEW
    data = prepare(
        federation, column=column, features=features, names=names, overrules=overrules, reading=reading, least=least,
        seed=seed,
    )  # fmt: skip
    notes = list(data.notes)
    result: dict[str, Any] = {"format": FORMAT, "findings": [finding.shared() for finding in data.reading.findings]}
    result["about"] = about_study(data, source, seed, show_clients)
    result["about"] |= {"asked": {"features": features and list(features), "epsilon": epsilon}}
    result["about"]["asked"] |= {"rounds": rounds, "seeds": seeds, "sites": sites}
    result["about"]["asked"] |= {"budget": None if budget == DEFAULT else budget}
    result["about"]["asked"] |= {"methods": None if methods is None else list(methods)}
    result["about"]["command"] = command
    with working("study", total=sum(STAGES.values()), unit="%", progress=progress) as tell:
        stages = Stages(tell)
        log = log_of(data, events, tick, notes)
        _fill(result, data, notes, stages, counted, show_clients, limits, log, engine_for)
    finished = Study(cast(Result, result), dict(stages.seconds))
    return finished if against is None else with_reference(finished, against)


def _counted(
    federation: Federation,
    column: str | None,
    names: Sequence[str] | None,
    epsilon: float,
    find: float | None,
    ledger: Ledger | None,
    engine_for: Callable[[Federation], Engine],
) -> dict[str, Any]:
    """The private count, of categories that are declared or found."""
    ledger = Ledger(epsilon=epsilon, delta=CENSUS_DELTA) if ledger is None else ledger
    if find is None:
        declared = declared_counts(federation, column, names)
        return census(declared, epsilon=epsilon, ledger=ledger, engine_for=engine_for)
    check_share("find", find, error=DataError)
    if names is not None:
        raise DataError("find= looks for names, and these are declared: give one of the two")
    spend, left = ({"epsilon": part * epsilon, "delta": part * CENSUS_DELTA} for part in (find, 1 - find))
    names, discovery = found_names(federation, column, **spend, ledger=ledger)
    return census(declared_counts(federation, column, names), **left, ledger=ledger, engine_for=engine_for) | {
        "found": discovery
    }


def _fill(
    result: dict[str, Any],
    data: Prepared,
    notes: list[str],
    stages: Stages,
    counted: dict[str, Any] | None,
    show_clients: bool,
    limits: Budget,
    log: Log | None,
    engine_for: Callable[[Federation], Engine],
) -> None:
    """Compute the sections of a result, one stage after the other."""
    seed, options, least = result["about"]["seed"], result["about"]["asked"], 1 if show_clients else FEW
    with stages.of("describe"):
        result["describe"] = described(data, show_clients)
        inside = {"images": images(data), "sequences": sequences(data, seed=seed)}
        result |= {name: section for name, section in inside.items() if section is not None}
    with stages.of("measure"):
        result["measure"] = measure(data, seed=seed, sites=are_sites(len(data.counts), options["sites"]))
    with stages.of("model"):
        result["model"], mixture, shares = model(data, seed=seed, progress=False, engine_for=engine_for)
        if counted is not None:
            result["model"]["census"] = counted
            notes.append("The private count has secret noise: another run of the same study differs in it.")
        result["reference"] = reference(data, result["model"], seed=seed)
    with stages.of("simulate"):
        if len(data.counts) >= LEAST:
            result["simulate"] = simulating(data, mixture, seed=seed)
        else:
            notes.append(f"Fidelity compares distributions and needs {LEAST} clients: there are {len(data.counts)}.")
    if (periods := over_time(data, shares, notes, least=least)) is not None:
        result["time"] = periods
    accuracies: dict[str, Array] = {}
    with stages.of("learn"):
        why = why_not(data)
        if why is None and data.number:
            result["numbers"], accuracies = numbers(
                data, shares, notes, stages, budget=limits, sites=options["sites"], show_clients=show_clients, seed=seed
            )
        elif why is None:
            result["learn"], accuracies = learn(
                data, mixture, shares, notes, stages, budget=limits, sites=options["sites"], show_clients=show_clients,
                seed=seed, methods=options["methods"],
            )  # fmt: skip
            kinds = result["learn"]["by_kind"]
            result["learn"]["by_kind"] = [kind for kind in kinds if kind["clients"] >= least]
        elif data.labels and data.width:
            notes.append(why)
    with stages.of("advise"):
        result["advise"] = advise(result)
        in_time = study_clock(data, seed=seed)
        if in_time is not None:
            result["clock"] = in_time
            result["advise"].append(clock_advice(in_time))
        if log is not None:
            learned = result.get("learn")
            result["presence"] = study_presence(
                data, shares, log, notes, learned=learned, budget=limits, least=least, seed=seed
            )
            result["advise"] += presence_advice(result["presence"])
    result["notes"] = notes
    name_clients(result, data, shares, accuracies, show_clients)
