"""XGBoost's JSON model read row by row, as its documentation describes the format."""

from __future__ import annotations

import json
from typing import Any

import numpy as np


def margins(model: str | dict[str, Any], x: np.ndarray) -> np.ndarray:
    """What `Booster.predict(output_margin=True)` gives for rows of float32, [rows, outputs] in float32."""
    said = json.loads(model) if isinstance(model, str) else model
    learner = said["learner"]
    boosted = learner["gradient_booster"]["model"]
    outputs = max(int(learner["learner_model_param"]["num_class"]), 1)
    base = float(learner["learner_model_param"]["base_score"])
    link = {"binary:logistic": lambda p: np.log(p / (1 - p)), "count:poisson": np.log}
    start = link.get(learner["objective"]["name"], lambda p: p)(base)
    rows = x.astype(np.float32)
    margin = np.full((len(rows), outputs), start, dtype=np.float32)
    for tree, output in zip(boosted["trees"], boosted["tree_info"], strict=True):
        for i, row in enumerate(rows):
            margin[i, output] += np.float32(_leaf(tree, row))
    return margin


def _leaf(tree: dict[str, Any], row: np.ndarray) -> float:
    at = 0
    while tree["left_children"][at] != -1:
        value = row[tree["split_indices"][at]]
        if np.isnan(value):
            left = bool(tree["default_left"][at])
        elif tree["split_type"][at]:
            place = tree["categories_nodes"].index(at)
            begin = tree["categories_segments"][place]
            left = int(value) not in tree["categories"][begin : begin + tree["categories_sizes"][place]]
        else:
            left = bool(value < np.float32(tree["split_conditions"][at]))
        at = tree["left_children" if left else "right_children"][at]
    return float(tree["split_conditions"][at])
