"""One client, over a whole fit: no release of it moves by more than a clip, whatever the releases before have said.

Clips are tested round by round elsewhere. Here what clients keep, draw and count between the rounds takes part.
"""

from __future__ import annotations

import numpy as np
import pytest
from blind import moved, sums_of
from test_blind_fits import FITS, PRIVACY, N, people

NOT_ALLOWED = ("TreeAttributions by region", "CoxRegression")  # refused, or ends early


@pytest.mark.parametrize("gone", [0, 17, N - 1])
@pytest.mark.parametrize("name", [name for name in FITS if name not in NOT_ALLOWED])
def test_a_client_less_moves_every_release_by_a_clip_at_most(name, gone, monkeypatch):
    fed = people(0)
    fewer = fed.take(np.delete(np.arange(N), gone))
    both = [sums_of(monkeypatch, lambda f=f: FITS[name](f, {"privacy": PRIVACY})) for f in (fed, fewer)]
    assert len(both[0]) == len(both[1]) > 0
    for one, other in zip(*both, strict=True):
        assert moved(one, other) <= 1 + 1e-9
        assert one["clients"] - other["clients"] in (0, 1)
    if name != "Profiles" and "labels" not in name:
        assert max(moved(one, other) for one, other in zip(*both, strict=True)) > 0
