"""Does a study read the period of real data from their dates, without being told it, and does FedClock mend the shift?

"phones": 723 phones, one row each half-hour of five days; the label is whether the phone was idle, charging and on
Wi-Fi. "phones, labels by the hour": FEMNIST digits and letters on the phones' trace:
a phone that is there at night has letters. "Online Retail": the invoice lines of a shop by
customer, 2010 to 2011; the label is one of eight classes of price with equally many lines, the feature the quantity.
Each is `studies.clock.study_clock` with nothing but the column of dates.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedscape import Federation, datasets
from fedscape.studies.clock import advice, study_clock
from fedscape.studies.prepare import prepare
from table import arguments, report


def phones(quick: bool) -> Federation:
    fed = datasets.load("phones")
    fed = fed.where(fed["available"] >= 0)
    y = (fed["available"] == 1).astype(np.int64)
    return Federation({"time": fed["time"], "y": y}, fed.offsets)


def phones_by_hour(quick: bool) -> Federation:
    """A row for each slot in which a phone is there: a digit by day, a letter at night, more the later."""
    trace, pool = datasets.load("phones"), datasets.load("femnist-mini")
    rng = np.random.default_rng(0)
    there = trace.where(trace["available"] == 1)
    hour = (there["time"].astype("datetime64[m]").astype(np.int64) % 1440) / 60
    night = rng.random(there.n_rows) < (1 + np.cos(2 * np.pi * (hour - 2) / 24)) / 2
    x, y = pool["x"].reshape(pool.n_rows, -1).astype(np.float32) / 255, pool["y"].astype(int)
    rows = np.where(
        night, rng.choice(np.flatnonzero(y >= 10), len(night)), rng.choice(np.flatnonzero(y < 10), len(night))
    )
    return Federation({"time": there["time"], "x": x[rows], "y": y[rows]}, there.offsets)


def retail(quick: bool) -> Federation:
    import pyarrow.parquet as pq

    path = Path(os.environ["FEDSCAPE_DATA"]) / "online_retail" / "online_retail_ii.parquet"
    table = pq.read_table(path, columns=["customer", "time", "price", "quantity"]).to_pandas().dropna()
    table = table[(table["quantity"] > 0) & (table["price"] > 0)].sort_values("customer", kind="stable")
    price = table["price"].to_numpy()
    y = np.searchsorted(np.quantile(price, np.linspace(0, 1, 9)[1:-1]), price, side="right")
    x = np.log(table["quantity"].to_numpy(dtype=float))[:, None]
    columns = {"time": table["time"].to_numpy().astype("datetime64[s]"), "x": x, "y": y}
    return Federation.from_arrays(columns, clients=table["customer"].to_numpy(dtype=np.int64))


SETS = {"phones": phones, "phones, labels by the hour": phones_by_hour, "Online Retail": retail}


def main() -> None:
    args = arguments(__doc__, only="")
    lines: list[dict[str, Any]] = []
    for name, load in SETS.items():
        if args.only and name not in args.only.split(";"):
            continue
        section = study_clock(prepare(load(args.quick)), seed=0)
        line: dict[str, Any] = {"data": name}
        if section is not None:
            line |= {n: section[n] for n in ("unit", "slots", "period", "interval", "p")}
            line |= {
                n: section.get("accuracy", {}).get(n, "")
                for n in ("through time", "mean network", "shuffled time", "FedClock")
            }
            print(name, advice(section)["text"], flush=True)
        lines.append(line)
    report("study_clock", lines, note="one seed; accuracy on held-out rows")


if __name__ == "__main__":
    main()
