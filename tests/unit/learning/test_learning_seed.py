"""Where the weights of a user's own model come from."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedscape import DataError, FedAvg, Federation, rounds
from fedscape.learning import LocalSGD, cross_entropy

FED = Federation({"x": [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], "y": [0, 1, 1, 0]}, [0, 2, 4])


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(2))  # drawn by the constructor alone: no reset_parameters makes it anew
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        return self.last(x * self.scale)


def trained(model, **how):
    loop = rounds(FedAvg(LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2, **how)), FED, n_rounds=2)
    list(loop)
    return loop.state["model.scale"].tolist()


def test_a_function_that_makes_the_model_is_seeded_and_two_runs_are_the_same():
    torch.manual_seed(1)
    one = trained(Own)
    before = torch.random.get_rng_state()
    torch.manual_seed(2)
    assert trained(lambda: Own()) == one
    assert trained(Own, seed=5) != one
    torch.random.set_rng_state(before)
    trained(Own)
    assert bool((torch.random.get_rng_state() == before).all())


def test_a_ready_module_is_taken_as_it_is():
    model = Own()
    step = LocalSGD(model, cross_entropy, lr=0.1, epochs=1, batch_size=2)
    assert FedAvg(step).start(0)["model.scale"].tolist() == model.scale.tolist()


def test_a_function_that_makes_no_module_is_refused():
    with pytest.raises(DataError, match=r"model must be a torch\.nn\.Module, not str"):
        LocalSGD(lambda: "net", cross_entropy, lr=0.1, epochs=1, batch_size=2)
