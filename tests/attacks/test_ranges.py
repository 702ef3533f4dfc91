"""Parameters that would switch the noise off, or break the arithmetic that adds it, are refused in one line."""

from __future__ import annotations

import math

import pytest
from shell import refused

from fedscape import All, DataError, Gaussian, Laplace, Ledger, PrivacyError, calibrate, datasets, study
from fedscape.privacy.mechanisms import AdaptiveClip

NO_NUMBERS = [math.inf, -math.inf, math.nan, True, "1", None, [1.0], 1e300, 1e-300, 0, -1.0]
POSITIVE = {
    "clip": lambda value: Gaussian(clip=value, multiplier=1.0),
    "multiplier": lambda value: Gaussian(clip=1.0, multiplier=value),
    "epsilon": lambda value: Laplace(clip=1.0, epsilon=value),
    "scales['a']": lambda value: Gaussian(clip=1.0, multiplier=1.0, scales={"a": value}),
    "start": lambda value: AdaptiveClip(value),
    "rate": lambda value: AdaptiveClip(1.0, rate=value),
    "AdaptiveClip's multiplier": lambda value: AdaptiveClip(1.0, multiplier=value),
    "a ledger's epsilon": lambda value: Ledger(epsilon=value),
    "calibrate's epsilon": lambda value: calibrate(value, 1e-5, rounds=1, sampler=All()),
}
SHARES = {
    "quantile": lambda value: AdaptiveClip(1.0, quantile=value),
    "count_share": lambda value: Gaussian(clip=1.0, multiplier=1.0, count_share=value),
    "a ledger's delta": lambda value: Ledger(delta=value),
    "calibrate's delta": lambda value: calibrate(1.0, value, rounds=1, sampler=All()),
}


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number_in_range_is_refused(name, value):
    if name == "a ledger's epsilon" and value is None:
        return  # no limit
    with pytest.raises((PrivacyError, DataError)) as caught:
        POSITIVE[name](value)
    said = str(caught.value)
    called = name.removeprefix("AdaptiveClip's ").removeprefix("calibrate's ")
    assert f"{called} must be a positive number, not" in said
    assert ": from 1e-" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("value", [math.inf, math.nan, True, "0.5", None, 1.0, -0.1], ids=repr)
def test_what_is_no_share_is_refused(name, value):
    with pytest.raises((PrivacyError, DataError), match=r"must be (between 0 and 1|from 0 to below 1), not"):
        SHARES[name](value)


@pytest.mark.parametrize("rounds", [True, 0, 1.5, math.inf, "3"], ids=repr)
def test_rounds_are_whole_numbers(rounds):
    with pytest.raises(DataError, match="rounds must be a whole number of at least 1, not"):
        calibrate(1.0, 1e-5, rounds=rounds, sampler=All())


@pytest.mark.parametrize("value", [math.inf, math.nan, True, 1e300, 0.0], ids=repr)
def test_a_study_is_refused_before_it_begins(value):
    with pytest.raises(DataError, match="epsilon must be a positive number, not"):
        study(datasets.load("acs-race").take(slice(40)), epsilon=value)


@pytest.mark.parametrize(
    "command", [("privacy", "calibrate", "--rounds", 1), ("study", "acs-race"), ("train", "femnist-mini")]
)
@pytest.mark.parametrize("value", ["inf", "nan", "1e300"])
def test_commands_exit_with_two_and_one_line(command, value, tmp_path):
    out = ("--out", tmp_path / "out") if command[0] == "study" else ()
    said = refused(2, *command, *out, "--epsilon", value)
    assert "epsilon must be a positive number, not" in said
    assert len(said.strip().splitlines()) == 1
