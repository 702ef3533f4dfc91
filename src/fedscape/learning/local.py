"""How a client trains."""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedscape.core.arrays import Gathered
from fedscape.core.federation import Federation
from fedscape.core.random import Array
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.learning.fast.stacks import Stack, checked_stack
from fedscape.learning.layers import Module, check_module, drawing, keyed_layers, trainable_copy
from fedscape.learning.losses import Loss, Tensor, cross_entropy
from fedscape.learning.memory import Held, is_same_memory, resident, shared
from fedscape.learning.plan import Timing

STRATEGIES = ("auto", "sequential", "vmap", "compiled", "scripted")
PRECISIONS = ("exact", "tf32", "bf16")
RESIDENT = 2**33  # bytes of a column up to which all of it is kept on a GPU
LOCKED = 2**28  # bytes of an array up to which it may lie in locked memory, of which torch gives nothing back
SMALL_MODEL = 2**17  # parameters up to which vmap is measured to win on a CPU (benchmarks/training_speed.py)


class Data(NamedTuple):
    """Rows of some clients as tensors: features as they are stored, targets, and sample weights if there are any."""

    x: Tensor
    y: Tensor
    weights: Tensor | None


def _nothing_spare() -> dict[str, deque[Module]]:
    return {use: deque() for use in ("train", "evaluate", "any")}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LocalSGD:
    """How a client trains: mini-batch steps from the broadcast weights on its own rows.

    Per step, with g the mean over the batch of the gradients of `loss` (times the sample weights, if any),
    g <- g + weight_decay w + proximal (w - w_broadcast), then `optimiser`. A positive `proximal` is FedProx (Li et al.
    2020, equation 2). Batches are keyed shuffles, a function of (seed, round, client); the last of an epoch may be
    smaller. Dropout is keyed in the same way. Clients without rows send zeros.

    Parameters
    ----------
    model
        Any module without running statistics, or a function that makes one: then its weights are drawn from `seed`,
        and two runs are the same. A ready module has the weights that torch's global generator gave it, and they are
        taken as they are: torch.manual_seed before it is made repeats them. They are the first state unless the method
        draws them anew; parameters with requires_grad=False stay as they are on every client.
    loss
        A callable of (output, target) that gives one number per sample.
    lr
        The learning rate.
    epochs, steps
        How often a client goes through its rows, or how many steps it makes: one of the two.
    batch_size
        Rows per step.
    momentum
        Of the client's own steps; begins at zero in every round. Only for "sgd".
    weight_decay
        Pulls weights to zero.
    proximal
        Pulls weights to the broadcast ones.
    optimiser
        "sgd" or "adam" (betas and epsilon as given here; its memory begins at zero in every round).
    schedule
        A factor on `lr` as a function of the round, for instance `CosineDecay(100)`.
    early_stopping
        With `epochs`: a client stops after an epoch whose mean loss, as its batches had it, is not this much below that
        of the epoch before; None never stops.
    features, target, weights
        Names of columns; bytes (uint8) are scaled to [0, 1] unless the model has an embedding. Weights count in
        training; metrics and `evaluate` count every row once.
    strategy
        "sequential": one client after the other. "vmap": all clients of a group at once. "compiled": all at once,
        folded into one batch where the model allows it, gradient and update compiled, and on a GPU recorded and
        replayed; the first round takes ten to forty seconds longer. "scripted": a stack of linear layers on a CPU
        with its gradient written out, a few clients at once, outside of the interpreter; any other model, loss or
        optimiser is then trained as by "auto". "auto": by a rule on model and device, never by a
        clock, so that a run can be repeated; `measure_strategies` tells which is faster here. They agree to rounding:
        1e-9 in float64, 1e-5 in float32 over a few rounds of a well-conditioned model.
    precision
        On a GPU: "exact" computes in the model's own type; "tf32" lets products round their factors to 10 bits of
        mantissa; "bf16" runs the network in bfloat16, weights and updates staying in their own type.
    device
        Where to train.
    seed
        What a function that makes the model draws its weights from.

    >>> step = LocalSGD(nn.Linear(4, 2), nn.CrossEntropyLoss(reduction="none"), lr=0.1, epochs=1, batch_size=10)
    >>> step.n_parameters, step.chosen
    (10, 'scripted')
    """

    model: Module = field(kw_only=False)
    loss: Loss = field(kw_only=False)
    lr: float
    epochs: int | None = None
    steps: int | None = None
    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    optimiser: str = "sgd"
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    schedule: Callable[[int], float] | None = None
    early_stopping: float | None = None
    features: str = "x"
    target: str = "y"
    weights: str | None = None
    strategy: str = "auto"
    precision: str = "exact"
    device: str = "cpu"
    seed: int = 0
    _spare: dict[str, deque[Module]] = field(default_factory=_nothing_spare, init=False)
    _held: dict[str, Held] = field(default_factory=dict, init=False)
    _ready: list[Any] = field(default_factory=list, init=False)  # the plan of a round to come
    _tried: set[Any] = field(default_factory=set, init=False)  # kinds of rows that the model has taken

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module) and callable(self.model):
            with drawing(self.seed):
                object.__setattr__(self, "model", self.model())
        check_module(self.model)
        if not callable(self.loss):
            raise DataError(f"loss must be a callable of (output, target), not {self.loss!r}")
        if (self.epochs is None) == (self.steps is None):
            raise DataError(f"give one of epochs and steps, not epochs={self.epochs} and steps={self.steps}")
        for name in ("epochs", "steps", "batch_size"):
            number = getattr(self, name)
            if number is not None:
                check_whole(name, number, least=1)
        for name in ("lr", "weight_decay", "proximal", "momentum"):
            if not 0 <= getattr(self, name) < np.inf:
                raise DataError(f"{name} must be a number of at least 0, not {getattr(self, name)!r}")
        if self.momentum >= 1 or (self.momentum and self.optimiser == "adam"):
            raise DataError(f"momentum must be below 1, and 0 with adam (its betas say it), not {self.momentum}")
        if self.optimiser not in ("sgd", "adam"):
            raise DataError(f"optimiser must be 'sgd' or 'adam', not {self.optimiser!r}")
        _check_device(self.device)
        if self.strategy not in STRATEGIES:
            raise DataError(f"strategy must be one of {STRATEGIES}, not {self.strategy!r}")
        if self.precision not in PRECISIONS:
            raise DataError(f"precision must be one of {PRECISIONS}, not {self.precision!r}")
        if self.precision != "exact" and not self.on_gpu:
            raise DataError(f"precision must be 'exact' on the device {self.device!r}, not {self.precision!r}")
        if self.early_stopping is not None and (self.epochs is None or not 0 <= self.early_stopping < np.inf):
            raise DataError(
                f"early_stopping must be at least 0 and goes with epochs=, it is {self.early_stopping!r}: "
                "a client compares an epoch with the one before"
            )

    # -- what is trained -----------------------------------------------------------------------------------------------

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the parameters that are trained."""
        return [name for name, p in self.model.named_parameters() if p.requires_grad]

    @functools.cached_property
    def n_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @functools.cached_property
    def dtype(self) -> Any:
        """The type of the model's numbers."""
        return next(p.dtype for p in self.model.parameters() if p.requires_grad)

    @functools.cached_property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA one."""
        return bool(torch.device(self.device).type == "cuda")

    @functools.cached_property
    def stack(self) -> Stack | None:
        """What the model is made of where its gradient is written out; None where it is not, or not for this training.

        Such a stack on a CPU, with SGD and no early stopping, is trained "scripted".
        """
        fits = torch.device(self.device).type == "cpu" and self.optimiser == "sgd" and self.early_stopping is None
        return checked_stack(self.model, self.loss) if fits and self.strategy in ("auto", "scripted") else None

    @property
    def chosen(self) -> str:
        """The strategy in use: "scripted" where the model is a `stack`, else that of any model."""
        return self.fallback if self.stack is None else "scripted"

    @property
    def fallback(self) -> str:
        """The strategy of any model.

        On a CPU many small clients at once win while per-call overhead rules: up to 2**17 parameters, no convolution
        and no recurrent layer of torch's. Beyond that arithmetic or memory bounds the work and one client at a time is
        faster. On a CUDA device compiled training wins throughout.
        """
        if self.strategy not in ("auto", "scripted"):
            return self.strategy
        if self.on_gpu:
            return "compiled"
        if torch.device(self.device).type != "cpu":
            return "vmap"
        heavy = (nn.modules.conv._ConvNd, nn.RNNBase)
        small = self.n_parameters <= SMALL_MODEL and not any(isinstance(m, heavy) for m in self.model.modules())
        return "vmap" if small else "sequential"

    @property
    def chunk(self) -> int:
        """How many clients are trained side by side: as many as fit a fixed number of weights.

        Of a large stack one: the steps of one client keep a thread busy, and threads then share clients evenly.
        """
        if torch.device(self.device).type != "cpu":
            return int(min(max(2**27 // self.n_parameters, 1), 4096))
        if self.n_parameters > SMALL_MODEL and self.stack is not None:
            return 1
        return int(min(max(2**20 // self.n_parameters, 1), 256))

    @property
    def timing(self) -> Timing:
        """How long a client trains."""
        return Timing(self.epochs, self.steps, self.batch_size)

    def rate(self, index: int) -> float:
        """The learning rate of this round."""
        return self.lr if self.schedule is None else self.lr * self.schedule(index)

    def parameters(self, model: Module | None = None) -> dict[str, Array]:
        """The trained parameters of the model (or of another of its kind) as arrays."""
        named = dict((self.model if model is None else model).named_parameters())
        return {name: named[name].detach().cpu().numpy().copy() for name in self.names}

    def settings(self) -> dict[str, str]:
        """All that decides how a client trains, as text; where and how fast it trains does not.

        A node compares it with the server's.

        >>> LocalSGD(nn.Linear(4, 2), cross_entropy, lr=0.1, epochs=1, batch_size=10).settings()["lr"]
        '0.1'
        """
        aside = ("model", "strategy", "precision", "device")
        data = {f.name: _setting(getattr(self, f.name)) for f in fields(self) if f.init and f.name not in aside}
        parameters = [
            f"{n} {'x'.join(map(str, p.shape))} {_short(p.dtype)}{'' if p.requires_grad else ' fixed'}"
            for n, p in self.model.named_parameters()
        ]
        return {**data, "model": _module_text(self.model), "parameters": ", ".join(parameters)}

    # -- what clients have ---------------------------------------------------------------------------------------------

    def inputs(self, values: Tensor) -> Tensor:
        """Rows of the features as the model takes them."""
        if values.dtype.is_floating_point:
            return values.to(self.dtype)
        if self._embeds:
            return values.to(torch.int64)
        return values.to(self.dtype).div_(255) if values.dtype == torch.uint8 else values.to(self.dtype)

    def data(self, clients: Federation, rows: slice = slice(None)) -> Data:
        """These rows of the clients where they are trained on: features as stored, targets, sample weights."""
        x, y = self.column(clients, self.features, rows), self.targets(clients, rows)
        self.check_row(x[:1])
        classes = self.loss is cross_entropy or isinstance(self.loss, nn.CrossEntropyLoss)
        if classes and y.dtype.is_floating_point and y.ndim == 1:
            raise DataError(
                f"column {self.target!r} must hold classes 0, 1, 2, ... for this loss, not {_short(y.dtype)}"
            )
        return Data(x, y, self._weights(clients, rows))

    def check_row(self, row: Tensor) -> None:
        """Let the model take one row, [1, ...] as stored, once of each kind: what does not fit is a DataError."""
        kind = (tuple(row.shape), row.dtype)
        if kind in self._tried or not len(row):
            return
        try:
            with torch.no_grad(), self.borrowed() as module:
                module.eval()
                module(self.inputs(row))
                module.train()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            what = f"of shape {list(row.shape[1:])} ({_short(row.dtype)})"
            said = (str(error).splitlines() or [""])[0]
            raise DataError(f"the model does not take rows of {self.features!r} {what}: {said}") from None
        self._tried.add(kind)

    def targets(self, clients: Federation, rows: slice = slice(None)) -> Tensor:
        """The targets of these rows where they are trained on."""
        y = self.column(clients, self.target, rows)
        return y.to(self.dtype if y.dtype.is_floating_point else torch.int64)

    def column(self, clients: Federation, name: str, rows: slice) -> Tensor:
        """A column as it is stored, where it is trained on; it must not be written to."""
        columns = clients.columns
        if self.on_gpu and isinstance(columns, Gathered) and columns.source[name].nbytes <= RESIDENT:
            where = columns.rows if isinstance(columns.rows, slice) else self.sent(columns.rows)
            return resident(columns.source[name], self.device)[where][rows]
        return shared(clients[name][rows]).to(self.device)

    def sent(self, values: Array) -> Tensor:
        """An array where it is trained on, without waiting for what is under way there; it must not be written to."""
        if not self.on_gpu or values.nbytes > LOCKED:
            return shared(values).to(self.device)
        return shared(values).pin_memory().to(self.device, non_blocking=True)

    @functools.cached_property
    def dropout_paths(self) -> list[str]:
        """The paths of the layers that drop anything."""
        return [path for path, _ in keyed_layers(trainable_copy(self.model, "vmap"))]

    def tensor(self, name: str, values: Array) -> Tensor:
        """An array of the state where it is trained on; it must not be written to."""
        held = self._held.get(name)
        if held is not None and is_same_memory(held.array, values):
            return held.tensor
        return shared(values).to(self.device)

    def found_finite(self, state: Mapping[str, Array]) -> bool:
        """Whether all arrays of this state are `arrays` that were found finite where they were made."""
        floats = {n: values for n, values in state.items() if values.dtype.kind == "f"}
        return bool(self._held) and all(self._is_finite(n, values) for n, values in floats.items())

    def _is_finite(self, name: str, values: Array) -> bool:
        held = self._held.get(name)
        if held is None or not is_same_memory(held.array, values):
            return values.ndim == 0 and bool(np.isfinite(values))
        return held.finite

    def arrays(self, tensors: dict[str, Tensor]) -> dict[str, Array]:
        """Tensors as arrays of the state; on a GPU the tensors stay there for the next round."""
        if not self.on_gpu:
            return {name: values.cpu().numpy() for name, values in tensors.items()}
        floats = [n for n, values in tensors.items() if values.is_floating_point() and values.numel()]
        largest = torch._foreach_norm([tensors[n] for n in floats], float("inf")) if floats else []
        good = torch.isfinite(torch.stack([size.to(torch.float64) for size in largest])) if floats else None
        made = self.fetched(tensors)
        finite = {} if good is None else dict(zip(floats, good.tolist(), strict=True))
        self._held.update({n: Held(made[n], values, finite.get(n, True)) for n, values in tensors.items()})
        return made

    def fetched(self, tensors: dict[str, Tensor]) -> dict[str, Array]:
        """Tensors as arrays of their own."""
        if not self.on_gpu:
            return {name: values.cpu().numpy() for name, values in tensors.items()}
        size = {n: t.numel() * t.element_size() for n, t in tensors.items()}
        locked = {n: torch.empty(t.shape, dtype=t.dtype, pin_memory=size[n] <= LOCKED) for n, t in tensors.items()}
        for name, values in tensors.items():
            locked[name].copy_(values, non_blocking=True)  # to locked memory is several times as quick
        torch.cuda.synchronize(self.device)
        return {name: values.numpy() for name, values in locked.items()}

    @functools.cached_property
    def _embeds(self) -> bool:
        return any(isinstance(layer, nn.Embedding) for layer in self.model.modules())

    def _weights(self, clients: Federation, rows: slice) -> Tensor | None:
        if self.weights is None:
            return None
        values = np.array(clients[self.weights][rows], dtype=np.float64)
        if values.ndim != 1 or not (np.isfinite(values).all() and (values >= 0).all()):
            raise DataError(f"the column {self.weights!r} must hold one number of at least 0 per row: sample weights")
        return torch.from_numpy(values).to(self.device, self.dtype)

    @contextmanager
    def borrowed(self, to: str = "evaluate") -> Iterator[Module]:
        """A copy of the model that no other thread uses; one that failed is not used again.

        One that trains by a program, which takes long to make, is not lent to evaluate.
        """
        spare = self._spare[to if self.fallback == "compiled" else "any"]
        try:
            module = spare.pop()
        except IndexError:
            module = trainable_copy(self.model, self.fallback).to(self.device)
            if torch.device(self.device).type == "cpu" and self.fallback == "sequential":
                module = module.to(memory_format=torch.channels_last)
        yield module
        spare.append(module)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_spare": _nothing_spare(), "_held": {}, "_ready": []}

    def __repr__(self) -> str:
        shown = [f.name for f in fields(self) if f.init and f.name not in ("model", "loss")]
        given = [f"{n}={_text(getattr(self, n))}" for n in shown if getattr(self, n) not in (None, 0.0)]
        return f"LocalSGD({', '.join([_module_text(self.model), _text(self.loss), *given])})"


def check_local(local: Any, initial: str = "given") -> LocalSGD:
    """The LocalSGD; anything else is refused, and a word for the first weights that there is not."""
    if not isinstance(local, LocalSGD):
        raise DataError(f"local must be a LocalSGD, not a {type(local).__name__}: LocalSGD(model, loss, ...)")
    if initial not in ("given", "seed"):
        raise DataError(f"initial must be 'given' or 'seed', not {initial!r}")
    return local


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise DataError(f"device must be one that torch knows, such as 'cpu' or 'cuda', not {device!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise DataError(f"device is {device!r}, but torch finds no CUDA device here: use 'cpu'")


def _module_text(model: Module) -> str:
    """The same in every process, and different for another architecture."""
    shapes = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in model.named_parameters()]
    digest = hashlib.sha256(f"{model!r} {shapes}".encode()).hexdigest()[:12]
    return f"{type(model).__qualname__} {digest}"


def _setting(value: Any) -> str:
    """The same in every process: numbers by value, callables by name."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.17g}" if float(f"{value:g}") != value else f"{value:g}"
    text = _text(value)
    return text if " at 0x" not in text else f"{type(value).__module__}.{type(value).__qualname__}"


def _text(value: Any) -> str:
    if isinstance(value, functools.partial):
        return f"{_text(value.func)}{value.args}{sorted(value.keywords.items())}"
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)
