"""What do sums over the customers of a shop tell? Online Retail II: two years, 5,878 customers, 805,549 lines.

A customer is a client, a line of an invoice a row: its time and which of sixteen kinds of goods it is, by the words of
its description. Four questions: what populations of baskets there are; whether what is bought depends on the time of
the day and on the day; how far the mix moves from month to month and from year to year; and how well the first invoice
of a customer who came in the second year says what the later ones hold, when only customers of the first year were
learned from. Intervals are over customers. Differences are judged by exchanging the two sides of customers at random.
Reads online_retail/online_retail_ii.parquet in FEDSCAPE_DATA; `--quick` takes every tenth customer.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

import fedscape as fs
from table import RESULTS, arguments, report

GOODS = {
    "Christmas": "CHRISTMAS|XMAS|ADVENT", "party": "PARTY|BUNTING|BIRTHDAY|BALLOON", "bags": "BAG|SHOPPER|BASKET",
    "lunch": "LUNCH|SNACK|PICNIC", "baking": "CAKE|CAKESTAND|BAKING|MOULD", "tea": "TEA|MUG|CUP|TEACUP|COFFEE|TEAPOT",
    "bottles": "BOTTLE|WATER|FLASK", "lights": "T-LIGHT|LIGHT|CANDLE|LANTERN|LAMP", "paper": "CARD|WRAP|PAPER|RIBBON",
    "toys": "KIT|FELTCRAFT|DOLLY|SPACEBOY|TOY|GAME|PLAYING", "signs": "SIGN|DOORMAT|CLOCK|FRAME|HOOK",
    "boxes": "BOX|TIN|DRAWER|CABINET|STORAGE", "garden": "GARDEN|FLOWER|BIRD|PLANT|HERB",
    "kitchen": "BOWL|CUTLERY|PLATE|TRAY|JAR|DISH|SPOON|CERAMIC|GLASS", "hearts": "HEART|LOVE|ROSE", "other": "",
}  # fmt: skip
NAMES, YEAR = list(GOODS), np.datetime64("2010-12-01")
Counts = np.ndarray  # [customers, goods]


def kinds(descriptions: pd.Series) -> np.ndarray:
    """Which goods each line is: the first kind one of whose words the description has."""
    words = descriptions.astype("category")
    code = np.full(len(words.cat.categories), len(GOODS) - 1)
    for k, pattern in reversed([(k, p) for k, p in enumerate(GOODS.values()) if p]):
        code[words.cat.categories.str.contains(rf"(?<!\w)(?:{pattern})S?(?!\w)", regex=True)] = k
    return code[words.cat.codes.to_numpy()]


def shop(quick: bool) -> pd.DataFrame:
    """Lines with a customer, a quantity and a price: customer, invoice, time, y."""
    path = Path(os.environ["FEDSCAPE_DATA"]) / "online_retail" / "online_retail_ii.parquet"
    lines = pd.read_parquet(path, columns=["customer", "invoice", "time", "description", "quantity", "price"])
    lines = lines[lines["customer"].notna() & (lines["quantity"] > 0) & (lines["price"] > 0)]
    lines = lines[lines["customer"] % 10 == 0] if quick else lines
    lines["y"] = kinds(lines["description"].astype(str))
    lines["customer"] = lines["customer"].astype(np.int64)
    return lines.sort_values(["customer", "time"], kind="stable")


def federation(lines: pd.DataFrame) -> fs.Federation:
    return fs.Federation.from_arrays({"y": lines["y"].to_numpy()}, clients=lines["customer"].to_numpy())


def counted(lines: pd.DataFrame, customers: np.ndarray) -> Counts:
    """Lines of each customer by goods; zeros for one without any."""
    where = np.searchsorted(customers, lines["customer"].to_numpy())
    flat = np.bincount(where * len(NAMES) + lines["y"].to_numpy(), minlength=len(customers) * len(NAMES))
    return flat.reshape(len(customers), len(NAMES))


def populations(first: fs.Federation) -> tuple[list[dict], dict[int, fs.MixtureOfDirichletMultinomials], int]:
    """Bits a line saved on held-out customers, the mixtures by number of kinds, and the number chosen without them."""
    order = np.random.default_rng(0).permutation(len(first))
    test, learn = (first.take(np.sort(part)) for part in np.split(order, [len(first) // 5]))
    counts = test.counts("y", n_categories=len(NAMES))
    shares = learn.counts("y", n_categories=len(NAMES)).sum(axis=0) + 1.0  # a sum, as all that is learned here
    alike = -(counts @ np.log2(shares / shares.sum()))
    fitted, rows = {}, []
    tried = (1, 2, 3, 4, 6, 8)
    mine = learn.counts("y", n_categories=len(NAMES))
    mixture = fs.MixtureOfDirichletMultinomials(n_init=2, rounds=60, seed=0)
    chosen = fs.choose_components(mixture, mine, candidates=tried, progress=False).n_components
    for k in (0, *tried):
        if k:
            fitted[k] = fs.MixtureOfDirichletMultinomials(k, n_init=2, rounds=60, seed=0).fit(mine, progress=False)
        bits = alike - sequence_bits(fitted[k], counts) if k else np.zeros(len(counts))
        per_line = bits / counts.sum(axis=1)
        rows.append({"kinds of customers": k or "all alike", **mean_of("bits saved a line", per_line, 4)})
    return rows, fitted, chosen


def sequence_bits(mdm: fs.MixtureOfDirichletMultinomials, counts: Counts) -> np.ndarray:
    """-log2 of the probability of each customer's lines in order, under a mixture."""
    from scipy.special import gammaln, logsumexp

    return -logsumexp(np.log(mdm.weights_) + _log_beta_ratio(mdm.concentrations_, counts, gammaln), axis=1) / np.log(2)


def _log_beta_ratio(alpha: np.ndarray, counts: Counts, gammaln) -> np.ndarray:
    """log of B(alpha + n) / B(alpha): [customers, components]."""
    up = gammaln(alpha[None] + counts[:, None]) - gammaln(alpha[None])
    totals = alpha.sum(axis=1)[None]
    return up.sum(axis=2) - gammaln(totals + counts.sum(axis=1)[:, None]) + gammaln(totals)


def hours(lines: pd.DataFrame) -> tuple[list[dict], Counts]:
    """Lines by weekday and hour; whether the mix of goods differs between parts of the day and of the week."""
    time, customers = lines["time"].dt, np.unique(lines["customer"])
    table = np.bincount(time.day_of_week * 24 + time.hour, minlength=168).reshape(7, 24)
    hour, day = time.hour, time.day_of_week
    rows = []
    for name, one, other in (
        ("before 11 / from 15", hour < 11, hour >= 15),
        ("Monday to Thursday / Friday and Sunday", day < 4, day >= 4),
    ):
        far = apart(counted(lines[one], customers), counted(lines[other], customers))
        rows.append({"what": name, "lines": f"{one.sum():,} / {other.sum():,}", **far})
    return rows, table


def drift(lines: pd.DataFrame) -> list[dict]:
    """How far the mix of goods of each month lies from that of the month before, and of the same month a year ago."""
    month, customers = lines["time"].dt.to_period("M"), np.unique(lines["customer"])
    counts = {str(m): counted(lines[month == m], customers) for m in sorted(month.unique())}
    names, rows = list(counts)[:-1], []  # the last month has nine days
    for i, name in enumerate(names):
        own = counts[name]
        row = {"month": name, "customers": int((own.sum(axis=1) > 0).sum()), "lines": int(own.sum())}
        row |= {"Christmas": "{:.1%} ({:.1%} to {:.1%})".format(*share_of(own, NAMES.index("Christmas")))}
        for what, back in (("month before", 1), ("year before", 12)):
            if i >= back:
                far = apart(own, counts[names[i - back]])
                row[what] = f"{far['distance']:.3f}{'' if far['p'] > 0.01 else ' !'} ({far['by chance, 97.5%']:.3f})"
        rows.append(row)
    return rows


def share_of(counts: Counts, category: int) -> tuple[float, float, float]:
    """The share of a kind of goods among lines, with a 95% interval by bootstrap over customers."""
    rng = np.random.default_rng(0)
    weights = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), 400)
    draws = weights @ counts[:, category] / np.maximum(weights @ counts.sum(axis=1), 1)
    return counts[:, category].sum() / counts.sum(), *np.quantile(draws, (0.025, 0.975))


def apart(one: Counts, other: Counts, n: int = 400) -> dict:
    """Total variation distance of two mixes, and what exchanging the sides of customers at random gives."""
    rng = np.random.default_rng(0)
    found = _distance(one.sum(axis=0), other.sum(axis=0))
    both = one + other
    draws = []
    for _ in range(n):
        swap = rng.random(len(one)) < 0.5
        mine = one[~swap].sum(axis=0) + other[swap].sum(axis=0)
        draws.append(_distance(mine, both.sum(axis=0) - mine))
    p = (1 + np.sum(np.array(draws) >= found)) / (n + 1)
    return {"distance": float(found), "by chance, 97.5%": float(np.quantile(draws, 0.975)), "p": float(p)}


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(abs(a / a.sum() - b / b.sum()).sum() / 2)


def newcomers(lines: pd.DataFrame, fitted: dict) -> list[dict]:
    """Customers who came in the second year: bits a line of later invoices, given the first one."""
    begin = lines.groupby("customer")["time"].transform("min")
    late = lines[begin >= YEAR]
    opening = late.groupby("customer")["invoice"].transform("first") == late["invoice"]
    customers = np.unique(late.loc[~opening, "customer"])  # those who came back
    seen, later = (
        counted(part[part["customer"].isin(customers)], customers) for part in (late[opening], late[~opening])
    )
    old = counted(lines[lines["time"] < YEAR], np.unique(lines.loc[lines["time"] < YEAR, "customer"])).sum(axis=0) + 1.0
    alone = (seen + 1.0) / (seen.sum(axis=1, keepdims=True) + len(NAMES))
    guesses = {"the shares of all": np.broadcast_to(old / old.sum(), seen.shape), "its first invoice alone": alone}
    for k in fitted:
        guesses[f"{k} kind{'s' if k > 1 else ''} of customers and its first invoice"] = predicted(fitted[k], seen)
    per_line = {n: -(later * np.log2(q)).sum(axis=1) / later.sum(axis=1) for n, q in guesses.items()}
    n_seen, rows = seen.sum(axis=1), []
    for name, low, high in (("all", 1, np.inf), ("1 to 9", 1, 9), ("10 to 29", 10, 29), ("30 and more", 30, np.inf)):
        mine = (n_seen >= low) & (n_seen <= high)
        for guess, bits in per_line.items():
            saved = per_line["the shares of all"] - bits
            row = {"lines of the first invoice": name, "customers": int(mine.sum()), "guess from": guess}
            rows.append(row | {"bits a line": f"{bits[mine].mean():.3f}", **mean_of("saved", saved[mine], 3)})
    return rows


def predicted(mdm: fs.MixtureOfDirichletMultinomials, seen: Counts) -> np.ndarray:
    """The probability of the next line's goods, given those seen: [customers, goods]."""
    alpha = mdm.concentrations_
    responsible = mdm.predict_proba(seen, sizes=False)
    next_of = (alpha[None] + seen[:, None]) / (alpha.sum(axis=1)[None, :, None] + seen.sum(axis=1)[:, None, None])
    return np.einsum("nk,nkc->nc", responsible, next_of)


def mean_of(name: str, values: np.ndarray, digits: int) -> dict:
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    return {name: f"{values.mean():.{digits}f}", "± 95%": f"{half:.{digits}f}"}


def figure(table: Counts, months: list[dict], cold: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    fig, (left, middle, right) = plt.subplots(
        1, 3, figsize=(12.5, 3.4), width_ratios=(1, 1.15, 1.05), layout="constrained"
    )
    shown = table[:, 6:21] / 1000
    picture = left.imshow(shown, aspect="auto", cmap="viridis")
    left.set(title="lines by day and hour, thousands", xlabel="hour", yticks=range(7))
    left.set_yticklabels(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
    left.set_xticks(range(0, 15, 2), range(6, 21, 2))
    fig.colorbar(picture, ax=left)
    share = np.array([[float(v.strip("()%")) for v in m["Christmas"].replace("to ", "").split()] for m in months])
    at = np.arange(len(months))
    middle.fill_between(at, share[:, 1], share[:, 2], alpha=0.3, linewidth=0)
    middle.plot(at, share[:, 0], marker="o", markersize=3)
    middle.set_xticks(at[::3], [m["month"] for m in months][::3], rotation=40, ha="right")
    middle.set(title="Christmas goods, % of lines (95% over customers)", ylim=(0, None))
    sizes = list(dict.fromkeys(r["lines of the first invoice"] for r in cold))[1:]
    guesses = list(dict.fromkeys(r["guess from"] for r in cold))[1:]
    for g, guess in enumerate(guesses):
        mine = [
            next(r for r in cold if (r["lines of the first invoice"], r["guess from"]) == (s, guess)) for s in sizes
        ]
        where = np.arange(len(sizes)) + 0.2 * (g - 1)
        right.errorbar(
            where, [float(r["saved"]) for r in mine], [float(r["± 95%"]) for r in mine], fmt="o", label=guess
        )
    right.axhline(0, color="0.6", linewidth=0.8)
    right.set_xticks(range(len(sizes)), sizes)
    right.set(title="new customers: bits saved a line", xlabel="lines of the first invoice")
    right.legend(frameon=False, fontsize=7, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)


def main() -> None:
    given = arguments(__doc__)
    lines = shop(given.quick)
    kinds_of, fitted, chosen = populations(federation(lines[lines["time"] < YEAR]))
    note = f"customers of the first year, a fifth of them held out; choose_components takes {chosen}"
    report("online_retail_populations", kinds_of, note=note)
    about = fitted[chosen]
    order = np.argsort(-about.weights_)
    what = [
        {"share of customers": f"{about.weights_[k]:.1%}", "concentration": f"{about.concentrations_[k].sum():.1f}",
         "more than elsewhere": ", ".join(NAMES[c] for c in np.argsort(-_lift(about, k))[:3])} for k in order
    ]  # fmt: skip
    report("online_retail_kinds", what)
    clock, table = hours(lines)
    report("online_retail_clock", clock, note=f"lines by weekday: {table.sum(axis=1).tolist()}")
    months = drift(lines)
    report("online_retail_drift", months, note="! p below 0.01; in brackets 97.5% of what chance gives")
    cold = newcomers(lines, {k: fitted[k] for k in sorted({1, chosen})})
    report("online_retail_newcomers", cold)
    folder = RESULTS / "quick" if given.quick else Path(__file__).parents[1] / "docs" / "images"
    figure(table, months, cold, folder / "online_retail.png")


def _lift(mdm: fs.MixtureOfDirichletMultinomials, k: int) -> np.ndarray:
    shares = mdm.concentrations_ / mdm.concentrations_.sum(axis=1, keepdims=True)
    return shares[k] / (mdm.weights_ @ shares)


if __name__ == "__main__":
    main()
