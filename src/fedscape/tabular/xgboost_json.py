"""A forest in the JSON that XGBoost reads: the same splits, leaves as float32."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from fedscape.core.checkpoint import replace_file
from fedscape.errors import DataError
from fedscape.tabular.forest import Forest
from fedscape.types import Array

_OBJECTIVES = {  # and the base score whose margin is 0: where boosting begins is a tree of one leaf
    "squared": ("reg:squarederror", "0E0"),
    "logistic": ("binary:logistic", "5E-1"),
    "poisson": ("count:poisson", "1E0"),
    "softmax": ("multi:softprob", "0E0"),
}
_ROOT = 2**31 - 1  # parent of a root
_VERSION = [2, 1, 0]


def save_xgboost(forest: Forest, path: str | os.PathLike[str], *, private: bool = False) -> None:
    """Write the model of `model_of` as one line."""
    text = json.dumps(model_of(forest))
    replace_file(path, lambda file: file.write(text.encode() + b"\n"), private=private)


def model_of(forest: Forest) -> dict[str, Any]:
    """The forest as XGBoost's model: rows of float32 reach the same leaves, and margins are float32 sums of them.

    A threshold becomes the least float32 above the edge, because XGBoost sends left what is below and we what is not
    above. Each output begins with a tree of one leaf, its base.
    """
    if len(forest.base) > 1 and forest.loss != "softmax":
        raise DataError(f"XGBoost has one output for the loss {forest.loss!r}, this forest {len(forest.base)}")
    outputs, trees = len(forest.base), []
    for k in range(outputs):
        trees.append(_arrays([_leaf(forest.base[k])], len(forest.names)))
    for t in range(len(forest.feature)):
        trees += [_arrays(_nodes(forest, t, k), len(forest.names)) for k in range(outputs)]
    for number, tree in enumerate(trees):
        tree["id"] = number
    objective, base_score = _OBJECTIVES[forest.loss]
    classes = outputs if forest.loss == "softmax" else 0
    objective_param: dict[str, Any] = {"name": objective}
    if forest.loss == "softmax":
        objective_param["softmax_multiclass_param"] = {"num_class": str(classes)}
    elif forest.loss == "poisson":
        objective_param["poisson_regression_param"] = {"max_delta_step": "0.7"}
    else:
        objective_param["reg_loss_param"] = {"scale_pos_weight": "1"}
    sizes = {"num_class": str(classes), "num_feature": str(len(forest.names)), "num_target": "1"}
    model = {
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": list(range(0, len(trees) + 1, outputs)),
        "tree_info": [number % outputs for number in range(len(trees))],
        "trees": trees,
    }
    learner = {
        "attributes": {},
        "feature_names": list(forest.names),
        "feature_types": ["c" if c else "q" for c in forest.bins.categories],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {"base_score": base_score, "boost_from_average": "1", **sizes},
        "objective": objective_param,
    }
    return {"learner": learner, "version": _VERSION}


def _nodes(forest: Forest, t: int, k: int) -> list[dict[str, Any]]:
    """The nodes that rows can reach, parents first."""
    feature, value = forest.feature[t, k], forest.value[t, k]
    nodes: list[dict[str, Any]] = [_leaf(value[0])]
    waiting = [(0, 0)]  # place in the heap, and in the list
    while waiting:
        at, place = waiting.pop(0)
        if at >= len(feature) or feature[at] < 0:
            continue
        first = len(nodes)
        nodes[place] |= _split(forest, int(feature[at]), forest.left[t, k, at]) | {"left": first, "right": first + 1}
        nodes += [_leaf(value[child]) | {"parent": place} for child in (2 * at + 1, 2 * at + 2)]
        waiting += [(2 * at + 1, first), (2 * at + 2, first + 1)]
    return nodes


def _leaf(value: float) -> dict[str, Any]:
    plain = {"left": -1, "right": -1, "parent": _ROOT, "feature": 0, "default_left": 0, "categories": None}
    return {**plain, "condition": _short(np.float32(value))}


def _split(forest: Forest, f: int, bits: Array) -> dict[str, Any]:
    """Of a category those that go right are listed; of a number the least float32 that does."""
    bins, left = forest.bins, np.unpackbits(bits, bitorder="little").astype(bool)
    n, split = int(bins.n_bins[f]), {"feature": f, "default_left": int(left[bins.width])}
    if bins.categories[f]:
        return split | {"categories": np.flatnonzero(~left[:n]).tolist(), "condition": 0.0}
    last = int(left[:n].sum()) - 1
    if last < 0 or not left[: last + 1].all():
        raise DataError(f"a split of {forest.names[f]!r} is no threshold, and XGBoost has no other for numbers")
    most = float(np.finfo(np.float32).max)
    edge = float(bins.edges[f, last]) if last < bins.edges.shape[1] else most
    threshold = np.float32(np.clip(edge, -most, most))
    if float(threshold) <= edge < most:
        threshold = np.nextafter(threshold, np.float32(np.inf), dtype=np.float32)
    return split | {"condition": _short(threshold)}


def _short(value: np.float32) -> float:
    """The shortest decimal that is read as this float32."""
    return float(str(value))


def _arrays(nodes: list[dict[str, Any]], n_features: int) -> dict[str, Any]:
    """Nodes as the parallel arrays of XGBoost's format."""
    listed = [i for i, node in enumerate(nodes) if node["categories"] is not None]
    sizes = [len(nodes[i]["categories"]) for i in listed]
    return {
        "base_weights": [0.0] * len(nodes),
        "categories": [category for i in listed for category in nodes[i]["categories"]],
        "categories_nodes": listed,
        "categories_segments": np.cumsum([0, *sizes])[:-1].tolist() if listed else [],
        "categories_sizes": sizes,
        "default_left": [node["default_left"] for node in nodes],
        "left_children": [node["left"] for node in nodes],
        "loss_changes": [0.0] * len(nodes),
        "parents": [node["parent"] for node in nodes],
        "right_children": [node["right"] for node in nodes],
        "split_conditions": [node["condition"] for node in nodes],
        "split_indices": [node["feature"] for node in nodes],
        "split_type": [int(node["categories"] is not None) for node in nodes],
        "sum_hessian": [0.0] * len(nodes),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(n_features),
            "num_nodes": str(len(nodes)),
            "size_leaf_vector": "1",
        },
    }
