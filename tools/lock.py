"""Rewrite the lock files: `make lock`. Versions already in a lock are kept; delete a line to upgrade that package.

requirements.lock: what a study needs, without torch, and what builds fedscape. requirements-dev.lock: all else of
fedscape[all,dev]. requirements-torch.lock: the default build of torch, with the GPU libraries it depends on.
requirements-torch-cpu.lock, which this script does not write: torch without them, used where pip can find it.

pip takes no hashes from constraints, nor for what is installed from a folder: each lock is installed by itself with
--require-hashes --no-deps, and fedscape after them. A release is listed with the hashes of all its files, for any
platform and Python.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
STUDY, DEV, TORCH = (ROOT / f"requirements{part}.lock" for part in ("", "-dev", "-torch"))
ABOUT = {
    STUDY: "What a study needs except torch, and what builds fedscape: exact versions with the hashes of all files.",
    DEV: "What fedscape[all,dev] needs besides requirements.lock.",
    TORCH: "torch as registries have it, and the GPU libraries that its Linux wheel asks for.",
}
BUILD = ["hatchling", "editables"]


def compile_lock(*extras: str, build: bool = False) -> dict[str, str]:
    """Each package's lines, by name, for these extras."""
    with tempfile.TemporaryDirectory() as folder:
        pins, tools, out = (Path(folder) / name for name in ("pins.txt", "build.in", "out.lock"))
        locked = [line for path in ABOUT if path.exists() for line in path.read_text().splitlines()]
        pins.write_text("\n".join(re.split(r"[ ;]", line)[0] for line in locked if re.match(r"\w", line)))
        tools.write_text("\n".join(BUILD if build else []))
        command = [Path(sys.executable).parent / "uv", "pip", "compile", ROOT / "pyproject.toml", tools, "-c", pins]
        command += [part for extra in extras for part in ("--extra", extra)]
        command += ["--generate-hashes", "--universal", "--python-version", "3.11", "--no-header", "--no-annotate"]
        subprocess.run([*command, "--no-emit-index-url", "--quiet", "-o", out], check=True, stdout=subprocess.DEVNULL)
        parts = re.split(r"^(?=\w)", out.read_text(), flags=re.MULTILINE)
    return {part.split("==")[0]: part for part in parts if part}


def main() -> None:
    study, everything = compile_lock("learn", "report", build=True), compile_lock("all", "dev", build=True)
    gpu = {n for n in study if n in ("torch", "triton") or n.startswith(("nvidia-", "cuda-"))}
    locks = {
        STUDY: [n for n in study if n not in gpu],
        DEV: [n for n in everything if n not in study],
        TORCH: sorted(gpu),
    }
    for path, names in locks.items():
        path.write_text(f"# {ABOUT[path]}\n# Written by tools/lock.py.\n" + "".join(everything[n] for n in names))


if __name__ == "__main__":
    main()
