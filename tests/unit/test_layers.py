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
    {"types", "errors", "disk", "display"},
    {"secure"},
    {"core"},
    {"privacy", "statistics", "formats"},
    {"engines"},
    {"sketches", "mixtures", "learning", "tabular"},
    {"simulate", "personal"},
    {"temporal", "datasets", "papers", "trained", "twin", "sklearn"},
    {"methods"},
    {"studies", "report", "deploy"},
    {"cli", "__main__", "__init__"},
]
LEVEL = {name: number for number, layer in enumerate(LAYERS) for name in layer}
#: Imports that point up, and why each is no dependency: none of them runs when its module is imported.
DOORS = {
    ("types.py", "core"): "an annotation names Ragged",
    ("core/blocks.py", "privacy"): "an annotation names Release, which clips on the client",
    ("core/engine.py", "privacy"): "an annotation names Release",
    ("core/schedule.py", "privacy"): "an annotation names Release",
    ("core/rounds.py", "privacy"): "annotations; the guard of a run is made by privacy.guard()",
    ("core/estimator.py", "privacy"): "annotations; the ledger of a fit is made by privacy.new_ledger()",
    ("core/federation.py", "formats"): "from_csv and its kin are ways into formats, opened when called",
    ("core/history.py", "formats"): "a history saved as .csv has no formulas",
}


def imports_of(tree: ast.AST) -> set[str]:
    rooms = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedscape":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {a.name for a in node.names if a.name in LEVEL}
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("fedscape.")}
    return rooms


def imported_at_once(tree: ast.Module) -> set[str]:
    """Rooms that an import of this module loads: not those of a function's body or under TYPE_CHECKING."""
    lazy = (ast.FunctionDef, ast.AsyncFunctionDef)
    rooms = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, lazy) or checking:
            continue
        rooms |= imports_of(node) if isinstance(node, ast.Import | ast.ImportFrom) else set()
        waiting += ast.iter_child_nodes(node)
    return rooms


def test_every_module_has_a_layer_and_imports_point_down():
    for path in ROOT.rglob("*.py"):
        where = path.relative_to(ROOT).as_posix()
        room = where.split("/")[0].removesuffix(".py")
        assert room in LEVEL, f"{room} is in no layer"
        tree = ast.parse(path.read_text())
        for target in imports_of(tree):
            up = LEVEL[target] > LEVEL[room]
            assert not up or (where, target) in DOORS, f"{where} imports {target}, which lies above it"
            assert not up or target not in imported_at_once(tree), f"{where} loads {target}, which lies above it"


def test_every_door_is_used():
    for where, target in DOORS:
        assert target in imports_of(ast.parse((ROOT / where).read_text())), f"{where} no longer imports {target}"


def test_no_private_name_crosses_a_package():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedscape":
                names = [*node.module.split("."), *(a.name for a in node.names)]
                private = [n for n in names if n.startswith("_") and n not in ("__version__", "__future__")]
                assert not private, f"{path.relative_to(ROOT)} imports {private[0]}, which is private"


#: Modules above 400 lines and functions above 60 lines of code. They may only become fewer.
LONG_MODULES = {
    "mixtures/dirichlet_multinomial/kernels.py",
    "mixtures/latent_class/kernels.py",
    "temporal/fedtem.py",
}
LONG_FUNCTIONS = {
    "report/tournament.py:simulate",
}


def test_modules_and_functions_stay_short():
    modules, functions = set(), set()
    for path in ROOT.rglob("*.py"):
        where, lines = path.relative_to(ROOT).as_posix(), path.read_text().splitlines()
        if len(lines) > 400:
            modules.add(where)
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and lines_of_code(node, lines) > 60:
                functions.add(f"{where}:{node.name}")
    assert modules <= LONG_MODULES
    assert functions <= LONG_FUNCTIONS


def lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Of a function's body: without its docstring, comments and empty lines; 0 for a kernel, which is one loop."""
    if any("kernel" in ast.unparse(decorator) for decorator in function.decorator_list):
        return 0
    first = function.body[0]
    begin = first.end_lineno if ast.get_docstring(function) else first.lineno - 1
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines[begin : function.end_lineno])


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


def modules_of(path: Path) -> set[str]:
    """Names of all modules that a file imports from, also within its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
    return found


def test_fast_training_has_one_door():
    fast, users = "fedscape.learning.fast", set()
    for path in ROOT.rglob("*.py"):
        names = {name for name in modules_of(path) if name == fast or name.startswith(f"{fast}.")}
        if names and "fast" not in path.relative_to(ROOT).parts[:-1]:
            users.add(path.relative_to(ROOT).as_posix())
            assert names == {fast, f"{fast}.pick"}, f"{path} goes around pick"
    assert users == {"learning/trainer.py"}


#: Modules of fedscape that come with a name, at most: a reader of it meets no more. They may only become fewer.
FIT = "import fedscape as fs; fs.Histogram(2).fit(fs.Federation({'y': [0, 1]}, [0, 1, 2]))"
CLOSURES = {
    "import fedscape": 1,
    "from fedscape import Histogram": 15,
    FIT: 23,
    "from fedscape import FedAvg": 24,
    "from fedscape import FedTEM": 35,
}


@pytest.mark.parametrize("code", CLOSURES)
def test_a_name_brings_few_modules_with_it(code):
    assert len(modules_after(code)) <= CLOSURES[code]


def test_a_plain_fit_loads_no_privacy_no_checkpoint_and_no_formats():
    rooms = {".".join(name.split(".")[1:3]) for name in modules_after(FIT)}
    assert not rooms & {"privacy", "core.checkpoint", "formats"}


def modules_after(code: str) -> list[str]:
    """Modules of fedscape that a new process has after this code."""
    listed = f"{code}\nimport sys\nprint(*[name for name in sys.modules if name.split('.')[0] == 'fedscape'])"
    done = subprocess.run([sys.executable, "-c", listed], check=True, capture_output=True, text=True)
    return done.stdout.split()
