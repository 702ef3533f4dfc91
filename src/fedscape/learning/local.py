"""How a client trains."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.learning.layers import Module, check_module, drawing
from fedscape.learning.losses import Loss
from fedscape.types import Array, Tensor

STRATEGIES = ("auto", "sequential", "vmap", "recorded", "compiled", "stacked")
PRECISIONS = ("exact", "tf32", "bf16")


class Timing(NamedTuple):
    """How long clients train: epochs or steps, and the batch size."""

    epochs: int | None
    steps: int | None
    batch_size: int

    def batches(self, sizes: Array) -> Array:
        """Batches of one epoch."""
        return np.asarray(-(-sizes // self.batch_size))

    def all_steps(self, sizes: Array) -> Array:
        """Steps of the whole training."""
        if self.epochs is not None:
            return self.batches(sizes) * self.epochs
        return np.where(sizes > 0, self.steps or 0, 0)

    def counts(self, size: int) -> Array:
        """How many rows a client of this size uses in each step.

        >>> Timing(2, None, 3).counts(5).tolist()
        [3, 2, 3, 2]
        """
        whole, rest = divmod(size, self.batch_size)
        epoch = [self.batch_size] * whole + [rest] * int(rest > 0)
        return np.resize(epoch, int(self.all_steps(np.asarray(size)))).astype(np.int64)


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
        "sequential": one client after the other. "vmap": all clients of a group at once. "recorded": all at once,
        folded into one batch where the model allows it, on a GPU by kernels of our own, recorded and replayed.
        "compiled": the same with gradient and update by torch's compiler, which takes ten to forty seconds more in the
        first round. Value "stacked": linear layers on a CPU with a
        hand-written gradient, a few clients at once, outside the interpreter; any other model, loss or optimiser is
        trained as by "auto". Value "auto": chosen by a rule on model and device, never by timing, so that runs repeat.
        `measure_strategies` tells which is faster here. They agree to rounding: 1e-9 in float64, 1e-5 in float32 over a
        few rounds of a well-conditioned model.
    precision
        On a GPU: "exact" computes in the model's own type; "tf32" lets products round their factors to 10 bits of
        mantissa; "bf16" runs the network in bfloat16, weights and updates staying in their own type.
    device
        Where to train.
    group_size
        How many trainings are made side by side at most; by default as many as fit. Groups of clients are the unit of
        work: with several GPUs (`fs.Ray`) each trains whole groups. Results of other group sizes agree to rounding.
    keep_on_device
        On a GPU: the share of its free memory that may hold what clients keep between rounds, such as their own models.
        What does not fit is kept in host memory, and copied in each round. Results do not depend on it.
    seed
        What a function that makes the model draws its weights from.

    >>> step = LocalSGD(nn.Linear(4, 2), nn.CrossEntropyLoss(reduction="none"), lr=0.1, epochs=1, batch_size=10)
    >>> step.n_parameters, step.names
    (10, ('weight', 'bias'))
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
    group_size: int | None = None
    keep_on_device: float = 0.5
    seed: int = 0
    names: tuple[str, ...] = field(init=False)
    n_parameters: int = field(init=False)
    dtype: Any = field(init=False)
    embeds: bool = field(init=False)
    outputs: int = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module) and callable(self.model):
            with drawing(self.seed):
                object.__setattr__(self, "model", self.model())
        check_module(self.model)
        self._derive()
        if not callable(self.loss):
            raise DataError(f"loss must be a callable of (output, target), not {self.loss!r}")
        if (self.epochs is None) == (self.steps is None):
            raise DataError(f"give one of epochs and steps, not epochs={self.epochs} and steps={self.steps}")
        for name in ("epochs", "steps", "batch_size", "group_size"):
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
        if not 0 <= self.keep_on_device <= 1:
            raise DataError(f"keep_on_device must be a share from 0 to 1, not {self.keep_on_device!r}")
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

    def _derive(self) -> None:
        """Read what follows from the model: it is set here, once, and nothing is added later."""
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        facts = {
            "names": tuple(trained),
            "n_parameters": sum(p.numel() for p in trained.values()),
            "dtype": next(iter(trained.values())).dtype,
            "embeds": any(isinstance(layer, nn.Embedding) for layer in self.model.modules()),
            "outputs": ([m.out_features for m in self.model.modules() if hasattr(m, "out_features")] or [0])[-1],
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a CUDA one."""
        return bool(torch.device(self.device).type == "cuda")

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

        >>> loss = nn.CrossEntropyLoss(reduction="none")
        >>> LocalSGD(nn.Linear(4, 2), loss, lr=0.1, epochs=1, batch_size=10).settings()["lr"]
        '0.1'
        """
        aside = ("model", "strategy", "precision", "device", "group_size", "keep_on_device")
        data = {f.name: _setting(getattr(self, f.name)) for f in fields(self) if f.init and f.name not in aside}
        parameters = [
            f"{n} {'x'.join(map(str, p.shape))} {_short(p.dtype)}{'' if p.requires_grad else ' fixed'}"
            for n, p in self.model.named_parameters()
        ]
        return {**data, "model": _module_text(self.model), "parameters": ", ".join(parameters)}

    def inputs(self, values: Tensor) -> Tensor:
        """Rows of the features as the model takes them."""
        if values.dtype.is_floating_point:
            return values.to(self.dtype)
        if self.embeds:
            return values.to(torch.int64)
        return values.to(self.dtype).div_(255) if values.dtype == torch.uint8 else values.to(self.dtype)

    def __repr__(self) -> str:
        shown = [f.name for f in fields(self) if f.init and f.name not in ("model", "loss", "keep_on_device")]
        settings = [f"{n}={_text(getattr(self, n))}" for n in shown if getattr(self, n) not in (None, 0.0)]
        return f"LocalSGD({', '.join([_module_text(self.model), _text(self.loss), *settings])})"


def check_local(local: Any, initial: str = "given") -> LocalSGD:
    """Validate a LocalSGD and the choice of first weights."""
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
    """The same in every process, and different for another architecture or other frozen weights."""
    shapes = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in model.named_parameters()]
    digest = hashlib.sha256(f"{model!r} {shapes}".encode())
    for p in model.parameters():
        if not p.requires_grad:  # no state holds these numbers, and another run or node may have others
            digest.update(p.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return f"{type(model).__qualname__} {digest.hexdigest()[:12]}"


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
