"""Whether a client has rows does not show in what it sends but by numbers: names, shapes and kinds are the same."""

from __future__ import annotations

import computations as found
import numpy as np
import pytest

from fedscape import Computation, Key
from fedscape.core.blocks import emptied
from fedscape.core.rounds import frozen

CASES = [
    pytest.param(computation, fed, id=name)
    for name, computation, fed in found.examples()
    if type(computation).step is not Computation.step
]


@pytest.mark.parametrize(("computation", "fed"), CASES)
def test_a_client_without_rows_sends_arrays_of_the_same_form(computation, fed):
    """A sum that is whole for no rows and real for some has two grids: a node's reply would tell which."""
    forms = []
    for clients in (fed, emptied(fed)):
        sent, _ = computation.step(computation.prepare(frozen(computation.start(0))), clients, Key(0, 0))
        forms.append({n: (np.shape(v), np.asarray(v).dtype.kind in "biu") for n, v in sent.items()})
    assert forms[0] == forms[1]
