"""A fitted forest: predictions, and its JSON file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.checkpoint import replace_file
from fedscape.errors import CheckpointError
from fedscape.tabular.binning import Bins, binned
from fedscape.tabular.losses import LOSSES, probabilities
from fedscape.tabular.splits import descend
from fedscape.types import Array

WHAT = "fedscape boosted trees"
_BLOCK = 2**16  # rows at once


@dataclass(frozen=True)
class Forest:
    """Trees and the bins of their features; nodes are in heap order, `feature` is -1 at a leaf.

    Parameters
    ----------
    loss, base
        The loss, and the initial margins [outputs].
    bins
        Bin edges and categories.
    feature, left, value
        [trees, outputs, nodes]; `left` has 32 bytes per node, one bit per bin, set for bins that go left.
    names
        Names of the features.
    classes
        Names of the classes; empty for a numeric target.
    """

    loss: str
    base: Array
    bins: Bins
    feature: Array
    left: Array
    value: Array
    names: tuple[str, ...]
    columns: tuple[str, ...]
    target: str
    categories: dict[str, tuple[str, ...]]
    classes: tuple[str, ...]

    def margins(self, x: Array) -> Array:
        """Sum of the trees' values, [rows, outputs]."""
        parts = [self._margins(x[begin : begin + _BLOCK]) for begin in range(0, len(x), _BLOCK)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.base)))

    def _margins(self, x: Array) -> Array:
        codes = binned(np.ascontiguousarray(x, dtype=np.float64), self.bins)
        margin = np.repeat(self.base[None], len(codes), axis=0)
        depth = int(np.log2(self.value.shape[2] + 1)) - 1
        for t in range(len(self.feature)):
            for k in range(len(self.base)):
                node = np.zeros(len(codes), dtype=np.int16)
                descend(codes, node, self.feature[t, k], self.left[t, k], depth)
                margin[:, k] += self.value[t, k][node]
        return margin

    def probabilities(self, x: Array) -> Array:
        """Probabilities of the classes, [rows, classes]."""
        return probabilities(self.loss, self.margins(x))

    def means(self, x: Array) -> Array:
        """The expected target of each row."""
        margin = self.margins(x)[:, 0]
        return np.exp(np.clip(margin, -30, 30)) if self.loss == "poisson" else margin

    def save(self, path: str | os.PathLike[str], about: dict[str, Any], *, private: bool = False) -> None:
        """Write as JSON without rounding; the file of a private fit is readable by its owner only."""
        document = {
            "what": WHAT,
            "format": 1,
            "about": about,
            "loss": self.loss,
            "base": self.base.tolist(),
            "edges": self.bins.edges.tolist(),
            "n_categories": self.bins.categories.tolist(),
            "names": list(self.names),
            "columns": list(self.columns),
            "target": self.target,
            "categories": {name: list(names) for name, names in self.categories.items()},
            "classes": list(self.classes),
            "depth": int(np.log2(self.value.shape[2] + 1)) - 1,
            "trees": [[self._tree(t, k) for k in range(len(self.base))] for t in range(len(self.feature))],
        }
        replace_file(path, lambda file: file.write(json.dumps(document).encode() + b"\n"), private=private)

    def _tree(self, t: int, k: int) -> dict[str, Any]:
        used = np.flatnonzero(self.feature[t, k] >= 0)
        leaves = np.flatnonzero(self.value[t, k])
        return {
            "nodes": used.tolist(),
            "feature": self.feature[t, k, used].tolist(),
            "left": [bytes(bits).hex() for bits in self.left[t, k, used]],
            "at": leaves.tolist(),
            "value": self.value[t, k, leaves].tolist(),
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[Forest, dict[str, Any]]:
        """Read the forest and the settings that `save` wrote; refuse anything else."""
        try:
            document = json.loads(Path(path).read_text("utf-8"))
            if document.get("what") != WHAT or document.get("format") != 1:
                raise ValueError("not a forest of format 1")
            return _forest(document), dict(document["about"])
        except OSError as error:
            raise CheckpointError(f"{os.fspath(path)} cannot be read: {error.strerror}") from None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            why = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            raise CheckpointError(f"{os.fspath(path)} holds no boosted trees, or is damaged ({why})") from None


def _forest(document: dict[str, Any]) -> Forest:
    """Build a forest from a document and check every index: compiled loops have no bounds checks."""
    edges = np.array(document["edges"], dtype=float)
    bins = Bins(edges, np.array(document["n_categories"], dtype=np.int64))
    depth, outputs, trees = int(document["depth"]), len(document["base"]), len(document["trees"])
    if edges.ndim != 2 or len(bins.categories) != len(edges) or bins.width > 255 or not 1 <= depth <= 12:
        raise ValueError("bins or depth are out of range")
    if document["loss"] not in LOSSES or not outputs or trees * outputs * 2**depth > 2**28:
        raise ValueError("loss, outputs or size are out of range")
    inner = 2**depth - 1
    feature = np.full((trees, outputs, inner), -1, dtype=np.int32)
    left = np.zeros((trees, outputs, inner, 32), dtype=np.uint8)
    value = np.zeros((trees, outputs, 2 * inner + 1))
    for t, step in enumerate(document["trees"]):
        for k, tree in enumerate(step):
            if min([*tree["nodes"], *tree["at"], *tree["feature"]], default=0) < 0:
                raise ValueError("a node or feature is negative")
            feature[t, k, tree["nodes"]] = tree["feature"]
            left[t, k, tree["nodes"]] = [list(bytes.fromhex(bits)) for bits in tree["left"]] or 0
            value[t, k, tree["at"]] = tree["value"]
    if feature.max(initial=-1) >= len(edges) or not np.isfinite(value).all() or not np.isfinite(edges).all():
        raise ValueError("a feature or value is out of range")
    categories = {str(name): tuple(map(str, names)) for name, names in document["categories"].items()}
    return Forest(
        loss=document["loss"],
        base=np.array(document["base"], dtype=float),
        bins=bins,
        feature=feature,
        left=left,
        value=value,
        names=tuple(map(str, document["names"])),
        columns=tuple(map(str, document["columns"])),
        target=str(document["target"]),
        categories=categories,
        classes=tuple(map(str, document["classes"])),
    )
