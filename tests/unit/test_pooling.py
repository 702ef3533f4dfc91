"""Rectified maxima: the loop and torch make the same numbers, and whoever follows a tensor is not lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import vmap
from torch.nn import functional

from fedscape.learning import models
from fedscape.learning.fast import pooling
from fedscape.learning.fast.pooling import pool


def images(*shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    x.permute(0, 2, 3, 1).view(-1)[::1009] = torch.nan
    return x


@pytest.fixture
def looped(monkeypatch):
    """How often the loop was called; any size is large enough for it."""
    calls, loop = [], pooling._pool
    monkeypatch.setattr(pooling, "_LARGE", 0)
    monkeypatch.setattr(pooling, "_pool", lambda *given: (calls.append(1), loop(*given)))
    return calls


@pytest.mark.parametrize("shape", [(3, 8, 6, 10), (2, 5, 7, 9), (1, 3, 2, 2), (0, 3, 4, 4)])
def test_the_loop_makes_torchs_numbers_also_of_odd_sides_and_nan(shape, looped):
    x = images(*shape)
    with torch.no_grad():
        made = pool(x)
    assert made.is_contiguous()
    assert len(looped) == 1
    np.testing.assert_array_equal(made, functional.relu(functional.max_pool2d(x, 2)))


def test_images_without_a_square_are_refused(looped):
    with torch.no_grad(), pytest.raises(RuntimeError, match="too small"):
        pool(images(4, 2, 1, 6))


def test_gradients_vmap_other_layouts_and_types_are_left_to_torch(looped):
    x = images(2, 3, 4, 6).nan_to_num().requires_grad_()
    pool(x).sum().backward()
    want = torch.autograd.grad(functional.max_pool2d(functional.relu(x), 2).sum(), x)[0]
    np.testing.assert_array_equal(x.grad, want)
    with torch.no_grad():
        rest = functional.max_pool2d(functional.relu(x), 2)
        assert torch.equal(vmap(pool)(x[None])[0], rest)
        assert torch.equal(pool(x.detach().contiguous()), rest)
        assert torch.equal(pool(x.detach().double()), rest.double())
    assert not looped


def test_the_network_gives_the_same_with_and_without_a_compiler(monkeypatch, looped):
    model = models.cnn((1, 12, 12), 5, dropout=False).to(memory_format=torch.channels_last)
    x = torch.rand(6, 12, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        fast = model(x)
        monkeypatch.setattr(pooling, "has_compiler", lambda: False)
        assert torch.equal(fast, model(x))
    assert len(looped) == 1
    np.testing.assert_allclose(fast, model(x).detach(), rtol=1e-5)
