"""Clip on the client, noise on the sum, and a ledger of what was spent."""

from fedscape.privacy.accounting import calibrate
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import AdaptiveClip, Gaussian, Laplace, Privacy

__all__ = ["AdaptiveClip", "Gaussian", "Laplace", "Ledger", "Privacy", "calibrate"]
