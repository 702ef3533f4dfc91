"""Do sketch distances tell Dirichlet clients from uniform ones? (sketch paper, Figure 1)

Group A: clients of MNIST with classes from a Dirichlet law (0.5); group B: clients drawn alike. Mean distances within
and between the groups, raw and debiased, with B as large as A and with B ten times smaller; distances are divided by
the root of the rows. `--png FILE` draws the matrices.
"""

from __future__ import annotations

import numpy as np

import fedscape as fs
from client_selection import federation, writers
from fedscape.sketches import heterogeneity, pairwise
from table import arguments, report


def groups(x: np.ndarray, y: np.ndarray, sizes_a: int, sizes_b: int, seed: int) -> fs.Federation:
    """Five clients of each group, of these sizes."""
    rng = np.random.default_rng(seed)
    rows, n_classes = [], int(y.max()) + 1
    for _ in range(5):
        shares = rng.dirichlet(np.full(n_classes, 0.5))
        wanted = rng.multinomial(sizes_a, shares)
        rows.append(np.concatenate([rng.choice(np.flatnonzero(y == c), k) for c, k in enumerate(wanted) if k]))
    rows += [rng.choice(len(y), sizes_b, replace=False) for _ in range(5)]
    return federation(rows, x, y)


def matrices(fed: fs.Federation, seed: int) -> tuple[np.ndarray, np.ndarray, fs.sketches.Heterogeneity]:
    sketch = fs.DistributionSketch(1000, bits=6, centre="mean", seed=seed).fit(fed, progress=False)
    s = sketch.transform(fed)
    raw = pairwise(s) / np.sqrt(1000)
    return raw, pairwise(s, sizes=fed.sizes) / np.sqrt(1000), heterogeneity(s, fed.sizes)


def means(d: np.ndarray) -> dict[str, float]:
    off = ~np.eye(5, dtype=bool)
    return {"A-A": d[:5, :5][off].mean(), "A-B": d[:5, 5:].mean(), "B-B": d[5:, 5:][off].mean()}


def draw(path: str, made: dict[str, np.ndarray]) -> None:
    from PIL import Image, ImageDraw

    cell, gap, names = 44, 60, [f"A{i}" for i in range(5)] + [f"B{i}" for i in range(5)]
    image = Image.new("RGB", (len(made) * (10 * cell + gap) + gap, 10 * cell + 2 * gap), "white")
    pen = ImageDraw.Draw(image)
    for k, (title, d) in enumerate(made.items()):
        left = gap + k * (10 * cell + gap)
        pen.text((left, 12), title, fill="black")
        for i in range(10):
            pen.text((left + i * cell + 14, gap - 18), names[i], fill="black")
            pen.text((left - 22, gap + i * cell + 16), names[i], fill="black")
            for j in range(10):
                value = float(d[i, j] / d.max())
                colour = tuple(int(255 - value * c) for c in (215, 140, 60))
                box = (left + j * cell, gap + i * cell, left + (j + 1) * cell, gap + (i + 1) * cell)
                pen.rectangle(box, fill=colour, outline="white")
                pen.text((box[0] + 8, box[1] + 16), f"{d[i, j]:.2f}", fill="white" if value > 0.6 else "black")
    image.save(path)


def main() -> None:
    args = arguments(__doc__, png="")
    if args.quick:
        fed, large, small = writers("femnist-mini"), 400, 40
        x, y = fed["x"], fed["y"].astype(np.int64)
    else:
        fed, large, small = fs.datasets.load("mnist"), 2000, 200
        x, y = fed["x"], fed["y"].astype(np.int64)
    rows, shown = [], {}
    for size_b in (large, small):
        found: dict[str, list[dict[str, float]]] = {"raw": [], "debiased": []}
        shares = []
        for seed in range(args.seed, args.seed + (2 if args.quick else 5)):
            raw, fair, one = matrices(groups(x, y, large, size_b, seed), seed)
            found["raw"].append(means(raw))
            found["debiased"].append(means(fair))
            shares.append(one.value)
            if seed == args.seed:
                shown |= {f"raw, B of {size_b}": raw, f"debiased, B of {size_b}": fair}
        for what, each in found.items():
            row = {"rows in A": large, "rows in B": size_b, "distance": what}
            for pair in ("A-A", "A-B", "B-B"):
                v = np.array([e[pair] for e in each])
                row[pair] = f"{v.mean():.3f} ± {1.96 * v.std(ddof=1) / np.sqrt(len(v)):.3f}"
            row["heterogeneity"] = float(np.mean(shares))
            rows.append(row)
    report("sketch_distance", rows, note="R = 1000, 6 bits, centred; five clients a group; 95% intervals over seeds")
    if args.png:
        draw(args.png, shown)


if __name__ == "__main__":
    main()
