"""Clips so small, and numbers so large, that the factor between them has no digits left: nobody moves a sum further."""

from __future__ import annotations

import numpy as np
import pytest
from asking import Asker

from fedscape import Federation, Gaussian, Laplace, Moments, PrivacyError
from fedscape.engines.flower import Terms
from fedscape.privacy.mechanisms import AdaptiveClip
from fedscape.privacy.ranges import LENGTH
from fedscape.privacy.release import Release


def test_a_node_refuses_a_clip_that_floats_cannot_divide(tmp_path):
    """At 1e-312 a client was moved 1.87 times as far as the node's own ledger counted."""
    fed = Federation({"x": np.full((1, 1), 379269019073.2238)}, [0, 1])
    node = Asker(fed, tmp_path, terms=Terms(epsilon=1.0, unnoised=0, places=("local",)))
    privacy = Gaussian(clip=1.0, multiplier=50.0, place="local")
    for clip in (1e-312, 1e-13, 1e13, 1e308):
        about = {"mechanism": "Gaussian", "clip": clip, "counted": False, "min_clients": 1}
        about["privacy"] = {"clip": 1.0, "multiplier": 50.0, "place": "local"}
        _, reply = node.ask(Moments(rounds=1), privacy=privacy, release=about)
        assert "refused" in reply
    assert "clip must be a positive number, not 1e-312: from 1e-12 to 1e+12" in node.log[0]["why"]
    assert node.releases == 0
    _, reply = node.ask(Moments(rounds=1), privacy=privacy)
    assert "refused" not in reply


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("rate", [0.2, 1e3, 1e9])
def test_an_adaptive_clip_stays_where_a_clip_may_be(rate, share):
    clip = 1.0
    for _ in range(400):
        clip = AdaptiveClip(1.0, rate=rate).next(clip, share=share)
    assert LENGTH[0] <= clip <= LENGTH[1]


@pytest.mark.parametrize("privacy", [Laplace(clip=1e-12, epsilon=1.0), Gaussian(clip=1e-12, multiplier=1.0)])
def test_no_number_is_longer_than_the_clip_once_clipped(privacy):
    release = Release(privacy, privacy.clip, b"", False, 1)
    numbers = np.concatenate([np.logspace(-20, 308.2, 4000), np.logspace(300, 308.2, 4000)])
    cells = release.on_clients({"x": numbers[:, None]}, None)["x"]
    assert np.abs(cells).max() <= privacy.clip / release.grids["x"]


def test_a_release_says_which_clips_it_takes():
    with pytest.raises(PrivacyError, match="clip must be a positive number, not 1e-310: from 1e-12 to"):
        Release(Gaussian(clip=1.0, multiplier=1.0), 1e-310, b"", False, 1)
