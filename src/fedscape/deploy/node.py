"""The owner's tools for a node's folder: read and write its terms, read its log."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from fedscape.engines.flower.booking import groups_of, spent_by_group, spent_in_all, unnoised
from fedscape.engines.flower.node_store import FAILURES, failures, log_entries
from fedscape.engines.flower.terms import FILE, Terms, read_terms, write_terms
from fedscape.errors import DataError
from fedscape.privacy.ledger import Ledger

# The terms that `init` writes for each node: two budgets, and no answer without promised noise.
_FIRST_TERMS = Terms(epsilon=8.0, total_epsilon=8.0, unnoised=0)
# The same for an owner who does not trust the server to add noise.
_STRICT_TERMS = replace(_FIRST_TERMS, places=("local",), units=("client",))


def write_first_terms(deployment: Path, numbers: Iterable[int], *, strict: bool, secure: bool = False) -> None:
    """Write terms for each of these nodes of a deployment."""
    terms = replace(_STRICT_TERMS if strict else _FIRST_TERMS, secure=secure)
    for number in numbers:
        write_terms(deployment / "nodes" / str(number), terms)


def check_node(folder: str | os.PathLike[str], data: str | None, client: str | None) -> dict[str, Any]:
    """Check that a node can answer: its terms, its keys, and readable data; a DataError says what is wrong.

    Parameters
    ----------
    folder
        The folder of the node.
    data
        The data it will be started with; None skips the check.
    client
        The column with the client ids, if the data have one.
    """
    path = _node_folder(folder)
    terms = read_terms(path)
    if terms is None:
        raise DataError(
            f"{path} has no {FILE}, and the node refuses everything: write it with fedscape deploy terms {path}"
        )
    about: dict[str, Any] = {"folder": str(path), "terms": FILE, "secure": terms.secure}
    if terms.secure:
        about["peers"] = _peers(path)
    if data is not None:
        from fedscape.datasets import read

        fed = read(data, client=client or None)
        about |= {"clients": len(fed), "rows": fed.n_rows, "columns": list(fed.columns)}
        if missing := [name for name in terms.columns or () if name not in fed.columns]:
            raise DataError(f"the terms allow the column {missing[0]!r}, which {data} does not have")
    return about


def _peers(path: Path) -> int:
    """Number of nodes on this node's roster, including itself."""
    from fedscape.engines.flower.secure_node import KEY, PEERS, Keys, verifying_key

    peers = Keys(path).peers() if (path / PEERS).is_file() else None
    if peers is None or not (path / KEY).is_file():
        raise DataError(
            f"{path} has no {PEERS} or no {KEY}, which secure sums need: copy nodes/NUMBER of the deployment"
        )
    if verifying_key(path) not in peers:
        raise DataError(f"{path / PEERS} does not name this node's own key: copy the roster of the deployment again")
    return len(peers)


def damaged_terms(deployment: Path) -> list[str]:
    """Errors in the terms of the nodes whose folders are here."""
    problems = []
    for path in sorted(deployment.glob(f"nodes/*/{FILE}")):
        try:
            read_terms(path.parent)
        except DataError as error:
            problems.append(str(error))
    return problems


def terms_of(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The terms in force on a node, and how much of them is spent.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     change_terms(folder, {"epsilon": 2.0})
    ...     terms_of(folder)["terms"]["epsilon"]
    2.0
    """
    path = _node_folder(folder)
    owners = read_terms(path)
    terms = owners or Terms()
    about: dict[str, Any] = {
        "folder": str(path),
        "in_force": FILE if owners is not None else "the app's",
        "terms": asdict(terms),
        "spent": [],
        "spent_in_all": 0.0,
        "unnoised": 0,
        "failed_runs": len(failures(path)),
        "failed_runs_allowed": FAILURES,
    }
    if (path / "ledger.jsonl").is_file():
        ledger = Ledger(path / "ledger.jsonl")
        groups = groups_of(ledger)
        names = ("unit", "relation", "place")
        spent = spent_by_group(terms, groups)
        about["spent"] = [{**dict(zip(names, group, strict=True)), "epsilon": e} for group, e in spent.items()]
        about["spent_in_all"], about["unnoised"] = spent_in_all(terms, groups), unnoised(ledger)
    return about


def change_terms(folder: str | os.PathLike[str], changes: Mapping[str, Any], *, clear: Sequence[str] = ()) -> None:
    """Write a node's terms with these changes; cleared terms get their default, others stay the same.

    Parameters
    ----------
    folder
        The folder of the node, created if missing.
    changes
        New values by name.
    clear
        Names of terms to reset to their default, which for most is no limit.
    """
    names = [field.name for field in fields(Terms)]
    if unknown := [name for name in (*changes, *clear) if name not in names]:
        raise DataError(f"there is no term {unknown[0]!r}; terms are {', '.join(names)}")
    defaults = asdict(Terms())
    now = read_terms(folder) or Terms()
    write_terms(folder, replace(now, **{**{name: defaults[name] for name in clear}, **changes}))


def log_of(folder: str | os.PathLike[str], *, last: int | None = None) -> list[dict[str, Any]]:
    """Requests to a node and their outcomes, oldest first; with `last`, only the newest ones."""
    if last is not None and last < 1:
        raise DataError(f"last must be at least 1, not {last}")
    lines = log_entries(_node_folder(folder))
    return lines if last is None else lines[-last:]


def _node_folder(folder: str | os.PathLike[str]) -> Path:
    path = Path(folder)
    if not path.is_dir():
        raise DataError(
            f"there is no folder {path}: it is nodes/NUMBER of a deployment, or what folder= of an app says"
        )
    if (path / "deployment.json").is_file():
        raise DataError(f"{path} is a deployment; terms and logs are its nodes': {path / 'nodes' / '0'} and so on")
    return path
