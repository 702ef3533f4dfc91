"""Plain twins of the kernels in `learning/fast/triton`: torch's own operations, client after client, under autograd."""

from __future__ import annotations

import torch
from torch.nn import functional

from fedscape.learning.layers import Attention, Cells, dropped, kept

CASES = [  # clients, batch, height, width, channels, out, kernel, padding, stride
    (2, 3, 7, 6, 3, 5, (3, 3), (0, 0), (1, 1)),
    (2, 2, 8, 8, 32, 6, (3, 2), (1, 0), (1, 1)),
    (3, 1, 5, 5, 33, 3, (2, 2), (0, 1), (1, 1)),
    (2, 2, 9, 9, 1, 6, (5, 5), (2, 2), (1, 1)),
    (1, 2, 6, 6, 32, 70, (3, 3), (1, 1), (1, 1)),
    (2, 2, 7, 9, 16, 8, (3, 3), (1, 1), (2, 2)),
    (2, 2, 8, 7, 32, 16, (1, 1), (0, 0), (2, 2)),
    (1, 2, 9, 8, 5, 6, (3, 2), (1, 0), (3, 2)),
]


def convolve(x, weight, bias, padding, stride, *, groups=1):
    """Images [clients x batch, H, W, channels] by kernels [clients, out, H, W, channels of a group]."""
    outputs = []
    for i, (images, w) in enumerate(zip(x.unflatten(0, (len(weight), -1)), weight, strict=True)):
        own, how = (None if bias is None else bias[i]), {"padding": padding, "stride": stride, "groups": groups}
        outputs.append(functional.conv2d(images.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), own, **how))
    return torch.cat(outputs).permute(0, 2, 3, 1)


class _Stepping(torch.autograd.Function):
    """Parameters that take their own step once their gradient is there."""

    @staticmethod
    def forward(ctx, values, rates, short):
        ctx.held = values.detach(), rates, short
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        values, rates, short = ctx.held
        values -= rates.reshape(-1, *[1] * (values.ndim - 1)).to(values.dtype) * gradient
        if short is not None:
            short.copy_(values)
        return None, None, None


def stepping(values, rates, short=None):
    """These parameters; with rates, moved by them in the backward pass."""
    return values if values is None or rates is None else _Stepping.apply(values, rates, short)


def moving(x, weight, bias, step, how):
    """A convolution whose weights [clients, out, H, W, channels] take their own step."""
    if step is not None:
        weight, bias = stepping(weight, step.rates, step.short), stepping(bias, step.rates)
    return convolve(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), how.padding, how.stride)


def depthwise(x, weight, bias, padding, stride, rates=None):
    """Kernels [clients, H, W, channels], a channel by itself."""
    weight, bias = stepping(weight, rates), stepping(bias, rates)
    return convolve(x, weight.permute(0, 3, 1, 2).unsqueeze(4), bias, padding, stride, groups=x.shape[3])


def norm(x, beside, weight, bias, groups, eps, *, lowest=False, highest=0.0, rates=None):
    """A group norm, the sum with another image, and both ends cut off."""
    weight, bias = stepping(weight, rates), stepping(bias, rates)
    batch = len(x) // len(weight)
    factor, shift = (v.repeat_interleave(batch, dim=0)[:, None, None].to(x.dtype) for v in (weight, bias))
    output = functional.group_norm(x.permute(0, 3, 1, 2), groups, eps=eps).permute(0, 2, 3, 1) * factor + shift
    output = output if beside is None else output + beside
    return output.clamp(0.0 if lowest else None, highest or None) if lowest or highest else output


def pool(x, *, rectified):
    """2 x 2 maxima."""
    maxima = functional.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
    return functional.relu(maxima) if rectified else maxima


def recur(driven, weight, products="tf32"):
    """LSTM cells of each client."""
    each = zip(driven.unflatten(0, (len(weight), -1)), weight.to(driven.dtype), strict=True)
    return torch.cat([Cells()(d, lambda h, w=w: h @ w.T) for d, w in each])


def adapted(rows, weight, bias, down, up, factor):
    """Linear layers of each client with a low-rank update."""
    downs, ups = (v.expand(len(rows), -1, -1) for v in (down, up))
    own = None if bias is None else bias[0]
    each = zip(rows.to(weight.dtype), downs, ups, strict=True)
    return torch.stack([functional.linear(x, weight[0] + factor * (u @ d), own) for x, d, u in each])


def attention(query, key, value, heads, *, causal):
    """Attention as the layer does it."""
    return Attention(heads, causal=causal)(query, key, value)


def drop(x, key, p, *, channels):
    """Dropout under the keys of clients."""
    return dropped(x, kept(x.shape[1:], key[:, None], p, channels=channels), p)


def summed(now, start, weights):
    """The weighted sum of moves, in float64."""
    each = (now.double() - start.double().repeat(len(now) // len(start), *[1] * (now.ndim - 1))).unflatten(
        0, (len(weights), -1)
    )
    return (each * weights.reshape(len(weights), -1, *[1] * (now.ndim - 1))).sum(dim=0)
