"""Local steps of many small networks side by side, for `simulate_training.py`.

`local_training` is the plain way: all models that still have steps, by autograd. `Chunk` is the quick way: gradients
written out (convolution, ReLU and pooling are one operation, weights move as they are found), so that nothing larger
than a pooled map is kept, and models in groups of `GRAIN`, so that few shapes of a step are recorded as CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

WIDTHS = (16, 32, 64)  # channels of the two convolutions, and the dense layer
GRAIN = 128  # models of which as many groups step as still have someone with steps to take
WAYS = ("kernels", "unfused", "compiled")  # of the layers of a chunk, in the order in which they are tried

Array = np.ndarray
Tensors = list[torch.Tensor]


def first_weights(shape: tuple[int, int, int], classes: int, seed: int) -> Tensors:
    """Xavier-uniform weights and zero biases of conv3x3, pool, conv3x3, pool, dense, dense; channels last."""
    side = ((shape[0] - 2) // 2 - 2) // 2
    a, b, c = WIDTHS
    sizes = [(9 * shape[2], a, 9 * a), (9 * a, b, 9 * b), (side * side * b, c, c), (c, classes, classes)]
    generator = torch.Generator().manual_seed(seed)
    made = []
    for fan_in, out, fan_out in sizes:
        bound = (6 / (fan_in + fan_out)) ** 0.5
        made += [(torch.rand(fan_in, out, generator=generator) * 2 - 1) * bound, torch.zeros(1, out)]
    return made


# -- the plain way -----------------------------------------------------------------------------------------------------


def forward(params: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Outputs [models, batch, classes] for images [models, batch, height, width, channels], a model for each."""
    for weight, bias in (params[0:2], params[2:4]):
        x = pooled(torch.relu(convolved(x, weight, bias)))
    x = torch.relu(torch.baddbmm(params[5], x.flatten(2), params[4]))
    return torch.baddbmm(params[7], x, params[6])


def patches(x: torch.Tensor) -> torch.Tensor:
    """What each output of a convolution sees: [models, batch x (height - 2) x (width - 2), 9 channels]."""
    return x.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 1, 2, 3, 5, 6, 4).flatten(4).flatten(1, 3)


def convolved(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    models, batch, height, width, _ = x.shape
    return torch.baddbmm(bias, patches(x), weight).view(models, batch, height - 2, width - 2, -1)


def quarters(x: torch.Tensor) -> torch.Tensor:
    """Maps cut into squares of four, the four last: [models, batch, height // 2, width // 2, channels, 4]."""
    models, batch, height, width, channels = x.shape
    h, w = height // 2, width // 2
    cut = x[:, :, : 2 * h, : 2 * w].reshape(models, batch, h, 2, w, 2, channels)
    return cut.permute(0, 1, 2, 4, 6, 3, 5).flatten(5)


def pooled(x: torch.Tensor) -> torch.Tensor:
    return quarters(x).amax(dim=-1)


def local_training(
    params: Tensors, x: torch.Tensor, y: torch.Tensor, batches: torch.Tensor, who: torch.Tensor,
    steps: Array, rates: torch.Tensor,
) -> None:  # fmt: skip
    """SGD in place for models in falling order of steps: model m takes batches[who[m], t] in step t < steps[m]."""
    for t in range(int(steps.max())):
        end = int((steps > t).sum())
        here = [p[:end].detach().requires_grad_(True) for p in params]
        rows = batches[who[:end], t].long()
        known = rows >= 0
        logits = forward(here, x[rows.clamp(min=0)].float())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y[rows.clamp(min=0)].flatten(), reduction="none")
        share = known / known.sum(dim=1, keepdim=True)
        grads = torch.autograd.grad((loss.view(end, -1) * share).sum(), here)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p[:end] -= rates[:end, None, None] * g


# -- convolution, ReLU and pooling as one operation --------------------------------------------------------------------


def conv_pool(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled maps, and which of its four each came from (4: none, the ReLU is shut)."""
    best, where = quarters(convolved(x.float(), weight, bias)).max(dim=-1)
    return best.relu(), torch.where(best > 0, where, 4).to(torch.uint8)


def conv_pool_input(weight: torch.Tensor, gradient: torch.Tensor, where: torch.Tensor, side: int) -> torch.Tensor:
    """The gradient of `conv_pool`'s input, [models, batch, side, side, channels]."""
    full = _spread(gradient, where, side)
    parts = torch.bmm(full.flatten(1, 3), weight.mT).view(*full.shape[:4], 3, 3, -1)
    out = parts.new_zeros(*full.shape[:2], side, side, parts.shape[-1])
    for i in range(3):
        for j in range(3):
            out[:, :, i : i + side - 2, j : j + side - 2] += parts[:, :, :, :, i, j]
    return out


def conv_pool_weights(
    x: torch.Tensor, gradient: torch.Tensor, where: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `conv_pool`'s weight and bias."""
    full = _spread(gradient, where, x.shape[2]).flatten(1, 3)
    return torch.bmm(patches(x.float()).mT, full), full.sum(dim=1, keepdim=True)


def _spread(gradient: torch.Tensor, where: torch.Tensor, side: int) -> torch.Tensor:
    """Gradients of pooled maps put where the largest of the four was: [models, batch, side - 2, side - 2, channels]."""
    models, batch, h, w, channels = gradient.shape
    four = torch.where(where[..., None] == torch.arange(4, device=where.device), gradient[..., None], 0.0)
    full = four.view(models, batch, h, w, channels, 2, 2).permute(0, 1, 2, 5, 3, 6, 4)
    full = full.reshape(models, batch, 2 * h, 2 * w, channels)
    return torch.nn.functional.pad(full, (0, 0, 0, side - 2 - 2 * w, 0, side - 2 - 2 * h))


class Unfused:
    """The pooled convolutions by products of patches; `compiled` lets a compiler join what lies between products."""

    def __init__(self, compiled: bool) -> None:
        make: Callable = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.forward, self.input, self.weights = make(conv_pool), make(conv_pool_input), make(conv_pool_weights)

    def move(self, params: Tensors, x: torch.Tensor, gradient: torch.Tensor, where: torch.Tensor) -> None:
        for p, g in zip(params, self.weights(x, gradient, where), strict=True):
            p -= g

    def dense(self, maps: torch.Tensor, params: Tensors, labels: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """Move the weights of both dense layers; the gradient of the maps they are given."""
        w3, b3, w4, b4 = params
        flat = maps.flatten(2)
        hidden = torch.baddbmm(b3, flat, w3).relu_()
        logits = torch.baddbmm(b4, hidden, w4)
        right = labels[..., None] == torch.arange(logits.shape[2], device=logits.device)
        g = (logits.softmax(dim=2) - right.float()) * share[..., None]
        back = torch.bmm(g, w4.mT) * (hidden > 0)
        out = torch.bmm(back, w3.mT).view_as(maps)
        for weight, bias, seen, gradient in ((w4, b4, hidden, g), (w3, b3, flat, back)):
            weight.baddbmm_(seen.mT, gradient, alpha=-1)
            bias -= gradient.sum(dim=1, keepdim=True)
        return out


# -- the quick way -----------------------------------------------------------------------------------------------------


class Chunk:
    """Room for `size` models in falling order of steps: `load` them, `run` them, read `params`.

    Parameters
    ----------
    x, y
        All images and labels.
    weights
        The weights of one model, for their shapes.
    batches
        Rows of the batches of every client, [clients, steps, batch], -1 for none: read in place, refill it each round.
    way
        Of `WAYS`.
    half
        Whether maps are kept and products taken in bfloat16, which kernels alone can do.
    """

    def __init__(
        self, x: torch.Tensor, y: torch.Tensor, weights: Tensors, batches: torch.Tensor, *, size: int, way: str,
        half: bool = False,
    ) -> None:  # fmt: skip
        self.x, self.y, self.batches, self.size = x, y, batches, size
        self.name = f"{way}, bf16" if half and way == "kernels" else way
        self.params = [torch.zeros(size, *w.shape, device=x.device) for w in weights]
        self.who, self.steps = (torch.zeros(size, dtype=torch.int64, device=x.device) for _ in range(2))
        self.rates = torch.zeros(size, device=x.device)
        self.t = torch.zeros((), dtype=torch.int64, device=x.device)
        grain = size if way == "compiled" else GRAIN  # to a compiler every shape is a minute
        self.sizes = [min(n, size) for n in range(grain, size + grain, grain)]  # of a step
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        if way == "kernels":
            from _simulate_kernels import Fused

            self.maps: Unfused | Fused = Fused(half)
        else:
            self.maps = Unfused(way == "compiled")

    def load(self, start: Tensors, who: torch.Tensor, steps: torch.Tensor, rates: torch.Tensor) -> None:
        """Begin with these models; places beyond them stand still."""
        for held, values in zip(self.params, start, strict=True):
            held[: len(values)] = values
        for held, given in ((self.who, who), (self.steps, steps), (self.rates, rates)):
            held.zero_()
            held[: len(given)] = given
        self.t.zero_()

    def run(self, steps: Array) -> None:
        """All steps of the models, these many of each."""
        for t in range(int(steps.max())):
            n = self.sizes[(int((steps > t).sum()) - 1) // self.sizes[0]]
            if n in self.graphs:
                self.graphs[n].replay()
            else:
                self.step(n)

    def record(self) -> None:
        """Record a step of every size as a CUDA graph; what was loaded is lost."""
        pool, graphs = torch.cuda.graph_pool_handle(), {}
        for n in reversed(self.sizes):
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                self.t.zero_()
                self.step(n)  # libraries take their memory
            torch.cuda.current_stream().wait_stream(beside)
            torch.cuda.synchronize()
            graphs[n] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[n], pool=pool):
                self.step(n)
        self.graphs = graphs

    @torch.no_grad()
    def step(self, n: int) -> None:
        """One step of SGD of the first n models. Gradients bear the learning rate from the start: w -= gradient."""
        params, who = [p[:n] for p in self.params], self.who[:n]
        w1, b1, w2, b2 = params[:4]
        rows = self.batches[who, self.t.expand_as(who)].long()
        known = (rows >= 0) & (self.t < self.steps[:n])[:, None]
        rows = rows.clamp(min=0)
        share = known * (self.rates[:n, None] / known.sum(dim=1, keepdim=True).clamp(min=1))
        x = self.x[rows]
        first, where_first = self.maps.forward(x, w1, b1)
        second, where_second = self.maps.forward(first, w2, b2)
        g = self.maps.dense(second, params[4:], self.y[rows], share)
        back = self.maps.input(w2, g, where_second, first.shape[2])
        self.maps.move([w2, b2], first, g, where_second)
        self.maps.move([w1, b1], x, back, where_first)
        self.t += 1


def ready(
    x: torch.Tensor, y: torch.Tensor, weights: Tensors, batches: torch.Tensor, *, size: int, ways: tuple[str, ...],
    half: bool,
) -> Chunk | None:  # fmt: skip
    """A chunk by the first of these ways that works here and agrees with the plain one, recorded if it can be."""
    for way in ways:
        try:
            chunk = Chunk(x, y, weights, batches, size=size, way=way, half=half)
            error = disagreement(chunk, weights)
            if error > (1e-4 if not x.is_cuda else 0.2 if half else 0.05):  # 23 bits, 7 of bfloat16, 10 of tf32
                raise ArithmeticError(f"weights differ from plain training by {error:.2g} of their way")
        except Exception as problem:
            print(f"  {way}: {type(problem).__name__}: {str(problem)[:300]}; the next way", flush=True)
            continue
        try:
            if x.is_cuda:
                chunk.record()
        except Exception as problem:
            chunk.graphs = {}
            torch.cuda.synchronize()
            print(f"  {way}, not recorded: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
        print(f"  {chunk.name}: {size} models, {len(chunk.graphs)} graphs, {error:.1e} from plain training", flush=True)
        return chunk
    return None


def disagreement(chunk: Chunk, weights: Tensors) -> float:
    """How far a chunk ends from plain training, as a part of the way that training goes: a few models, 1 to 3 steps."""
    n, device = min(6, chunk.size), chunk.x.device
    who = torch.arange(n, device=device) % len(chunk.batches)
    steps = np.sort(1 + np.arange(n) % min(3, chunk.batches.shape[1]))[::-1].copy()
    rates = torch.linspace(0.01, 0.05, n, device=device)
    start = [w.to(device).expand(n, *w.shape).contiguous() for w in weights]
    plain = [w.clone() for w in start]
    local_training(plain, chunk.x, chunk.y, chunk.batches, who, steps, rates)
    chunk.load(start, who, torch.from_numpy(steps).to(device), rates)
    chunk.run(steps)
    apart = [((a[:n] - b).norm() / (b - c).norm()).item() for a, b, c in zip(chunk.params, plain, start, strict=True)]
    return max(apart)
