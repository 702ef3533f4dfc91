"""Who could change what `make` installs: every package is pinned and known by the hashes of its files."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted(ROOT.glob("requirements*.lock"))
NOT_INSTALLED = ("onnx", "mlflow", "wandb", "sql")  # extras that make leaves to the user
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages(*paths):
    """Each package's lines, by name."""
    text = "\n".join(re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE) for path in paths)
    parts = [part for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE) if part.strip()]
    return {re.split(r"[=;\s]", part)[0]: part for part in parts}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_package_is_pinned_and_has_hashes(path):
    listed = packages(path)
    assert listed
    for name, lines in listed.items():
        head, *hashes = lines.strip().split("\\\n")
        assert re.match(r"[\w.-]+==[\w.+]+( ;.*)?$", head.strip()), name
        assert hashes, f"{name} has no hash"
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line.strip()) for line in hashes), name
    assert "://" not in path.read_text()


def test_the_locks_hold_all_that_the_project_names_once():
    project = PROJECT["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in NOT_INSTALLED}
    wanted = [*project["dependencies"], *(need for needs in extras.values() for need in needs)]
    names = {re.match(r"[\w.-]+", text)[0].lower().replace("_", "-") for text in wanted} - {"fedscape"}
    by_file = {path.name: set(packages(path)) for path in LOCKS}
    assert by_file.pop("requirements-torch-cpu.lock") == {"torch"} <= by_file["requirements-torch.lock"]
    assert sum(map(len, by_file.values())) == len(set().union(*by_file.values()))
    assert names <= set().union(*by_file.values())


def test_the_build_backend_is_the_locked_one():
    [backend] = PROJECT["build-system"]["requires"]
    assert packages(ROOT / "requirements.lock")["hatchling"].startswith(f"{backend} \\")
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes --no-deps --only-binary :all:" in makefile
    assert "--no-build-isolation -e ." in makefile


def test_a_changed_wheel_is_not_installed(tmp_path):
    lock, wheel = tmp_path / "one.lock", tmp_path / "mdurl-0.1.2-py3-none-any.whl"
    lock.write_text(packages(ROOT / "requirements.lock")["mdurl"])
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("mdurl/__init__.py", "raise SystemExit('attacked')")
        file.writestr("mdurl-0.1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: mdurl\nVersion: 0.1.2\n")
        file.writestr("mdurl-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("mdurl-0.1.2.dist-info/RECORD", "")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "install",
        "--no-index",
        "--find-links",
        tmp_path,
        "--no-deps",
    ]
    done = subprocess.run(
        [*command, "--require-hashes", "--target", tmp_path / "to", "-r", lock], capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "to" / "mdurl").exists()
