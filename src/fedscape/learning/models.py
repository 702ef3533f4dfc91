"""Reference models, in plain torch; images as data has them: [28, 28], [H, W, channels] or [channels, H, W].

Every constructor takes a seed and draws its weights from it; the global generator is left as it was.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fedscape.errors import DataError
from fedscape.learning.layers import Attention, Cells, Module, RectifiedNorm, RectifiedPool, drawing
from fedscape.types import Tensor

Shape = tuple[int, int, int]


def linear(n_features: int, n_classes: int, *, seed: int = 0) -> Module:
    """A linear model of flattened features: softmax regression under cross entropy.

    >>> linear(784, 10)(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """
    with drawing(seed):
        return nn.Sequential(nn.Flatten(), nn.Linear(n_features, n_classes))


def mlp(n_features: int = 784, hidden: int = 512, n_classes: int = 10, *, seed: int = 0) -> Module:
    """One hidden layer of rectifiers: 784-512-10 in the sketch paper, 407,050 parameters.

    >>> sum(p.numel() for p in mlp().parameters())
    407050
    """
    with drawing(seed):
        layers = (nn.Flatten(), nn.Linear(n_features, hidden), nn.ReLU(), nn.Linear(hidden, n_classes))
        return nn.Sequential(*layers)


def cnn(shape: Shape = (1, 28, 28), n_classes: int = 62, *, dropout: bool = True, seed: int = 0) -> Module:
    """The two-convolution network of the MDM paper: 1,206,590 parameters on 28 x 28 with 62 classes.

    conv3x3-32, conv3x3-64, maxpool 2, dropout 0.25, 128, dropout 0.5, classes; no padding; Xavier-uniform weights.

    >>> sum(p.numel() for p in cnn((3, 32, 32), 10).parameters())
    1626442
    """
    with drawing(seed):
        return _CNN(shape, n_classes, (0.25, 0.5) if dropout else (0.0, 0.0))


def lenet5(shape: Shape = (1, 28, 28), n_classes: int = 10, *, seed: int = 0) -> Module:
    """LeNet-5 (LeCun et al. 1998) with rectifiers and max pooling: 61,706 parameters on 28 x 28, 10 classes.

    >>> sum(p.numel() for p in lenet5().parameters())
    61706
    """
    with drawing(seed):
        pad = 2 if shape[1] == 28 else 0
        side = [(s + 2 * pad - 4) // 2 for s in shape[1:]]
        flat = 16 * math.prod((s - 4) // 2 for s in side)
        layers = [
            _Image(shape),
            *(nn.Conv2d(shape[0], 6, 5, padding=pad), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, n_classes)),
        ]
        return nn.Sequential(*layers)


def char_lstm(
    n_characters: int = 80, embedding: int = 8, hidden: int = 256, layers: int = 2, *, seed: int = 0
) -> Module:
    """Next character after a sequence of codes: embedding, LSTM layers, classes (the Shakespeare model of LEAF).

    The cell is written out, which vmap can batch; forget gates begin with a bias of one.

    >>> char_lstm(80, hidden=16)(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 80])
    """
    with drawing(seed):
        return _CharLSTM(n_characters, embedding, hidden, layers)


def word_lstm(n_words: int = 10_000, embedding: int = 96, hidden: int = 670, *, seed: int = 0) -> Module:
    """Next word after a sequence of codes: the Stack Overflow model of Reddi et al. (2021), one LSTM and a projection.

    The projection, layer "0.out", is 15 times smaller than the output: `MultiBranch(word_lstm(), "0.out")` has the
    branches of the FedTEM paper.

    >>> word_lstm(50, 8, 16)(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 50])
    """
    with drawing(seed):
        lstm = _CharLSTM(n_words, embedding, hidden, 1)
        lstm.out = nn.Linear(hidden, embedding)
        return nn.Sequential(lstm, nn.Linear(embedding, n_words))


def transformer(
    n_tokens: int = 80,
    n_classes: int | None = None,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    length: int = 80,
    causal: bool = True,
    dropout: float = 0.0,
    seed: int = 0,
) -> Module:
    """Next token after a sequence of codes, or the class of one: layers of attention with norms before (Xiong 2020).

    Positions are learned, up to `length` of them. With `causal` a place sees those before it, and the last one answers;
    without, all see all, and their mean answers. By default there are as many classes as tokens.

    >>> transformer(11, width=8, heads=2, length=5)(torch.zeros(2, 5, dtype=torch.int64)).shape
    torch.Size([2, 11])
    """
    if width % heads:
        raise DataError(f"width must be a multiple of heads, not {width} and {heads}")
    with drawing(seed):
        return _Transformer(n_tokens, n_classes or n_tokens, width, layers, heads, length, causal, dropout)


def resnet18(
    shape: Shape = (3, 32, 32), n_classes: int = 10, *, width: int = 64, groups: int = 32, seed: int = 0
) -> Module:
    """ResNet-18 (He et al. 2016) for small images, with GroupNorm in place of batch statistics.

    The first convolution is 3x3 with stride 1 and there is no first pooling.

    >>> sum(p.numel() for p in resnet18().parameters())
    11173962
    """
    with drawing(seed):
        blocks, now = [], width
        for times, stride in ((1, 1), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1)):
            blocks.append(_Residual(now, times * width, stride, groups))
            now = times * width
        conv = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
        last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(now, n_classes))
        return nn.Sequential(_Image(shape), conv, _norm(width, groups), nn.ReLU(), *blocks, *last)


def mobilenet_v2(
    shape: Shape = (3, 32, 32), n_classes: int = 10, *, width: float = 1.0, groups: int = 8, seed: int = 0
) -> Module:
    """MobileNetV2 (Sandler et al. 2018) with GroupNorm; strides of the first two stages are 1 for images below 64.

    >>> mobilenet_v2(width=0.25)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    with drawing(seed):
        small = shape[1] < 64
        table = [(1, 16, 1, 1), (6, 24, 2, 1 if small else 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
        table += [(6, 160, 3, 2), (6, 320, 1, 1)]
        now, last = _eighths(32 * width), _eighths(1280 * max(1.0, width))
        layers = [_Image(shape), *_conv(shape[0], now, 3, 1 if small else 2, groups)]
        for expand, out, repeats, stride in table:
            for i in range(repeats):
                layers.append(_Inverted(now, _eighths(out * width), stride if i == 0 else 1, expand, groups))
                now = _eighths(out * width)
        layers += [*_conv(now, last, 1, 1, groups), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, n_classes)]
        return nn.Sequential(*layers)


class _Image(nn.Module):  # type: ignore[misc]
    """Images as [batch, channels, H, W], whichever way the data has them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        c, h, w = self.shape
        if tuple(x.shape[1:]) == (h, w) and c == 1:
            return x[:, None]
        if tuple(x.shape[1:]) == (h, w, c) and (h, w, c) != (c, h, w):
            return x.permute(0, 3, 1, 2)
        if tuple(x.shape[1:]) != (c, h, w):
            raise DataError(f"images must be of shape {[c, h, w]} or {[h, w, c]}, not {list(x.shape[1:])}: set shape=")
        return x

    def extra_repr(self) -> str:
        return str(self.shape)


class _CNN(nn.Module):  # type: ignore[misc]
    def __init__(self, shape: Shape, n_classes: int, dropout: tuple[float, float]) -> None:
        super().__init__()
        flat = 64 * math.prod((s - 4) // 2 for s in shape[1:])
        self.image = _Image(shape)
        self.conv1, self.conv2 = nn.Conv2d(shape[0], 32, 3), nn.Conv2d(32, 64, 3)
        self.pool = RectifiedPool()
        self.drop1, self.drop2 = nn.Dropout(dropout[0]), nn.Dropout(dropout[1])
        self.hidden, self.out = nn.Linear(flat, 128), nn.Linear(128, n_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.conv1, self.conv2, self.hidden, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        over = not torch.is_grad_enabled()  # without a backward pass the input is overwritten
        x = self.conv2(functional.relu(self.conv1(self.image(x)), inplace=over))
        x = self.drop1(self.pool(x)).flatten(1)  # maxima before the rectifier: the same, on a quarter of the numbers
        return self.out(self.drop2(functional.relu(self.hidden(x))))


class _CharLSTM(nn.Module):  # type: ignore[misc]
    def __init__(self, n_characters: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_characters, embedding)
        self.width = hidden
        sizes = [embedding] + [hidden] * (layers - 1)
        self.inputs = nn.ModuleList([nn.Linear(size, 4 * hidden) for size in sizes])
        self.recurrent = nn.ModuleList([nn.Linear(hidden, 4 * hidden, bias=False) for _ in sizes])
        self.out = nn.Linear(hidden, n_characters)
        self.cells = Cells()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.embed.weight)
        for weight in (*self.inputs.parameters(), *self.recurrent.parameters(), *self.out.parameters()):
            nn.init.uniform_(weight, -(self.width**-0.5), self.width**-0.5)
        for layer in self.inputs:
            nn.init.ones_(layer.bias[self.width : 2 * self.width].data)

    def forward(self, x: Tensor) -> Tensor:
        sequence = self.embed(x)  # [batch, time, embedding]
        for inputs, recurrent in zip(self.inputs, self.recurrent, strict=True):
            sequence = self.cells(inputs(sequence), recurrent)
        return self.out(sequence[:, -1])


class _Transformer(nn.Module):  # type: ignore[misc]
    def __init__(
        self, n_tokens: int, n_classes: int, width: int, layers: int, heads: int, length: int, causal: bool, drop: float
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_tokens, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([_Block(width, heads, causal, drop) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, n_classes)
        self.causal, self.length = causal, length
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=0.5)
            elif isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            elif isinstance(layer, nn.LayerNorm):
                layer.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.length:
            raise DataError(
                f"sequences have {x.shape[1]} codes, but the model takes up to {self.length}: raise length="
            )
        numbers = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        sequence = self.embed(x) + self.places(numbers)  # [batch, time, width]
        for block in self.blocks:
            sequence = block(sequence)
        sequence = self.norm(sequence)
        return self.out(sequence[:, -1] if self.causal else sequence.mean(dim=1))


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, causal: bool, drop: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.join = (nn.Linear(width, width) for _ in range(4))
        self.attention = Attention(heads, causal=causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop1, self.drop2 = nn.Dropout(drop), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop1(self.attended(self.norm1(x)))
        return x + self.drop2(self.down(functional.gelu(self.up(self.norm2(x)))))

    def attended(self, x: Tensor) -> Tensor:
        return self.join(self.attention(self.query(x), self.key(x), self.value(x)))


class _Residual(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.norm1 = _norm(out, groups, RectifiedNorm)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = _norm(out, groups, RectifiedNorm)
        same = stride == 1 and width == out
        self.short = nn.Identity() if same else nn.Sequential(*_conv(width, out, 1, stride, groups)[:2])

    def forward(self, x: Tensor) -> Tensor:
        return self.norm2(self.conv2(self.norm1(self.conv1(x))), self.short(x))


class _Inverted(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, out: int, stride: int, expand: int, groups: int) -> None:
        super().__init__()
        inner = width * expand
        layers: list[Any] = _conv(width, inner, 1, 1, groups) if expand > 1 else []
        layers += _conv(inner, inner, 3, stride, groups, each=True)
        self.layers = nn.Sequential(*layers, nn.Conv2d(inner, out, 1, bias=False), _norm(out, groups))
        self.adds = stride == 1 and width == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def _conv(width: int, out: int, kernel: int, stride: int, groups: int, *, each: bool = False) -> list[Any]:
    conv = nn.Conv2d(width, out, kernel, stride, kernel // 2, groups=width if each else 1, bias=False)
    return [conv, _norm(out, groups), nn.ReLU6()]


def _norm(width: int, groups: int, kind: Any = nn.GroupNorm) -> Module:
    """At most this many groups of at least four channels: a group of one number would be all rounding error."""
    return kind(math.gcd(groups, max(width // 4, 1)), width)


def _eighths(width: float) -> int:
    return max(8, int(width + 4) // 8 * 8)
