"""What does a month of nightly checks find in a real shop? Online Retail II, every night of November 2011.

Clients are the customers of the last seven days, rows their invoice lines. The reference is the week before, or that
before `--reference`. Labels are classes of the price of a line, features its quantity and its hour. One false alarm a
year of nights is allowed. Customers of neighbouring nights overlap, so alarms come in runs.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from pathlib import Path

import numpy as np

from check import referred
from fedscape import Federation
from fedscape.studies.check import check
from table import arguments, report

FIRST, NIGHTS = dt.date(2011, 11, 1), 30


def week(columns: dict, until: dt.date) -> Federation:
    """The lines of the seven days before midnight of this day, by customer."""
    end = np.datetime64(until)
    mine = (columns["time"] >= end - np.timedelta64(7, "D")) & (columns["time"] < end)
    table = {name: values[mine] for name, values in columns.items() if name not in ("customer", "time")}
    return Federation.from_arrays(table, clients=columns["customer"][mine])


def main() -> None:
    given = arguments(__doc__, reference="2011-11-01")
    import pyarrow.parquet as pq

    path = Path(os.environ["FEDSCAPE_DATA"]) / "online_retail" / "online_retail_ii.parquet"
    table = pq.read_table(path, columns=["customer", "time", "price", "quantity"]).to_pandas().dropna()
    table = table[(table["quantity"] > 0) & (table["price"] > 0) & (table["time"] >= "2010-01-01")]
    columns = {
        "customer": table["customer"].to_numpy(dtype=np.int64),
        "time": table["time"].to_numpy(),
        "y": table["price"].to_numpy(dtype=float),
        "quantity": np.log(table["quantity"].to_numpy(dtype=float)),
        "hour": table["time"].dt.hour.to_numpy(dtype=float) + table["time"].dt.minute.to_numpy() / 60,
    }
    reference = referred(week(columns, dt.date.fromisoformat(given.reference)), given.seed)
    rows = []
    for night in range(1, (4 if given.quick else NIGHTS) + 1):
        day = FIRST + dt.timedelta(days=night)
        found = check(week(columns, day), reference, seed=night)
        tests = {test["test"]: test for test in found["tests"]}
        alarms = [test for test in found["tests"] if test["alarm"]]
        rows.append(
            {
                "night": day.isoformat(),
                "customers": found["clients"],
                "lines": found["rows"],
                **{n: f"{tests[n]['p']:.2g}{' !' if tests[n]['alarm'] else ''}" for n in sorted(tests)},
                "problems": ", ".join(f"{k} {n}" for k, n in Counter(p["kind"] for p in found["problems"]).items()),
                "first alarm": alarms[0]["text"] if alarms else "",
            }
        )
        print(rows[-1], flush=True)
    nights = sum("!" in str(row) for row in rows)
    name = "check_retail" if given.reference == FIRST.isoformat() else f"check_retail_{given.reference}"
    report(name, rows, note=f"{nights} of {len(rows)} nights with an alarm; 0.08 are allowed by chance")


if __name__ == "__main__":
    main()
