"""Private latent class regression: declared ranges, and the noise and cohort size known in advance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedscape.core.sampling import FixedSize, Poisson, Sampler
from fedscape.errors import DataError, PrivacyError
from fedscape.privacy.mechanisms import AdaptiveClip, Privacy


def ranges_of(
    ranges: Mapping[str, tuple[float, float]] | None, names: Sequence[str]
) -> tuple[tuple[float, float], ...]:
    """The limits of these columns' ranges; none if no ranges are given."""
    if ranges is None:
        return ()
    missing = [name for name in names if name not in ranges]
    if missing:
        raise DataError(f"ranges must name every feature and the target, but not {', '.join(missing)}: add them")
    for name in names:
        low, high = ranges[name]
        if not -np.inf < low < high < np.inf:
            raise DataError(f"the range of {name!r} must be a number and a greater one, not {low}, {high}")
    return tuple((float(ranges[name][0]), float(ranges[name][1])) for name in names)


def check_private(params: Mapping[str, Any], candidates: int, privacy: Privacy) -> None:
    """Refuse settings under which something unprotected would be released."""
    if params["ranges"] is None:
        raise PrivacyError(
            "a private regression needs ranges={column: (low, high)} of features and target, known beforehand: "
            "values are clipped to them, which bounds the effect of an event"
        )
    if candidates > 1 or params["chains"] > 1:
        raise PrivacyError("a private regression has one n_components and one chain: each more would be released too")
    if params["method"].startswith("central") or params["gamma"] == "latest":
        raise PrivacyError("a private regression has method 'federated' or 'em', and gamma a number or None")
    if params["method"] != "em" and (params["alpha"] is None or params["beta"] is None):
        raise PrivacyError(
            "a private regression has alpha and beta given, not None: learned from noisy counts they follow the noise"
        )
    if isinstance(privacy.clip, AdaptiveClip):
        raise PrivacyError("clip must be a number: sums are judged by their noise, which an AdaptiveClip would move")


def share_of(sampler: Sampler | None, n_agents: int) -> float:
    """The share of agents in a round, as far as it is known in advance.

    A sampler that wraps another has the share of the inner one, whomever the outer one leaves out.

    >>> share_of(Poisson(0.1), 50), share_of(FixedSize(5), 50), share_of(None, 50)
    (0.1, 0.1, 1.0)
    """
    if isinstance(sampler, Poisson):
        return sampler.rate
    if isinstance(sampler, FixedSize):
        return min(sampler.size / max(n_agents, 1), 1.0)
    inside = getattr(sampler, "sampler", None)
    return 1.0 if inside is None else share_of(inside, n_agents)
