"""Nested regression: carriers have aircraft, aircraft have flights; how late does each kind of aircraft arrive?

No carrier shows a flight: each sorts its own aircraft into classes and sends sums by class. The number of classes is
chosen on held-out aircraft. The baseline is one regression line for all. Both predict known aircraft, new aircraft of
known carriers, and a new carrier; each is measured by its error on held-out flights.
"""

from __future__ import annotations

import numpy as np

import fedscape as fs

FEATURES = ["dep_delay", "distance", "air_time"]


def regression(classes: object) -> fs.LatentClassRegression:
    return fs.LatentClassRegression(classes, features=FEATURES, target="arr_delay", entity="tailnum", seed=0)


def error(model: fs.LatentClassRegression, flights: fs.Federation) -> float:
    return float(np.sqrt(np.mean((model.predict(flights) - flights["arr_delay"]) ** 2)))


def main() -> None:
    carriers = fs.datasets.load("flights-mini")
    known, stranger = carriers.take(slice(0, 13)), carriers.take([13])
    young = known["tailnum"] % 5 == 0  # every fifth aircraft has never been seen
    fleet, new = known.where(~young), known.where(young)
    train, test = fleet.split(test=0.25, seed=0)

    line, classes = regression(1).fit(train), regression(range(1, 5)).fit(train)
    print("classes  held-out log-likelihood")
    for tried in classes.candidates_:
        chosen = "  <- chosen" if tried["components"] == len(classes.weights_) else ""
        print(f"{tried['components']:>7}  {tried['score']:.3f}{chosen}")
    for k, share in enumerate(classes.weights_):
        slopes = ", ".join(f"{n} {c:+.3f}" for n, c in zip(FEATURES, classes.coefficients_[k], strict=True))
        print(f"class {k} ({share:.0%} of aircraft): {classes.intercepts_[k]:+.1f} min, {slopes}")

    print("root mean square error in minutes       one line   classes")
    for name, flights in (("known aircraft", test), ("new aircraft", new), ("a new carrier", stranger)):
        print(f"{name:<40}{error(line, flights):>8.2f} {error(classes, flights):>9.2f}")


if __name__ == "__main__":
    main()
