"""A kernel may call kernels: compiled, and as plain Python."""

from __future__ import annotations

from fedscape.core.kernel import kernel, uncompiled


@kernel
def twice(x):
    return 2 * x


@kernel
def four_times(x):
    return twice(twice(x))


def test_kernels_call_kernels_compiled_and_plain():
    assert four_times(3) == 12
    with uncompiled():
        assert four_times(3) == 12
    assert vars(four_times)["compiled"]().signatures  # it was compiled, not run by the interpreter
