"""Readers and writers: tables, Parquet, CSV, a folder of NumPy files, LEAF, Hugging Face, flwr-datasets and torch.

| what                                 | in                 | out              | lost on the way out            |
| ------------------------------------ | ------------------ | ---------------- | ------------------------------ |
| one table per client                 | `stack_clients`    |                  |                                |
| a pandas DataFrame or an Arrow table | `from_frame`       |                  |                                |
| Parquet, one file or a folder        | `from_parquet`     | `to_parquet`     | the width of codes             |
| CSV, one file or a folder            | `from_csv`         | `to_csv`         | types, clients without rows    |
| fedscape's own folder, memory-mapped | `load_folder`      | `save_folder`    | nothing                        |
| LEAF JSON, one file or a folder      | `from_leaf`        | `to_leaf`        | narrow types; ids become texts |
| a Hugging Face `Dataset`             | `from_huggingface` | `to_huggingface` | clients without rows           |
| a flwr-datasets `FederatedDataset`   | `from_flower`      |                  |                                |
| a map-style torch `Dataset`          | `from_torch`       |                  |                                |

Nothing is unpickled. Sizes are checked before memory is allocated. A damaged file gives one DataError that names it.
Files and folders are written atomically.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedscape.formats.folder import load_folder, save_folder
    from fedscape.formats.leaf import from_leaf, to_leaf
    from fedscape.formats.libraries import from_flower, from_huggingface, from_torch, to_huggingface
    from fedscape.formats.parquet import from_parquet, to_parquet
    from fedscape.formats.tables import from_csv, from_frame, stack_clients, to_csv

__all__ = [
    "from_csv",
    "from_flower",
    "from_frame",
    "from_huggingface",
    "from_leaf",
    "from_parquet",
    "from_torch",
    "load_folder",
    "save_folder",
    "stack_clients",
    "to_csv",
    "to_huggingface",
    "to_leaf",
    "to_parquet",
]

_HOMES = {
    "folder": ("load_folder", "save_folder"),
    "leaf": ("from_leaf", "to_leaf"),
    "libraries": ("from_flower", "from_huggingface", "from_torch", "to_huggingface"),
    "parquet": ("from_parquet", "to_parquet"),
    "tables": ("from_csv", "from_frame", "stack_clients", "to_csv"),
}


def __getattr__(name: str) -> Any:
    """Import a function from its module at first use: most need pyarrow, which is slow to import."""
    for home, functions in _HOMES.items():
        if name in functions:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
