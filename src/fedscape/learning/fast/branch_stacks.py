"""Stacks that end in branches: the branches' weights side by side as one layer, and the gradient of their loss.

benchmarks/fast_paths.py, rows "stack" of the tasks "branches" and "mean of branches".
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fedscape.types import Tensor

Joined = tuple[tuple[str, tuple[str, ...]], ...]  # a layer's weight or bias, and those of the branches in it


def joined(params: Mapping[str, Tensor], groups: Joined) -> dict[str, Tensor]:
    """Of {name: [rows, out, ...]} those of branches as one, [rows, K out, ...], the others unchanged.

    >>> joined({"a": torch.zeros(1, 2), "b": torch.zeros(3, 2)}, (("ab", ("a", "b")),))["ab"].shape
    torch.Size([3, 4])
    """
    out = {name: p for name, p in params.items() if not any(name in names for _, names in groups)}
    for name, names in groups:
        parts = [params[n] for n in names]
        rows = max(len(p) for p in parts)
        out[name] = torch.cat([p.expand(rows, *p.shape[1:]) for p in parts], dim=1)
    return out


def apart(named: Mapping[str, Tensor], groups: Joined) -> dict[str, Tensor]:
    """The inverse of `joined`, as views."""
    of = dict(groups)
    out = {name: p for name, p in named.items() if name not in of}
    for name, names in groups:
        out.update(zip(names, named[name].chunk(len(names), dim=1), strict=True))
    return out


def branch_gradient(output: Tensor, target: Tensor, share: Tensor, k: int, pull: tuple[float, float]) -> Tensor:
    """The gradient of `BranchLoss` at the outputs [clients, batch, k classes], times `share` [clients, batch, 1].

    `target` [clients, batch, 1 + k or 1 + 3 k] as the loss takes it; `pull` its strength and smoothing.
    """
    strength, smoothing = pull
    logits = output.unflatten(2, (k, -1))
    top = logits.amax(3, True)
    chances = (logits - top).exp_()
    total = chances.sum(3, True)
    chosen = target[:, :, 1 : 1 + k]
    others = (chosen.sum(2, True) - chosen).mul_(strength / (k - 1))
    mass = chosen + others
    if target.shape[2] > 1 + k:  # the contrast of modes
        modes, log_shares = target[:, :, 1 + k : 1 + 2 * k], target[:, :, 1 + 2 * k :]
        odds = torch.softmax((top + total.log())[..., 0] + log_shares, dim=2)
        mass = mass + odds * modes.sum(2, True) - modes
    right = target[:, :, :1, None].to(torch.int64).expand(-1, -1, k, 1)
    grad = chances.mul_((mass * share)[..., None] / total)
    grad.scatter_add_(3, right, -((chosen + (1 - smoothing) * others) * share)[..., None])
    if strength > 0 and smoothing > 0:
        grad.sub_((others * share)[..., None], alpha=smoothing / logits.shape[3])
    return grad.flatten(2)
