"""Every Computation of the package can be audited, and a new one is found without being told."""

from __future__ import annotations

import hashlib
import sys
from itertools import count
from pathlib import Path

import pytest

from fedscape import All, Computation, Gaussian
from fedscape.privacy import audit
from fedscape.privacy.mechanisms import Privacy

sys.path.append(str(Path(__file__).parent.parent / "contract"))
from computations import computations

#: These have no examples; their subclasses have.
WITHOUT = ("_Unseen", "Branched", "GaussianBranches")
KINDS = [kind for kind in computations() if kind.step is not Computation.step]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__.rsplit('.')[-1]}.{kind.__name__}")
def test_every_computation_is_audited(kind, monkeypatch):
    numbers = count()
    monkeypatch.setattr(Privacy, "new_secret", lambda self: hashlib.sha256(str(next(numbers)).encode()).digest())
    examples = kind.examples()
    if not examples:
        assert kind.__name__ in WITHOUT
        pytest.skip("an abstract one, without examples")
    computation, federation = examples[0]
    privacy = Gaussian(clip=1.0, multiplier=2.0, place="local" if kind.reveals else "central")
    how = {"repeats": 300, "simulations": 0, "confidence": 1 - 1e-6}
    sound = audit(computation, federation, privacy, **how)
    assert sound.holds, str(sound)
    assert sound.parts
    with monkeypatch.context() as planted:
        spread, parts = Gaussian.spread, Gaussian.parts
        booked = parts(privacy, All(), len(federation))
        planted.setattr(Gaussian, "parts", lambda self, sampler, n: booked)
        planted.setattr(Gaussian, "spread", lambda self: spread(self) / 20)
        if not kind.reveals:
            how["repeats"] = (
                150  # a twentieth of the noise is seen in half of the runs; local noise adds up, and hides more
            )
        assert not audit(computation, federation, privacy, **how).holds
