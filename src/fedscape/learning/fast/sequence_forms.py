"""Folded layers of networks that read sequences: layer norms, adapted linear layers, attention."""

from __future__ import annotations

from torch.nn import functional

from fedscape.learning.adapters import LowRank
from fedscape.learning.fast import sequences
from fedscape.learning.fast.forms import Folded, FoldedLinear, How, scaled, wide
from fedscape.learning.fast.lowrank import FEW
from fedscape.learning.layers import Attention, Module
from fedscape.types import Tensor


class FoldedLayerNorm(Folded):
    def __init__(self, layer: Module, how: How) -> None:
        super().__init__(layer, how)
        self.shape, self.eps = layer.normalized_shape, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None and len(self.weight) == len(self.bias) == 1:  # frozen: one for all clients
            return functional.layer_norm(wide(x, self.weight), self.shape, self.weight[0], self.bias[0], self.eps)
        output = functional.layer_norm(wide(x, self.weight), self.shape, None, None, self.eps)
        return scaled(output, *self.both(), (*[1] * (x.ndim - 1 - len(self.shape)), *self.shape))


class FoldedLowRank(Folded):
    """An adapted linear layer: one product for the weights that all clients share, two thin ones for its update."""

    def __init__(self, layer: LowRank, how: How) -> None:
        super().__init__(layer, how)
        self.layer, self.factor = FoldedLinear(layer.layer, how), layer.factor
        weight, bias = (  # as nobody trains them, they are rounded once, where they lie
            None if v is None else v.detach()[None].to(how.kind(v.dtype)) for v in (self.layer.weight, self.layer.bias)
        )
        self.short = (weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        base, clients = self.layer, max(len(self.down), len(self.up))  # a frozen factor is one for all
        rows = x.reshape(clients, -1, x.shape[-1])
        if self.how.runs(x) and sequences.adapts(base.weight, base.bias):
            weight, bias = (base.weight, base.bias) if rows.shape[1] < FEW else self.short
            output = sequences.adapted(rows, weight, bias, self.down, self.up, self.factor)
            return output.reshape(*x.shape[:-1], -1)
        kind = (whole := base(x)).dtype
        update = rows.to(kind) @ self.down.to(kind).transpose(1, 2) @ self.up.to(kind).transpose(1, 2)
        return whole + self.factor * update.reshape(whole.shape)


class FoldedAttention(Attention):
    """By a kernel that writes no scores, where sequences are short enough for it."""

    def __init__(self, layer: Attention, how: How) -> None:
        super().__init__(layer.heads, causal=layer.causal)
        self.how = how

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        kind = self.how.kind(query.dtype)
        if self.how.runs(query) and sequences.attends(query, key, value, self.heads, kind, exact=self.how.exact):
            query, key, value = (x.to(kind) for x in (query, key, value))
            return sequences.attention(query, key, value, self.heads, causal=self.causal)
        return super().forward(query, key, value)
