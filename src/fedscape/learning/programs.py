"""Where compiled programs stay between processes: a folder of the user's own, for each version of torch and device."""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from fedscape.disk import is_own

#: Where torch looks; whoever sets it says where programs are.
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
OF_KERNELS = "TRITON_CACHE_DIR"


def base_folder() -> Path:
    """The folder of all of them: FEDSCAPE_PROGRAMS, or fedscape/programs in the user's cache."""
    own = os.environ.get("FEDSCAPE_PROGRAMS")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(cache) / "fedscape" / "programs"


def folder_for(device: str) -> Path:
    """The folder for the installed torch and a device, such as "avx512" or the name of a GPU.

    >>> folder_for("NVIDIA H200").name.startswith("torch-")
    True
    """
    return base_folder() / "".join(
        c if c.isalnum() or c in "-.+" else "-" for c in f"torch-{version('torch')}-{device}"
    )


def keep_programs(device: str) -> Path | None:
    """Let torch keep the programs it compiles from now on; the folder, or None where it keeps them elsewhere.

    What lies in the folder is run as code by whoever finds it there. So a folder that belongs to somebody else, or that
    others may write to, is not used.
    """
    folder = folder_for(device)
    before = os.environ.get(VARIABLE)
    if before is not None and Path(before).parent != folder.parent and not _is_of_torch(Path(before)):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not all(is_own(each) for each in (folder, folder.parent)):
            return None
    except OSError:
        return None
    os.environ[VARIABLE] = str(folder)
    kernels = os.environ.get(OF_KERNELS)
    if kernels is None or Path(kernels).parent.parent == folder.parent:
        os.environ[OF_KERNELS] = str(folder / "kernels")
    return folder


def _is_of_torch(folder: Path) -> bool:
    """Whether torch itself chose the folder, as it does when parts of it are imported: nobody asked for that one."""
    return folder.name.startswith("torchinductor_") and folder.parent == Path(tempfile.gettempdir())


def kept_programs() -> dict[str, int]:
    """The bytes of each folder."""
    folders = base_folder().glob("torch-*")
    return {f.name: sum(p.stat().st_size for p in f.rglob("*") if p.is_file()) for f in sorted(folders)}


def clear_programs() -> int:
    """Delete all of them; the bytes that were freed."""
    freed = sum(kept_programs().values())
    for folder in base_folder().glob("torch-*"):
        shutil.rmtree(folder)
    return freed
