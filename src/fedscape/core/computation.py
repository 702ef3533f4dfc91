"""A federated computation is a step and an update; `rounds` runs them.

The server broadcasts a state. Every client turns it and its own rows into a few arrays; those are clipped, added over
the clients, noised; the server turns the sum into a new state. Sent is summed; kept never leaves.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, ClassVar

import numpy as np

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError, EngineError
from fedscape.types import Array, Arrays, Kept


class Computation:
    """A step that clients compute and an update that the server makes of the sum.

    State whose name begins with `server.` is the server's own (momenta, running averages): clients are not sent it.

    A subclass gives `start`, `step`, `update` and `examples`; its constructor stores its arguments under their own
    names. `block_clients` and `block_rows` bound how many clients, and rows, one call of `step` sees; `total_clients`
    how many one call of `total`, which needs no row per client and so can take more.

    >>> from fedscape import rounds
    >>> class Rows(Computation):
    ...     def start(self, seed): return {"rows": np.zeros(())}
    ...     def step(self, state, clients, key): return {"rows": clients.sizes}, {}
    ...     def update(self, state, total, key): return {"rows": total["rows"]}
    >>> fed = Federation({"y": [1, 2, 3]}, [0, 1, 3])
    >>> [float(r.state["rows"]) for r in rounds(Rows(), fed, n_rounds=1)]
    [3.0]
    """

    #: How files, messages and digests know the computation, wherever its class is; see `stable_name`.
    name: ClassVar[str] = ""
    #: Names of sent arrays that the server sees client by client; all others it sees only as a sum.
    reveals: ClassVar[tuple[str, ...]] = ()
    #: Raised when what clients compute or send changes: a server and its clients elsewhere must agree on it.
    version: ClassVar[int] = 1
    block_clients: int = 512
    block_rows: int = 2**18
    total_clients: int | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        above = next(c for c in cls.__mro__[1:] if "total" in c.__dict__)
        if "step" in cls.__dict__ and "total" not in cls.__dict__ and above is not Computation:
            raise TypeError(
                f"{cls.__name__} defines step but inherits total from {above.__name__}, which engines prefer to step: "
                "define total too, or set total = Computation.total to do without"
            )

    def start(self, seed: int) -> Arrays:
        """The first state."""
        raise TypeError(f"{type(self).__name__} must define start(seed)")

    def prepare(self, state: Arrays) -> Arrays:
        """Precompute what every client derives from the state alone, before it reads a row: tables, factorisations.

        Called once per round and process, never sent; `step`, `total` and `measure` get it as their state.
        """
        return state

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        """What each client sends, {name: [clients, ...]}, and what it keeps, {name: [clients, ...] or Ragged}."""
        raise TypeError(f"{type(self).__name__} must define step(state, clients, key)")

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        """The new state; `total` holds the sums, and under "clients" how many reported; `key` knows the round."""
        raise TypeError(f"{type(self).__name__} must define update(state, total, key)")

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        """Metrics per client, {name: [clients, ...]}; reported as means over the clients."""
        return {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | tuple[Arrays, Kept] | None:
        """The sum of what these clients send, without materialising rows per client; None to fall back to `step`.

        Only where measured to matter. It equals the sum of `step`, but what is in `reveals` comes as rows; where
        `step` keeps something, the sum comes with what is kept. Used when nothing is clipped.
        """
        return None

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        """Which rows lie in the domain that this computation declares, as a mask; None for all of them.

        `state` is what `step` gets. Without privacy `step` refuses the other rows. Under a release a refusal would tell
        of them, so the engine leaves them out on the client, before `step` and `measure` see it.
        """
        return None

    def coded_columns(self) -> Sequence[str]:
        """Columns whose codes it takes for categories: under privacy they must be declared, not collected from rows."""
        return ()

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """The sensitivity of the sent arrays to one row, in the L1 or L2 norm; None where it is unbounded.

        Of the clients only the columns' names, shapes and types may be looked at, never a value; a server that has no
        rows passes None, and each client asks again.
        """
        return None

    @classmethod
    def examples(cls) -> Sequence[tuple[Computation, Federation]]:
        """Small (computation, federation) pairs on which the contract tests run."""
        raise TypeError(f"{cls.__name__} must define examples()")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as stored (the scikit-learn convention)."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names if name not in ("args", "kwargs")}

    def set_params(self, **params: Any) -> Computation:
        """Set constructor arguments by name."""
        for name, value in params.items():
            if name not in self.get_params():
                raise DataError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(self.get_params())}"
                )
            setattr(self, name, value)
        return self

    def digest(self) -> str:
        """A digest of the stable name and the parameters."""
        content = [stable_name(type(self)), _canonical(self.get_params())]
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = {n: v for n, v in self.get_params().items() if not _is_default(v, defaults[n].default)}
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in changed.items())})"


def stable_name(kind: type[Computation]) -> str:
    """The class's own `name`, or else its module and class: what a subclass computes is not what its parent does.

    >>> from fedscape import Histogram
    >>> stable_name(Histogram), stable_name(type("Mine", (Histogram,), {"__module__": "my"}))
    ('histogram', 'my.Mine')
    """
    return str(vars(kind).get("name") or f"{kind.__module__}.{kind.__qualname__}")


def sent_and_kept(computation: Computation, reply: Any) -> tuple[Arrays, Kept]:
    """Validate the result of a step: a pair of dicts.

    >>> sent_and_kept(Computation(), ({"sum": np.ones(2)}, {}))[1]
    {}
    """
    if isinstance(reply, tuple) and len(reply) == 2 and all(isinstance(part, Mapping) for part in reply):
        return reply
    what = "a dict" if isinstance(reply, Mapping) else f"a {type(reply).__name__}"
    raise EngineError(
        f"{type(computation).__name__}.step must return two dicts, what is sent and what is kept, not {what}: "
        "return sent, {} where clients keep nothing"
    )


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, str | int | float | bool | tuple) and value == default)


def _canonical(value: Any) -> Any:
    """Parameters as text that is the same in every process."""
    if isinstance(value, np.ndarray):
        return (
            "array",
            value.dtype.str,
            value.shape,
            hashlib.sha256(value.tobytes()).hexdigest(),
        )
    if isinstance(value, dict):
        return [(str(k), _canonical(v)) for k, v in sorted(value.items(), key=lambda item: str(item[0]))]
    if isinstance(value, list | tuple):
        return [_canonical(v) for v in value]
    if value is None or isinstance(value, str | int | float | np.generic) or is_dataclass(value):
        return repr(value)
    if isinstance(value, Computation):
        return value.digest()
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__qualname__
