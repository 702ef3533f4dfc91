"""Every Computation of the package can be audited, and a new one is found without being told."""

from __future__ import annotations

import hashlib
import sys
from itertools import count
from pathlib import Path

import pytest

from fedscape import All, Computation, Federation, Gaussian, Key
from fedscape.core.blocks import broadcast
from fedscape.privacy import audit
from fedscape.privacy.mechanisms import Privacy
from fedscape.statistics.survival import TimeScale
from fedscape.temporal import FedClock

sys.path.append(str(Path(__file__).parent.parent / "contract"))
from computations import computations

#: These have no examples; their subclasses have.
WITHOUT = ("_Unseen", "Branched", "GaussianBranches")
KINDS = [kind for kind in computations() if kind.step is not Computation.step]


def several(kind: type[Computation]) -> list[tuple[Computation, Federation]]:
    """The first example, and each that sends a name which none before it sends; a network's parameters are one name."""
    found: list[tuple[Computation, Federation]] = []
    known: set[str] = set()
    for computation, federation in kind.examples():
        state = computation.prepare(broadcast(computation.start(0)))
        sent, _ = computation.step(state, federation, Key(0, 0))
        names = {name.split(".")[0] if name.startswith("delta.") else name for name in sent}
        if not found or names - known:
            found.append((computation, federation))
        known |= names
    return found


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.__module__.rsplit('.')[-1]}.{kind.__name__}")
def test_every_computation_is_audited(kind, monkeypatch):
    numbers = count()
    monkeypatch.setattr(Privacy, "new_secret", lambda self: hashlib.sha256(str(next(numbers)).encode()).digest())
    examples = several(kind)
    if not examples:
        assert kind.__name__ in WITHOUT
        pytest.skip("an abstract one, without examples")
    for computation, federation in examples:
        check_audited(computation, federation, monkeypatch)


def check_audited(computation: Computation, federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit of it holds, and finds noise that is too small."""
    privacy = Gaussian(clip=1.0, multiplier=2.0, place="local" if computation.reveals else "central")
    how = {"repeats": 300, "simulations": 0, "confidence": 1 - 1e-6}
    sound = audit(computation, federation, privacy, **how)
    assert sound.holds, str(sound)
    assert sound.parts
    with monkeypatch.context() as planted:
        spread, parts = Gaussian.spread, Gaussian.parts
        booked = parts(privacy, All(), len(federation))
        planted.setattr(Gaussian, "parts", lambda self, sampler, n: booked)
        planted.setattr(Gaussian, "spread", lambda self: spread(self) / 20)
        # A twentieth of the noise is seen in half of the runs. Local noise adds up and hides more, as many names do.
        if not computation.reveals and not isinstance(computation, FedClock):
            how["repeats"] = 150
        assert not audit(computation, federation, privacy, **how).holds, repr(computation)


def test_what_is_sent_in_one_setting_alone_is_audited():
    """The first example of a computation was audited, and no other."""
    assert [computation.strict for computation, _ in several(TimeScale)] == [False, True]
    assert {computation.by for computation, _ in several(FedClock)} == {"labels", "features"}
