"""Clip on the client, noise on the sum, and a ledger of what was spent."""

from typing import TYPE_CHECKING, Any

from fedscape.privacy.accounting import calibrate
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import AdaptiveClip, Gaussian, Laplace, Privacy
from fedscape.privacy.release import noise_sd

if TYPE_CHECKING:
    from fedscape.privacy.auditing import Audit, audit

__all__ = ["AdaptiveClip", "Audit", "Gaussian", "Laplace", "Ledger", "Privacy", "audit", "calibrate", "noise_sd"]


def __getattr__(name: str) -> Any:
    if name in ("Audit", "audit"):  # the audit runs computations, which import this package
        from fedscape.privacy import auditing

        return getattr(auditing, name)
    raise AttributeError(f"module 'fedscape.privacy' has no attribute {name!r}")
