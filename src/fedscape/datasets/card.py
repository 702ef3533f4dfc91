"""A dataset card as the Hugging Face Hub reads it: what the federation is, without its rows and ids."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedscape.core.federation import Federation
from fedscape.errors import plural

_MOST = 100  # names of classes in a card; a column of more texts is no label
_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_SAID = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")
_USE = """\
```python
import fedscape as fs

fed = fs.Federation.from_parquet("data.parquet", client="client")
fs.study(fed{column}).report("study/")
```
"""


def card(
    federation: Federation, *, name: str, label: str | None = None, description: str = "", licence: str = "",
    citation: str = "",
) -> str:  # fmt: skip
    """The README.md of a dataset on the Hugging Face Hub: metadata, columns, clients and how they differ.

    `fedscape data convert DATA data.parquet` writes the file to upload beside it.

    Parameters
    ----------
    federation
        The clients and their rows; the card has neither rows nor ids.
    name
        The title of the card.
    label
        The column of categories whose differences between clients the card describes.
    description, licence, citation
        Texts of the card.

    >>> from fedscape import Federation
    >>> text = card(Federation({"y": [0, 1, 1]}, [0, 1, 3]), name="tiny", label="y")
    >>> text.splitlines()[0], "2 clients" in text, "| y | int64 |" in text
    ('---', True, True)
    """
    about = {
        "pretty_name": name,
        "license": "other",
        "license_name": licence or "unknown",
        "tags": ["federated-learning", "fedscape"],
        "task_categories": ["tabular-classification"] if label is not None else ["other"],
        "size_categories": [_SAID[int(np.searchsorted(_SIZES, federation.n_rows, side="right"))]],
        "dataset_info": {"features": _features(federation)},
    }
    meta = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in about.items())
    parts = [
        f"---\n{meta}\n---",
        f"# {_plain(name)}",
        _plain(description),
        "## Clients",
        _clients(federation),
        "## Columns",
        _columns(federation),
        *(["## How clients differ", _differences(federation, label)] if label is not None else []),
        "## Use",
        _USE.format(column="" if label is None else f", column={label!r}"),
        *(["## Citation", _plain(citation)] if citation else []),
    ]
    return "\n\n".join(part for part in parts if part).rstrip() + "\n"


def _features(federation: Federation) -> list[dict[str, Any]]:
    features: list[dict[str, Any]] = [{"name": "client", "dtype": "string"}]
    for name, values in federation.columns.items():
        texts = federation.names.get(name)
        if texts is not None and len(texts) <= _MOST:
            label = {str(i): str(text) for i, text in enumerate(texts)}
            features.append({"name": name, "dtype": {"class_label": {"names": label}}})
        else:
            kind = "string" if texts is not None else str(values.dtype)
            features.append({"name": name, "shape": list(values.shape[1:]), "dtype": kind} if values.ndim > 1 else
                            {"name": name, "dtype": kind})  # fmt: skip
    return features


def _clients(federation: Federation) -> str:
    sizes = np.sort(federation.sizes)
    shown = [int(sizes[int(share * (len(sizes) - 1))]) for share in (0.05, 0.5, 0.95)] if len(sizes) else [0, 0, 0]
    many = f"{plural(len(federation), 'client')}, {plural(federation.n_rows, 'row')}."
    usual = f"A client has {shown[1]:,} rows in the median, and 90% of them have {shown[0]:,} to {shown[2]:,}."
    return f"{many} {usual} The column `client` names the client of each row."


def _columns(federation: Federation) -> str:
    lines = ["| column | type | shape of a value | classes |", "| --- | --- | --- | --- |"]
    for name, values in federation.columns.items():
        texts = federation.names.get(name)
        shape = " x ".join(map(str, values.shape[1:]))
        lines.append(f"| {_plain(name)} | {values.dtype} | {shape} | {'' if texts is None else len(texts)} |")
    return "\n".join(lines)


def _differences(federation: Federation, label: str) -> str:
    counts = np.asarray(federation.counts(label), dtype=float)
    counts = counts[counts.sum(axis=1) > 0]
    shares, whole = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    away = 0.5 * np.abs(shares - whole).sum(axis=1)
    classes = (counts > 0).sum(axis=1)
    return (
        f"The labels of a client (`{_plain(label)}`, {plural(counts.shape[1], 'class', 'classes')}) are at a total "
        f"variation distance of {np.median(away):.2f} from those of all rows, in the median over clients. A client has "
        f"{int(np.median(classes))} different ones."
    )


def _plain(text: str) -> str:
    """A text as one line that is no Markdown table, HTML or code."""
    escaped = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("`", "'")
    return escaped.replace("&", "&amp;").replace("<", "&lt;")
