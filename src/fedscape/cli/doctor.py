"""Check what of fedscape can run on this machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

import typer

import fedscape
from fedscape.core.schedule import cores
from fedscape.datasets import info, names
from fedscape.errors import FedscapeError

EXTRAS = {
    "learn": ("torch", "safetensors"),
    "ray": ("ray",),
    "flower": ("flwr", "cryptography"),
    "report": ("matplotlib",),
    "tune": ("optuna",),
    "log": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}


def examine(node: Path | None = None, data: str | None = None, client: str | None = None) -> dict[str, Any]:
    """List versions, extras, GPU, data and what was compiled and kept; download and install nothing.

    With the folder of a node, also whether the node can answer with these data.

    >>> sorted(examine())
    ['cores', 'data', 'extras', 'fedscape', 'gpu', 'kernels', 'packages', 'programs', 'python']
    """
    needed = ("numpy", "scipy", "numba", "pyarrow", "typer", "rich", "dp-accounting", "threadpoolctl")
    about = {
        "fedscape": fedscape.__version__,
        "python": platform.python_version(),
        "cores": cores(),
        "packages": {name: importlib.metadata.version(name) for name in needed},
        "extras": {extra: _extra(extra, modules) for extra, modules in EXTRAS.items()},
        "gpu": _gpu(),
        "data": _data(),
        "kernels": _kernels(),
        "programs": _programs(),
    }
    return about if node is None else {**about, "node": _node(node, data, client)}


def _node(folder: Path, data: str | None, client: str | None) -> Any:
    """What `fedscape deploy check` says of a node: that it can answer, or why not."""
    from fedscape.deploy.node import check_node

    try:
        return check_node(folder, data, client)
    except FedscapeError as error:
        return f"cannot answer: {error}"


def _extra(extra: str, modules: tuple[str, ...]) -> str:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return f"missing {', '.join(missing)}: pip install 'fedscape[{extra}]'" if missing else "installed"


def _gpu() -> str:
    if importlib.util.find_spec("torch") is None:
        return "unknown: torch is not installed"
    torch = importlib.import_module("torch")  # not a static import: torch is optional here
    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else "none: torch runs on the CPU"


def _data() -> dict[str, Any]:
    folder = os.environ.get("FEDSCAPE_DATA")
    in_folder = [name for name in names() if not info(name)["embedded"] and info(name)["size"] is not None]
    return {
        "FEDSCAPE_DATA": folder if folder else "not set: only the embedded data can be loaded",
        "embedded": [name for name in names() if info(name)["embedded"]],
        "found": in_folder,
    }


def clear(*, quiet: bool) -> None:
    """Delete the programs that training has kept."""
    from fedscape.learning.programs import base_folder, clear_programs

    freed = clear_programs()
    if not quiet:
        typer.echo(f"deleted {freed / 1e6:,.1f} MB of compiled programs in {base_folder()}", err=True)


def _programs() -> dict[str, Any]:
    """Where training on a GPU keeps its compiled programs, and how many bytes they are."""
    from fedscape.learning.programs import base_folder, kept_programs

    return {"folder": str(base_folder()), "bytes": sum(kept_programs().values())}


def _kernels() -> str:
    """Say where compiled kernels are cached; without a cache folder the first call of each process is slower."""
    folder = os.environ.get("NUMBA_CACHE_DIR") or str(Path(__file__).parent / "__pycache__")
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return "cached in NUMBA_CACHE_DIR" if os.environ.get("NUMBA_CACHE_DIR") else "cached beside the package"
    except OSError:
        return "recompiled in each process: no cache folder is writable (set NUMBA_CACHE_DIR)"
