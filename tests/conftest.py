"""The same draws in every run of the tests, and patience with a machine that has other work."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile

import pytest

with contextlib.suppress(ImportError):  # a machine with a GPU may have little else
    from hypothesis import HealthCheck, settings

    # new examples are for whoever looks for them: pytest --hypothesis-profile=default
    settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("same")


os.environ.setdefault("FEDSCAPE_PROGRAMS", os.path.join(tempfile.gettempdir(), "fedscape-programs"))  # not at home


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """Where torch is used, what it draws does not depend on the tests before."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
