"""Convolutions of many clients at once are each client's own convolution, and so are their gradients."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from plain_kernels import CASES
from torch.nn import functional

from fedscape.learning import models
from fedscape.learning.fast import conv as convolutions
from fedscape.learning.fast import folded
from fedscape.learning.layers import trainable_copy


def one_by_one(x, weight, bias, padding, stride=(1, 1)):
    """The oracle: torch's own convolution, client after client."""
    batch = len(x) // len(weight)
    made = []
    for i, (w, b) in enumerate(zip(weight, bias, strict=True)):
        images = x[i * batch : (i + 1) * batch].permute(0, 3, 1, 2)
        convolved = functional.conv2d(images, w.permute(0, 3, 1, 2), b, padding=padding, stride=stride)
        made.append(convolved.permute(0, 2, 3, 1))
    return torch.cat(made)


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_each_client(case):
    clients, batch, height, width, channels, out, kernel, padding, stride = case
    torch.manual_seed(0)
    x = torch.randn(clients * batch, height, width, channels, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(clients, out, *kernel, channels, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(clients, out, dtype=torch.float64, requires_grad=True)
    want, made = (f(x, weight, bias, padding, stride) for f in (one_by_one, convolutions.convolve))
    torch.testing.assert_close(made, want)
    along = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(y, [x, weight, bias], along) for y in (made, want)), strict=True):
        torch.testing.assert_close(a, b)


def test_without_biases_and_with_images_that_need_no_gradient():
    x, weight = torch.randn(4, 5, 5, 2), torch.randn(2, 3, 3, 3, 2, requires_grad=True)
    made = convolutions.convolve(x, weight, None, (0, 0))
    torch.testing.assert_close(made, one_by_one(x, weight, torch.zeros(2, 3), (0, 0)))
    (found,) = torch.autograd.grad(made.square().sum(), [weight])
    (want,) = torch.autograd.grad(one_by_one(x, weight, torch.zeros(2, 3), (0, 0)).square().sum(), [weight])
    torch.testing.assert_close(found, want)


def test_the_operation_says_its_shapes_and_types_to_a_compiler():
    given = (torch.randn(4, 5, 6, 2), torch.randn(2, 3, 3, 2, 2), torch.randn(2, 3), [1, 0, 2, 1, 0])
    given = tuple(v.requires_grad_() if isinstance(v, torch.Tensor) else v for v in given)
    torch.library.opcheck(convolutions._convolve, given)
    torch.library.opcheck(
        convolutions._to_images, (torch.randn(4, 3, 6, 3), given[1].detach(), [5, 7], [1, 0, 2, 1, 0])
    )
    torch.library.opcheck(
        convolutions._to_weights, (torch.randn(4, 5, 6, 2), torch.randn(4, 5, 5, 3), 2, [3, 2], [1, 0, 1, 1, 0])
    )


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_folded_network_gives_the_same_with_the_operation(monkeypatch, precision):
    model = trainable_copy(models.cnn((1, 8, 8), 3, dropout=False))
    twin = folded.folded(model, precision)
    torch.manual_seed(1)
    params = {n: torch.randn(2, *p.shape) / p[0].numel() ** 0.5 for n, p in model.named_parameters()}
    x = torch.rand(6, 8, 8)
    plain = torch.func.functional_call(twin, params, (x,))
    used = []
    monkeypatch.setattr(folded, "can_convolve", lambda *given: used.append(given) or True)
    quick = torch.func.functional_call(twin, params, (x,))
    assert len(used) == 2
    torch.testing.assert_close(quick, plain, atol=1e-5 if precision == "tf32" else 0.1, rtol=0.05)


def test_it_stands_aside_without_a_gpu_and_for_single_places(monkeypatch):
    assert not convolutions.can_convolve(torch.zeros(1), (3, 3), (1, 1), (0, 0))

    class OnGpu:
        is_cuda, dtype = True, torch.float32

    for known in (True, False):
        monkeypatch.setattr(convolutions, "HAS_TRITON", known)
        assert convolutions.can_convolve(OnGpu(), (3, 3), (1, 1), (1, 1)) is known
    monkeypatch.setattr(convolutions, "HAS_TRITON", True)
    assert convolutions.can_convolve(OnGpu(), (3, 3), (2, 2), (1, 1))
    assert convolutions.can_convolve(OnGpu(), (1, 1), (2, 2), (0, 0))
    assert not convolutions.can_convolve(OnGpu(), (1, 1), (1, 1), (0, 0))
    assert not convolutions.can_convolve(OnGpu(), (3, 3), (1, 1), (3, 3))
    OnGpu.dtype = torch.float64
    assert not convolutions.can_convolve(OnGpu(), (3, 3), (1, 1), (1, 1))


def test_a_bias_that_is_one_for_all_clients_reaches_the_kernel_as_one_for_each(monkeypatch):
    """Kernels count from the first number: what they get must lie there as its shape says."""
    seen = []

    class Kernels:
        @staticmethod
        def convolve(x, weight, bias, padding, stride, products):
            seen.extend([x, weight, bias])
            return x

    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setitem(sys.modules, "fedscape.learning.fast.triton", types.SimpleNamespace(convolutions=Kernels))
    x = torch.randn(2, 4, 5, 3).permute(0, 3, 1, 2).as_subclass(OnGpu)
    weight = torch.randn(2, 3, 3, 5, 1).transpose(3, 4)
    convolutions._convolve._init_fn(x, weight, torch.randn(3).expand(2, 3), [0, 0, 1, 1, 0])
    assert [v.is_contiguous() for v in seen] == [True, True, True]
