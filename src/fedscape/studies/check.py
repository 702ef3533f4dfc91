"""Check later data against a study: drift of labels, features, sizes and kinds, and problems of single clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.sampling import All
from fedscape.errors import DataError
from fedscape.privacy.accounting import calibrate
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Gaussian
from fedscape.simulate import SelfScore, self_score
from fedscape.studies.compare import drift
from fedscape.studies.describe import shares_of
from fedscape.studies.intervals import plain
from fedscape.studies.problems import problem, problems
from fedscape.studies.profile import numbers_of, of_clients
from fedscape.studies.reference import BINS, counts_against, kinds, moments
from fedscape.studies.result import Study

NIGHTS = 365
_DRAWS = 40_000  # enough to resolve p-values below 1/1000
DELTA = 1e-5
_ROUNDED = 1e-9  # a study keeps nine digits: means this close are equal


def check(
    federation: Federation, against: Study, *, column: str | None = None, alarms_per_year: float = 1.0, seed: int = 0
) -> dict[str, Any]:
    """Compare data with the study of a reference: tests of drift, each with its threshold, and problems per client.

    If nothing has changed, a run raises an alarm with probability `alarms_per_year` / 365, over all tests and on
    average over references. A single reference that is off by chance raises it every night. The tests assume that both
    samples of clients are independent: for the same clients at two times they are conservative. Problems come from
    rules, not tests: values far outside those of all clients of the reference.

    Parameters
    ----------
    federation
        The current data.
    against
        The study of the reference.
    column
        The column of categories; by default that of the study.
    alarms_per_year
        False alarms allowed in a year of nightly runs.

    >>> from fedscape import datasets
    >>> from fedscape.studies import study
    >>> races = datasets.load("acs-race")
    >>> check(races.take(slice(1, 80, 2)), study(races.take(slice(0, 80, 2))))["alarms"]
    0
    """
    _check_rate(alarms_per_year)
    result = against.result
    reference: Any = result.get("reference")
    if reference is None:
        raise DataError("this study has no reference: run it again with this version of fedscape")
    if not result["about"]["labels"]:
        raise DataError("the study has no column of labels, only cells of its features: run it again with --column")
    if not len(federation) or not federation.n_rows:
        raise DataError("the data have no rows to check")
    categories: Any = result["describe"]["categories"]
    counts, unknown = counts_against(
        federation, column or result["about"]["column"], list(categories["names"]), reference.get("cuts")
    )
    tests = [_labels(categories, counts, seed), _sizes(reference["sizes"], counts)]
    tests += _features(reference["columns"], federation)
    tests += [_kinds(reference["kinds"], counts, result["model"], seed)]
    issues = problems(federation, reference)
    if unknown > 0:
        text = f"{unknown:.1%} of the rows have a category that the reference lacks"
        rows = round(unknown * federation.n_rows)
        issues.insert(0, problem("", column or result["about"]["column"], "new category", text, rows))
    about = {"reference": result["about"]["source"], "clients": len(federation), "rows": federation.n_rows}
    about |= {"worst": worst_tenth(federation, counts, result["model"])}
    about |= power(reference["sizes"]["clients"], int((counts.sum(axis=1) > 0).sum()), alarms_per_year, len(tests))
    return _verdict(tests, issues, alarms_per_year, about)


def power(before: int, now: int, alarms_per_year: float, tests: int) -> dict[str, Any]:
    """The shift of a mean over clients, in their standard deviations, that four in five runs would see.

    Where it is above one, `too_few` is set: that nothing is found then says little.

    >>> power(12, 12, 1.0, 4)["too_few"], round(power(500, 500, 1.0, 4)["detectable"], 2)
    (True, 0.27)
    """
    from scipy.special import ndtri

    level = alarms_per_year / NIGHTS / max(tests, 1)
    reach = (float(ndtri(0.8)) - float(ndtri(level / 2))) * np.sqrt(1 / max(before, 1) + 1 / max(now, 1))
    return {"detectable": float(reach), "too_few": bool(reach > 1)}


def worst_tenth(federation: Federation, counts: Any, model: Any) -> dict[str, Any]:
    """The tenth of the clients farthest from every kind of the reference, beyond what their few rows explain.

    `value` is the mean share of their rows that would need another category to have the shares of the nearest kind,
    `chance` what clients of these sizes of that kind would have.
    """
    sizes = counts.sum(axis=1)
    measurable = np.flatnonzero(sizes > 1)
    if not len(measurable):
        return {"clients": [], "value": None, "chance": None}
    shares = counts[measurable] / sizes[measurable, None]
    kinds = np.array([kind["means"] for kind in model["components"]], dtype=float)
    apart = np.abs(shares[:, None] - kinds).sum(axis=2) / 2  # [clients, kinds]
    chance = np.sqrt(2 * kinds * (1 - kinds) / np.pi).sum(axis=1) / 2 / np.sqrt(sizes[measurable, None])
    nearest = (apart - chance).argmin(axis=1)
    rows = np.arange(len(measurable))
    apart, chance = apart[rows, nearest], chance[rows, nearest]
    worst = np.argsort(-(apart - chance), kind="stable")[: max(1, len(measurable) // 10)]
    names = [str(federation.ids[measurable[i]]) for i in worst]
    return {"clients": names, "value": float(apart[worst].mean()), "chance": float(chance[worst].mean())}


def check_population(
    federation: Federation,
    population: Any,
    *,
    column: str = "y",
    alarms_per_year: float = 1.0,
    epsilon: float | None = None,
    ledger: Ledger | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare clients with a saved population by one sum over them; with `epsilon` that sum is private.

    Every client scores itself against its own draws from the population (`simulate.self_score`); the server sees
    histograms of these scores. No problems are listed: they would be about single clients.
    """
    _check_rate(alarms_per_year)
    privacy = None
    if epsilon is not None:
        multiplier = calibrate(epsilon, DELTA, rounds=1, sampler=All())
        privacy = Gaussian(clip=2.45, multiplier=multiplier)
        ledger = Ledger(epsilon=epsilon, delta=DELTA) if ledger is None else ledger
    score: SelfScore = self_score(population, federation, column=column, privacy=privacy, ledger=ledger, seed=seed)
    titles = {
        "likelihood": "kinds of clients (likelihood)",
        "distance": "distance of clients to the pooled data",
        "support": "number of categories per client",
        "direction_1": "labels, first direction",
        "direction_2": "labels, second direction",
        "size": "sizes of clients",
    }
    tests = [
        {
            "test": titles[name],
            "value": score.misfit[name],
            "low": score.interval[name][0],
            "high": score.interval[name][1],
            "p": score.p[name],
            "text": f"total variation distance of the scores {score.misfit[name]:.3f}",
        }
        for name in score.histograms
    ]
    about: dict[str, Any] = {"reference": "a population", "clients": len(federation), "rows": federation.n_rows}
    if epsilon is not None:
        about |= {"rows": None, "clients": None, "epsilon": epsilon}
    return _verdict(tests, [], alarms_per_year, about)


def _check_rate(alarms_per_year: float) -> None:
    if not 0 < alarms_per_year <= NIGHTS:
        raise DataError(f"alarms per year must be above 0 and at most {NIGHTS}, not {alarms_per_year:g}")


def _verdict(
    tests: list[dict[str, Any]], issues: list[dict[str, Any]], alarms_per_year: float, about: Mapping[str, Any]
) -> dict[str, Any]:
    level = alarms_per_year / NIGHTS / max(len(tests), 1)
    for test in tests:
        test["threshold"] = level
        test["alarm"] = bool(test["p"] < level)
    tests.sort(key=lambda test: test["p"])
    alarms = sum(test["alarm"] for test in tests)
    result: dict[str, Any] = plain(
        {**about, "alarms_per_year": alarms_per_year, "level": level, "alarms": alarms, "tests": tests}, 9
    )
    return result | {"problems": issues}


def _labels(categories: Mapping[str, Any], counts: Any, seed: int) -> dict[str, Any]:
    now = shares_of(counts, list(categories["names"]))
    shift = drift(categories, now, seed=seed, draws=_DRAWS)
    most = shift["moved"][0]
    text = f"distance of mean shares {shift['value']:.3f}, {shift['none']:.3f} without drift; most moved: "
    text += f"{most['category']} ({most['first']:.1%} to {most['second']:.1%})"
    return {"test": "labels", **{k: shift[k] for k in ("value", "low", "high", "p")}, "text": text}


def _welch(name: str, before: Mapping[str, Any], now: Mapping[str, Any], text: str) -> dict[str, Any] | None:
    """Compare two means over clients by Welch's t-test."""
    from scipy.special import stdtr, stdtrit

    if None in (before["sd"], now["sd"]) or min(before["clients"], now["clients"]) < 2:
        return None
    parts = np.array([about["sd"] ** 2 / about["clients"] for about in (before, now)])
    same = np.isclose(now["mean"], before["mean"], rtol=_ROUNDED, atol=_ROUNDED)
    apart = 0.0 if same else now["mean"] - before["mean"]
    if parts.sum() <= 0:
        return {"test": name, "value": apart, "low": apart, "high": apart, "p": float(apart == 0), "text": text}
    freedom = parts.sum() ** 2 / (parts**2 / [before["clients"] - 1, now["clients"] - 1]).sum()
    error = float(np.sqrt(parts.sum()))
    reach = float(stdtrit(freedom, 0.975)) * error
    p = float(2 * stdtr(freedom, -abs(apart) / error))
    return {"test": name, "value": apart, "low": apart - reach, "high": apart + reach, "p": p, "text": text}


def _sizes(before: Mapping[str, Any], counts: Any) -> dict[str, Any]:
    now = moments(np.log(np.maximum(counts.sum(axis=1), 1)))
    ratio = np.exp(now["mean"] - before["mean"])
    test = _welch("sizes", before, now, f"clients have {ratio:.2f} times as many rows (geometric mean)")
    return test or {
        "test": "sizes",
        "value": 0.0,
        "low": None,
        "high": None,
        "p": 1.0,
        "text": "one client: not tested",
    }


def _features(columns: list[Mapping[str, Any]], federation: Federation) -> list[dict[str, Any]]:
    """One test over all numeric columns: the smallest p-value times their number (Bonferroni)."""
    reference = {about["name"]: about for about in columns}
    names = list(dict.fromkeys(name.partition("[")[0] for name in reference))
    tested = []
    for name, values in numbers_of(federation, names):
        if name in reference:
            now = moments(of_clients(federation, values)["mean"])
            if now["mean"] is None:
                continue
            text = f"{name}: mean of clients {reference[name]['mean']:.4g} to {now['mean']:.4g}"
            test = _welch(name, reference[name], now, text)
            tested += [] if test is None else [test]
    if not tested:
        return []
    least = min(tested, key=lambda test: float(test["p"]))
    return [least | {"test": "features", "p": min(1.0, least["p"] * len(tested))}]


def _kinds(before: Mapping[str, Any], counts: Any, model: Any, seed: int) -> dict[str, Any]:
    """Test whether clients fit the kinds as well as those of the reference, by the ranks of their likelihoods.

    Two tests, and twice the smaller p-value. Fisher's exact test looks for more clients of the lowest rank, as from a
    new kind. A chi-square test over tenths looks for any other change of the ranks.
    """
    from scipy.stats import chi2_contingency, fisher_exact

    now = kinds(counts, model, seed=seed + 1)
    ranks = np.array([before["ranks"], now["ranks"]])
    if min(ranks.sum(axis=1)) < BINS:
        text = f"fewer than {BINS} clients with two rows or more: not tested"
        return {"test": "kinds", "value": 0.0, "low": None, "high": None, "p": 1.0, "text": text}
    low, total = ranks[:, 0], ranks.sum(axis=1)
    tenths = ranks.reshape(2, 10, -1).sum(axis=2)
    tenths = tenths[:, tenths.sum(axis=0) > 0]
    new = float(fisher_exact([[low[1], total[1] - low[1]], [low[0], total[0] - low[0]]], "greater").pvalue)
    other = float(chi2_contingency(tenths, correction=False).pvalue)
    share = low / total
    text = f"{share[1]:.1%} of the clients have the lowest of {BINS} ranks of fit to the kinds; "
    text += f"{share[0]:.1%} in the reference"
    p = min(1.0, 2 * min(new, other))
    return {"test": "kinds", "value": float(share[1] - share[0]), "low": None, "high": None, "p": p, "text": text}
