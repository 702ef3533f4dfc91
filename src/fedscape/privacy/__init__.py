"""Clip on the client, add noise to the sum, and book every release in a ledger."""

from typing import TYPE_CHECKING

from fedscape.core.lazy import loader

if TYPE_CHECKING:
    from fedscape.privacy.accounting import calibrate
    from fedscape.privacy.auditing import Audit, audit
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import AdaptiveClip, Gaussian, Laplace, Privacy
    from fedscape.privacy.release import noise_sd

__all__ = ["AdaptiveClip", "Audit", "Gaussian", "Laplace", "Ledger", "Privacy", "audit", "calibrate", "noise_sd"]

__getattr__ = loader(
    __name__,
    {
        "accounting": ["calibrate"],
        "auditing": ["Audit", "audit"],
        "ledger": ["Ledger"],
        "mechanisms": ["AdaptiveClip", "Gaussian", "Laplace", "Privacy"],
        "release": ["noise_sd"],
    },
)
