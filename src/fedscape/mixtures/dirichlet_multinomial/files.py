"""Save a fitted model: JSON for people and tools, and an .npz file beside it for the arrays."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedscape.core.checkpoint import replace_file
from fedscape.errors import CheckpointError, DataError
from fedscape.formats.npz import read_npz
from fedscape.types import Array


def write_population(
    path: str | os.PathLike[str],
    header: Mapping[str, Any],
    arrays: Mapping[str, Array],
    *,
    what: str = "population",
    private: bool = False,
) -> None:
    """Write the arrays, then the JSON file with their names and checksum; each atomically.

    Files of a private fit are marked private, and readable only by their owner.
    """
    target = Path(path)
    if target.suffix != ".json":
        raise CheckpointError(f"a {what} is saved as .json, not {target.suffix!r}")
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **{name: np.asarray(values) for name, values in arrays.items()})
    content = packed.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    shown = {name: np.round(values, 6).tolist() for name, values in arrays.items() if name == "weights"}
    about = {
        "format": f"fedscape {what} 1",
        "arrays": target.with_suffix(".npz").name,
        "sha256": digest,
        **({"private": True} if private else {}),
        **shown,
        **header,
    }
    text = json.dumps({**about, "checksum": _checksum(about)}, indent=2).encode()
    for name, body in ((target.with_suffix(".npz"), content), (target, text)):
        replace_file(name, partial(_put, body), private=private)


def _checksum(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _put(body: bytes, file: IO[bytes]) -> None:
    file.write(body)


def read_population(
    path: str | os.PathLike[str], *, what: str = "population"
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read both files; refuse foreign, damaged or mismatched ones."""
    source = Path(path)
    try:
        header = json.loads(source.read_bytes())
        if not isinstance(header, dict) or header.get("format") != f"fedscape {what} 1":
            raise CheckpointError(f"{source} is not a {what} that this version of fedscape can read")
        if header.pop("checksum", None) != _checksum(header):
            raise CheckpointError(f"{source} was changed or damaged after it was saved: its checksum does not match")
        content = source.with_suffix(".npz").read_bytes()
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        command = {"population": "fit", "twin": "plan"}.get(what, "regress")
        raise CheckpointError(
            f"{source} is not JSON: give the .json file that 'fedscape {command} --out' wrote"
        ) from None
    if hashlib.sha256(content).hexdigest() != header.get("sha256"):
        raise CheckpointError(f"{source.with_suffix('.npz')} does not belong to {source}: save the {what} again")
    try:  # written without compression: no array is larger than the file
        return header, read_npz(source.with_suffix(".npz"), content, limit=len(content))
    except DataError as error:
        raise CheckpointError(str(error)) from None
