"""Size and coupling of a checkout: modules, lines, import closures, lists of methods; one column per checkout.

    python tools/house.py [CHECKOUT ...]

A checkout is a folder with `src/fedscape`; by default this one. Import closures need its dependencies, torch included.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

#: Names of methods that every version has had: a literal with three of them is a table, or list, of methods.
NAMES = {"fedavg", "fedprox", "fedadam", "local", "clustered", "ifca", "pfedme", "fedem", "fedgmm"}
NAMES |= {"fedtem", "fedtkm", "em-only", "vanilla", "scsgd", "t-shot"}
CLOSURES = ("import fedscape", *(f"from fedscape import {name}" for name in ("Histogram", "FedAvg", "FedTEM")))
LONG = 400


def measure(checkout: Path) -> dict[str, object]:
    """Count everything in a checkout."""
    root = checkout / "src" / "fedscape"
    files = {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.py"))}
    trees = {where: ast.parse(text) for where, text in files.items()}
    lengths = {where: len(text.splitlines()) for where, text in files.items()}
    tables = [f"{where}:{line}" for where, tree in trees.items() for line in tables_of(tree)]
    members = next(public for tree in trees.values() if (public := members_of(tree)))
    return {
        "modules": len(files),
        "lines": sum(lengths.values()),
        "modules above 400 lines": sum(length > LONG for length in lengths.values()),
        "longest module, lines": max(lengths.values()),
        "functions above 60 lines": sum(map(long_functions, trees.values())),
        **{f"modules after '{code}'": closure(checkout, code) for code in CLOSURES},
        "members of Computation": len(members),
        "lists of methods": len(tables),
        "where": tables,
    }


def tables_of(tree: ast.Module) -> list[int]:
    """Lines of the statements that list methods by name: three or more of NAMES as literals, not names of modules."""
    simple = (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)
    listed = []
    for node in ast.walk(tree):
        if isinstance(node, simple) and node.value is not None and "loader(" not in ast.unparse(node.value)[:8]:
            texts = {n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            if len(texts & NAMES) >= 3:
                listed.append(node.lineno)
    return listed


def members_of(tree: ast.Module) -> list[str]:
    """Public names that the class Computation of this module defines."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Computation":
            for part in node.body:
                if isinstance(part, ast.FunctionDef):
                    names.append(part.name)
                elif isinstance(part, ast.AnnAssign | ast.Assign):
                    targets = [part.target] if isinstance(part, ast.AnnAssign) else part.targets
                    names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def long_functions(tree: ast.Module) -> int:
    """Functions of more than 60 lines after their docstring, kernels left out."""
    number = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not any("kernel" in ast.unparse(d) for d in node.decorator_list):
            first = node.body[0]
            begin = first.end_lineno if ast.get_docstring(node) else first.lineno - 1
            number += (node.end_lineno or 0) - (begin or 0) > 60
    return number


def closure(checkout: Path, code: str) -> int | None:
    """Modules of fedscape that a new process has after this code; None where it does not run."""
    counted = f"{code}\nimport sys\nprint(sum(name.split('.')[0] == 'fedscape' for name in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run([sys.executable, "-c", counted], capture_output=True, text=True, env=environment)
    return int(done.stdout) if done.returncode == 0 else None


def main() -> None:
    """Print a table with a column for each checkout, and under it where methods are listed."""
    checkouts = [Path(text).resolve() for text in sys.argv[1:]] or [Path(__file__).resolve().parents[1]]
    columns = {str(checkout): measure(checkout) for checkout in checkouts}
    rows = [name for name in next(iter(columns.values())) if name != "where"]
    print("| | " + " | ".join(path.name for path in checkouts) + " |")
    print("| --- |" + " ---: |" * len(checkouts))
    for name in rows:
        print(f"| {name} | " + " | ".join(str(column[name]) for column in columns.values()) + " |")
    print(json.dumps({path: column["where"] for path, column in columns.items()}, indent=1))


if __name__ == "__main__":
    main()
