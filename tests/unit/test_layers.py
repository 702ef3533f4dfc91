"""Imports point down only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedscape

ROOT = Path(fedscape.__file__).parent

LAYERS = [
    {"errors"},
    {"core", "formats", "privacy"},
    {"engines"},
    {"statistics"},
    {"sketches", "mixtures", "learning"},
    {"simulate", "personal"},
    {"temporal", "datasets", "trained"},
    {"studies", "report", "deploy"},
    {"cli", "__main__", "__init__"},
]
LEVEL = {name: number for number, layer in enumerate(LAYERS) for name in layer}


def imports_of(path: Path) -> set[str]:
    found = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedscape":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {a.name for a in node.names if a.name in LEVEL}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("fedscape.")}
    return found


def test_every_module_has_a_layer_and_imports_point_down():
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        assert room in LEVEL, f"{room} has no place in the layers"
        for target in imports_of(path):
            assert LEVEL[target] <= LEVEL[room], f"{path.relative_to(ROOT)} imports {target}, which lies above it"


def test_algorithms_import_no_optional_engine_and_the_core_no_torch():
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        heavy = {"torch": {"learning", "personal", "temporal", "trained"}, "ray": {"engines"}, "flwr": {"engines"}}
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                allowed = heavy.get(name.split(".")[0])
                assert allowed is None or room in allowed, f"{path.relative_to(ROOT)} imports {name}"


#: Modules of fedscape that come with a name, at most: a reader of it meets no more. They may only become fewer.
CLOSURES = {
    "import fedscape": 2,
    "from fedscape import Histogram": 30,
    "from fedscape import FedAvg": 46,
    "from fedscape import FedTEM": 56,
}


@pytest.mark.parametrize("code", CLOSURES)
def test_a_name_brings_few_modules_with_it(code):
    counted = f"{code}\nimport sys\nprint(sum(name.split('.')[0] == 'fedscape' for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", counted], check=True, capture_output=True, text=True)
    assert int(done.stdout) <= CLOSURES[code]
