"""Read and write LEAF JSON files: `users`, `num_samples`, and `user_data` with the columns of each user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.errors import DataError
from fedscape.formats.files import Name, files_in, new_file, reading
from fedscape.formats.grouping import id_array
from fedscape.formats.outgoing import check_codes, coded
from fedscape.formats.tables import stack_clients


def from_leaf(path: Name) -> Federation:
    """Read a LEAF JSON file, or a folder of them; LEAF's users are the clients.

    Every list in a user's data (x, y, ...) becomes a column. `num_samples` must agree with the data. `hierarchies` is
    checked for its length and dropped, because a Federation has no columns per client.

    Parameters
    ----------
    path
        The file, or a folder of `.json` files, read in the order of their names. A user is in one file only.
    """
    ids: list[str] = []
    clients: list[dict[str, Any]] = []
    for file in files_in(path, ".json"):
        with reading(file, "LEAF file"):
            content = json.loads(file.read_bytes())
            users, data = _checked(content, file)
            ids.extend(users)
            clients.extend(data[user] for user in users)
    if len(set(ids)) < len(ids):
        twice = next(user for user in ids if ids.count(user) > 1)
        raise DataError(f"{path}: the user {twice!r} is in more than one file: merge them first")
    with reading(path, "LEAF file"):
        try:
            columns, sizes, names = stack_clients(clients)
            offsets = offsets_of(sizes)
            return Federation(columns, offsets, id_array(list(ids), "the users"), names=names)
        except DataError as error:
            raise DataError(f"{path} (LEAF's users are the clients): {error}") from None


def _checked(content: Any, file: Path) -> tuple[list[str], dict[str, Any]]:
    """Check that the parts of the file agree, and return the users and their data."""
    if not isinstance(content, dict) or not {"users", "num_samples", "user_data"} <= set(content):
        raise DataError(f"{file} is not a LEAF file: it must be an object with users, num_samples and user_data")
    users, sizes, data = content["users"], content["num_samples"], content["user_data"]
    if not isinstance(users, list) or not all(isinstance(user, str) for user in users) or not isinstance(data, dict):
        raise DataError(f"{file} is not a LEAF file: users must be a list of texts and user_data an object")
    if len(set(users)) < len(users) or set(users) != set(data):
        odd = sorted(set(users) ^ set(data)) or [user for user in users if users.count(user) > 1]
        raise DataError(f"{file}: users and user_data must name the same users once each, but differ for {odd[0]!r}")
    if not isinstance(sizes, list) or len(sizes) != len(users):
        raise DataError(f"{file}: num_samples must list one number for each of the {len(users):,} users")
    ranks = content.get("hierarchies")
    if ranks is not None and (not isinstance(ranks, list) or len(ranks) != len(users)):
        raise DataError(f"{file}: hierarchies must list one entry for each of the {len(users):,} users")
    for user, size in zip(users, sizes, strict=True):
        if not isinstance(data[user], dict) or (not data[user] and size):
            raise DataError(f"{file}: the data of user {user!r} must be an object of lists, one for each column")
        for column, values in data[user].items():
            if not isinstance(values, list) or len(values) != size or isinstance(size, bool):
                held = len(values) if isinstance(values, list) else type(values).__name__
                raise DataError(
                    f"{file}: user {user!r} has {size!r} samples by num_samples, but {column!r} holds {held}"
                )
    return users, data


def to_leaf(fed: Federation, path: Name, *, overwrite: bool = False) -> None:
    """Write a LEAF JSON file: one user per client, with every column by its name (LEAF's own tools expect x and y).

    JSON has one integer and one fraction type: narrow dtypes come back as int64 or float64, and ids as texts. Codes
    are written as their names, a missing one as null. Times are refused.

    Parameters
    ----------
    fed
        The Federation to write.
    path
        The file to create, atomically.
    overwrite
        Whether to replace an existing file.
    """
    if fed.n_rows and not fed.columns:
        raise DataError(f"a LEAF file holds the rows of columns, but the Federation has {fed.n_rows:,} rows of none")
    for name, values in fed.columns.items():
        if values.dtype.kind not in "biuf":
            raise DataError(f"column {name!r} is {values.dtype}, and JSON has no times: change it to numbers first")
        if name in coded(fed):
            check_codes(name, values, fed.names[name])
    with new_file(path, overwrite=overwrite) as draft, draft.open("w", encoding="ascii") as file:
        file.writelines(_parts(fed))


def _parts(fed: Federation) -> Iterator[str]:
    users = [str(client) for client in fed.ids.tolist()]
    texts = {
        name: np.array([*texts_of, None], dtype=object) for name, texts_of in coded(fed).items()
    }  # -1: the last, None
    yield f'{{"users": {json.dumps(users)}, "num_samples": {json.dumps(fed.sizes.tolist())}, "user_data": {{'
    for index, user in enumerate(users):
        rows = slice(int(fed.offsets[index]), int(fed.offsets[index + 1]))
        lists = {
            name: (texts[name][values[rows]] if name in texts else values[rows]).tolist()
            for name, values in fed.columns.items()
        }
        yield f"{', ' if index else ''}{json.dumps(user)}: {json.dumps(lists)}"
    yield "}}\n"
