"""Build the wheel and the sdist, install each with all extras in an environment of its own, and try it: `make dist`.

The dependencies are those of the environment that runs this script; pip and uv fetch nothing, and refuse if one is
missing or of a wrong version. fedscape comes from the file alone, as the script checks. With `--fetch` the wheel is
first installed in an empty environment, with all that it asks for from the index, at the versions of the locks (some
GB). Stops on the first thing that is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MOST = 3 * 2**20  # bytes of a file
EXTRAS = "all"
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-torch.lock")
IMPORTED = "torch, ray, flwr, matplotlib, optuna, tensorboard"  # one package of each extra in EXTRAS
TRIED = (
    ["--help"],
    ["describe", "femnist-labels", "--column", "y"],
)


def build() -> list[Path]:
    """The wheel and the sdist, in dist/."""
    for old in DIST.glob("fedscape-*"):
        old.unlink()
    subprocess.run([sys.executable, "-m", "hatchling", "build"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    files = sorted(DIST.glob("fedscape-*"))
    if len(files) != 2:
        raise SystemExit(f"dist/ has {[file.name for file in files]}: a wheel and an sdist were expected")
    for file in files:
        if file.stat().st_size > MOST:
            raise SystemExit(f"{file.name} has {file.stat().st_size:,} bytes, more than {MOST:,}")
        print(f"{file.name}: {file.stat().st_size:,} bytes")
    return files


def environment(folder: Path, *, by: str) -> Path:
    """A new environment, made by pip's or uv's means, that sees the packages of this one but not its fedscape."""
    make = [
        [sys.executable, "-m", "venv", "--without-pip"],
        [uv(), "venv", "--quiet", "--offline", "--python", sys.executable],
    ]
    subprocess.run([*make[by == "uv"], str(folder)], check=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    # A folder named in a .pth file is searched, but its own .pth files, an editable fedscape among them, are not read.
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def uv() -> str:
    return str(Path(sys.executable).parent / "uv")


def install(file: Path, python: Path, *, by: str) -> None:
    """Install one file with all extras, from what is there: pip reads its requirements; uv looks at nobody's folder."""
    how = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    named = f"{file}[{EXTRAS}]"
    if by == "uv":
        how = [uv(), "pip", "install", "--quiet", "--offline", "--no-deps", "--python", str(python)]
    subprocess.run([*how, "--no-build-isolation", named], check=True)


def fetched(wheel: Path, folder: Path) -> Path:
    """An empty environment with the wheel, and everything that it asks for, from the index."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pins = folder / "pins.txt"  # constraints have no hashes
    lines = [line for lock in LOCKS for line in (ROOT / lock).read_text().splitlines() if line[:1].isalnum()]
    pins.write_text("\n".join(line.rstrip("\\ ") for line in lines))
    call = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    subprocess.run([*call, "-c", str(pins), f"{wheel}[{EXTRAS}]"], check=True)
    subprocess.run([str(python), "-m", "pip", "check"], check=True, stdout=subprocess.DEVNULL)
    return python


def attempt(python: Path, folder: Path) -> None:
    """Run the commands outside the repository, with the installed files alone."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for words in TRIED:
        done = subprocess.run(
            [str(python.with_name("fedscape")), *words], cwd=folder, env=plain, capture_output=True, text=True
        )
        if done.returncode or not done.stdout.strip():
            raise SystemExit(f"fedscape {' '.join(words)} ended with {done.returncode}: {done.stderr}")
    code = f"import {IMPORTED}\n"
    code += "import fedscape, pathlib; print(fedscape.__version__, pathlib.Path(fedscape.__file__).parent)"
    code += "; assert pathlib.Path(fedscape.__file__).with_name('py.typed').is_file()"
    told = subprocess.run([str(python), "-c", code], cwd=folder, env=plain, check=True, capture_output=True, text=True)
    version, place = told.stdout.split(maxsplit=1)
    if not Path(place.strip()).is_relative_to(folder) or "source" in version:
        raise SystemExit(f"fedscape {version} came from {place}, not from the file that was installed")
    print(f"  fedscape {version}: {', '.join(' '.join(words) for words in TRIED)}")


def main() -> None:
    files = build()
    if "--fetch" in sys.argv[1:]:
        (wheel,) = (file for file in files if file.suffix == ".whl")
        print(f"{wheel.name}[{EXTRAS}], and what it asks for from the index")
        with tempfile.TemporaryDirectory() as folder:
            attempt(fetched(wheel, Path(folder).resolve() / "env"), Path(folder).resolve())
    for file in files:
        for by in ("pip", "uv") if Path(uv()).exists() else ("pip",):
            if by == "uv" and file.suffix != ".whl":
                continue
            print(f"{file.name}, installed by {by}")
            with tempfile.TemporaryDirectory() as folder:
                python = environment(Path(folder).resolve() / "env", by=by)
                install(file, python, by=by)
                attempt(python, Path(folder).resolve())


if __name__ == "__main__":
    main()
