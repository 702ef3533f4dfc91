"""The same draws in every run of the tests, files in memory, and patience with a machine that has other work."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")
if "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 * 2**30:
    # on a disk a test waits for every file that is synced or removed, which is half of the time of many
    os.environ["TMPDIR"] = str(_MEMORY)

with contextlib.suppress(ImportError):  # a machine with a GPU may have little else
    from hypothesis import HealthCheck, settings

    # new examples are for whoever looks for them: pytest --hypothesis-profile=default
    settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("same")


os.environ.setdefault("FEDSCAPE_PROGRAMS", os.path.join(tempfile.gettempdir(), "fedscape-programs"))  # not at home


gc.disable()  # until all tests are found: of modules and tests nothing is garbage, and looking takes a quarter of it


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """Where torch is used, what it draws does not depend on the tests before."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)
