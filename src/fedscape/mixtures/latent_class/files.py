"""Save a fitted latent class regression: JSON for people and tools, and an .npz file beside it for the arrays."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from fedscape.core.codec import prefixed
from fedscape.errors import CheckpointError
from fedscape.mixtures.dirichlet_multinomial.files import read_population, write_population
from fedscape.mixtures.latent_class.kernels import width
from fedscape.mixtures.latent_class.links import Logistic, Probit
from fedscape.mixtures.latent_class.networks import Networks
from fedscape.mixtures.latent_class.predict import Places
from fedscape.mixtures.latent_class.rounds import ClassAssignment
from fedscape.mixtures.latent_class.table import Table
from fedscape.types import Array, Arrays

KINDS: dict[str, type[ClassAssignment]] = {"identity": ClassAssignment, "logistic": Logistic, "probit": Probit}
WHAT = "regression"
NUMBERS = (
    "sigma_",
    "delta_",
    "alpha_",
    "beta_",
    "feature_names_",
    "candidates_",
    "fills_",
)  # learned values stored in JSON
ARRAYS = ("coefficients_", "intercepts_", "errors_", "weights_", "entities_", "events_", "intervals_", "r_hat_")
_SINGLE = ("noise", "least", "alpha", "beta", "unit", "rounds", "held")


class Draw(NamedTuple):
    """One chain's state, and the classes of the entities of this process."""

    state: Arrays
    places: Places | None


class Saved(NamedTuple):
    """The contents of a file."""

    parameters: dict[str, Any]
    learned: dict[str, Any]
    arrays: dict[str, Array]
    work: ClassAssignment
    draws: list[Draw]
    history: list[dict[str, Any]]
    spent: dict[str, Any] | None  # the ledger summary of a private fit


def write_regression(path: str | os.PathLike[str], saved: Saved) -> None:
    """Write both files."""
    work = saved.work.get_params()
    arrays = {f"learned.{name}": values for name, values in saved.arrays.items()}
    entities: list[list[str] | None] = []
    for i, (state, places) in enumerate(saved.draws):
        arrays |= {f"{i}.state.{name}": values for name, values in state.items()}
        entities.append(None)
        if places is not None:
            arrays |= {f"{i}.places.{name}": v for name, v in places._asdict().items() if name != "names"}
            entities[-1] = None if places.names is None else list(places.names)
    header = {
        "parameters": saved.parameters,
        "learned": saved.learned,
        "work": {**work, "table": asdict(saved.work.table)},
        "draws": len(saved.draws),
        "entity_names": entities,
        "history": saved.history,
        "spent": saved.spent,
    }
    write_population(path, header, arrays, what=WHAT, private=saved.spent is not None)


def read_regression(path: str | os.PathLike[str], parameters: Collection[str]) -> Saved:
    """Read both files of a regression with these parameters; refuse foreign, damaged or mismatched ones."""
    header, arrays = read_population(path, what=WHAT)
    try:
        table = dict(header["work"]["table"])
        table |= {"features": tuple(table["features"]), "ranges": tuple(tuple(ends) for ends in table["ranges"])}
        table |= {name: tuple(table.get(name, ())) for name in ("basis_centre", "basis_scale")}
        kind = Networks if "hidden" in header["work"] else KINDS[header["parameters"]["link"]]
        work = kind(**{**header["work"], "table": Table(**table)})
        draws = [_draw(prefixed(arrays, f"{i}."), header["entity_names"][i]) for i in range(int(header["draws"]))]
        learned = prefixed(arrays, "learned.")
        unknown = ({*header["learned"], *learned} - {*NUMBERS, *ARRAYS}) | (set(header["parameters"]) - set(parameters))
        if unknown:
            raise ValueError(", ".join(sorted(unknown)))
        _check(work, draws, learned)
        history, spent = header["history"], header.get("spent")
        return Saved(header["parameters"], header["learned"], learned, work, draws, history, spent)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{os.fspath(path)} lacks or mistakes {error}: save the {WHAT} again") from None


def _check(work: ClassAssignment, draws: Sequence[Draw], learned: Mapping[str, Array]) -> None:
    """Refuse arrays of wrong sizes: kernels read them without bounds checks."""
    k, each = work.n_components, work.n_features
    hidden = work.hidden if isinstance(work, Networks) else 0
    f = each - work.table.intercept - hidden
    state: dict[str, tuple[int, ...]] = dict.fromkeys(_SINGLE, ())
    state |= {"inner": (k, f + 1, hidden)} if hidden else {}
    state |= {"sums": (k, width(each) + 1), "spread": (each,), "centre": (f + 1,), "scale": (f,)}
    if not draws or f < 1:
        raise ValueError("how many draws and features there are")
    for draw in draws:
        _sized(draw.state, state)
        if draw.places is not None:
            _check_places(draw.places, k)
    sizes = {"coefficients_": (k, f), "errors_": (k, f), "intervals_": (k, each, 2), "r_hat_": (k, each)}
    _sized(learned, {name: sizes.get(name, (k,)) for name in learned})


def _check_places(places: Places, k: int) -> None:
    agents, entities = len(places.ids), len(places.codes)
    sizes: dict[str, tuple[int, ...]] = {"ids": (agents,), "offsets": (agents + 1,), "shares": (entities, k)}
    arrays = {name: values for name, values in places._asdict().items() if name != "names"}
    _sized(arrays, {**sizes, "codes": (entities,), "labels": (entities,)})
    ends, names = places.offsets, places.names
    if ends[0] != 0 or ends[-1] != entities or (np.diff(ends) < 0).any():
        raise ValueError("the offsets of agents")
    if not ((places.labels >= -1) & (places.labels < k)).all():
        raise ValueError("the labels of entities")
    if names is not None and not ((places.codes >= 0) & (places.codes < len(names))).all():
        raise ValueError("the codes of entities")


def _sized(arrays: Mapping[str, Array], sizes: Mapping[str, tuple[int, ...]]) -> None:
    for name, size in sizes.items():
        values = arrays[name]
        if values.shape != size or values.dtype.kind not in ("biufU" if name == "ids" else "biuf"):
            raise ValueError(f"{name}, which must be numbers {list(size)}, not {values.dtype}{list(values.shape)}")


def _draw(arrays: Mapping[str, Array], names: Sequence[str] | None) -> Draw:
    places = prefixed(arrays, "places.")
    entity_places = Places(**places, names=None if names is None else tuple(names)) if places else None
    return Draw(prefixed(arrays, "state."), entity_places)
