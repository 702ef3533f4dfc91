"""Every Computation goes through masked sums: whole sums to the bit, real ones to the grid, what reveals is refused."""

from __future__ import annotations

import computations as found
import numpy as np
import pytest

from fedscape import Key, Local, PrivacyError, SecureSum
from fedscape.core.blocks import on_host

EXAMPLES = found.examples()
BOUND = 2.0**34


@pytest.mark.parametrize(
    ("computation", "federation"), [e[1:] for e in EXAMPLES], ids=[name for name, _, _ in EXAMPLES]
)
def test_the_total_that_is_opened_is_the_plain_one(computation, federation):
    parties = len(federation)
    if parties < 3:
        pytest.skip("a cohort this small is refused, which tests/unit/secure shows")
    secure = SecureSum(colluders=0.0, dropouts=0.0, bounds=BOUND)
    state, cohort = computation.start(0), np.arange(parties)
    asked = computation, state, cohort, Key(0)
    if computation.reveals:
        with pytest.raises(PrivacyError, match="client by client, which secure= is there to prevent"):
            Local(federation, secure=secure).run(*asked)
        secure = SecureSum(colluders=0.0, dropouts=0.0, bounds=BOUND, allow=computation.reveals)
    plain = Local(federation, threads=1).run(*asked, measure=True)
    masked = Local(federation, threads=1, secure=secure).run(*asked, measure=True)
    grid = BOUND * parties * parties / 2**62
    for kind in ("total", "metrics"):
        ours, theirs = on_host(getattr(masked, kind)), on_host(getattr(plain, kind))
        assert set(ours) == set(theirs)
        for name, values in theirs.items():
            if values.dtype.kind in "biuU":
                assert np.array_equal(ours[name], values), name
            else:
                scale = float(np.abs(values).max(initial=1.0))
                assert np.abs(ours[name] - values).max(initial=0.0) <= grid + 1e-4 * scale, name
