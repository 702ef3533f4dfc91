"""Which layers of a folded model may take their own step: those that then move as their gradients say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fedscape.learning.batches import Batch
from fedscape.learning.fast.admission import EXACTLY
from fedscape.learning.fast.forms import Folded
from fedscape.learning.fast.gradients import in_one_batch, member, unfactored
from fedscape.learning.fast.moving import moving
from fedscape.learning.layers import Module
from fedscape.learning.local import LocalSGD
from fedscape.types import Tensor, Tensors

FAR = 1024.0  # a rate beside which weights are small, so that what they move is not lost in their rounding


def own_steps(local: LocalSGD, twin: Module, params: Tensors, batch: Batch) -> dict[str, list[str]]:
    """The layers that take their own step, and their parameters: those that move as their gradients say.

    What they leave for the products of the next step must be their new weights in the type of products, to the bit.
    """
    arguments = (batch.random, batch.x, batch.y, batch.share)
    paths = self_moving(local, twin, (params, *arguments))
    taken = [n for names in paths.values() for n in names]
    if not taken:
        return {}
    grads = unfactored(in_one_batch(local, twin)(params, *arguments)[0])
    now = {n: p.clone() if n in taken else p for n, p in params.items()}
    layers = {path: twin.get_submodule(path) for path in paths}
    has_short = [path for path, layer in layers.items() if hasattr(layer, "short") and local.precision == "bf16"]
    shorts = {member(path, "short"): now[member(path, "weight")].to(torch.bfloat16) for path in has_short}
    with moving(layers.values(), batch.share.new_full((len(batch.y),), FAR)):
        in_one_batch(local, twin, moved=taken, shorts=shorts)(now, *arguments)
    right = {}
    for path, names in paths.items():
        short = shorts.get(member(path, "short"))
        same = short is None or torch.equal(short, now[member(path, "weight")].to(torch.bfloat16))
        if same and all(_has_moved(params[n], grads[n], now[n]) for n in names):
            right[path] = names
    return right


def self_moving(local: LocalSGD, twin: Module, arguments: tuple[Any, ...]) -> dict[str, list[str]]:
    """The layers of a folded model that can take their own step, as one step uses them once, and their parameters."""
    layers = {path: m for path, m in twin.named_modules() if isinstance(m, Folded) and path}
    calls = dict.fromkeys(layers, 0)
    able: set[str] = set()

    def look(path: str) -> Callable[..., None]:
        def see(layer: Any, inputs: tuple[Any, ...], _: Tensor) -> None:
            calls[path] += 1
            if layer.can_move(inputs[0]):
                able.add(path)

        return see

    hooks = [layer.register_forward_hook(look(path)) for path, layer in layers.items()]
    try:
        in_one_batch(local, twin)(*arguments)
    finally:
        for hook in hooks:
            hook.remove()
    once = [path for path in layers if path in able and calls[path] == 1]
    return {path: [member(path, n) for n, _ in layers[path].named_parameters(recurse=False)] for path in once}


def _has_moved(begin: Tensor, grads: Tensor, now: Tensor) -> bool:
    """Whether parameters have moved by their gradients, up to rounding: of the gradients, and of the parameters."""
    apart = (now - (begin - FAR * grads)).norm()
    return bool(apart <= EXACTLY * FAR * grads.norm() + 2**-22 * now.norm() + 1e-12)
