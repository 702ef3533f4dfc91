"""Times of logs: dates in the ways they are written, and seconds since a Monday."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from fedscape.errors import DataError, plural
from fedscape.types import Array

MONDAY = np.datetime64("1970-01-05T00:00:00", "ms")
FAR = 1e11  # seconds, three thousand years: no time lies beyond


def seconds(times: npt.ArrayLike, name: str = "time") -> Array:
    """Dates as seconds since a Monday at midnight; numbers stay.

    >>> seconds([np.datetime64("1970-01-06T00:00")]).tolist()
    [86400.0]
    """
    values = np.asarray(times)
    if values.ndim != 1:
        raise DataError(f"{name} must be a list of times, not of shape {values.shape}")
    if values.dtype.kind == "O":  # datetime, date or Timestamp, with or without a time zone
        values = values.astype(np.str_)
    if values.dtype.kind == "U":
        values = _dates(values, name)
    if values.dtype.kind == "M":
        out = (values.astype("datetime64[ms]") - MONDAY) / np.timedelta64(1, "ms") / 1000.0
    elif values.dtype.kind in "iuf":
        out = values.astype(np.float64)
    else:
        raise DataError(f"{name} must hold dates or seconds, not {values.dtype}")
    if not np.isfinite(out).all():
        raise DataError(f"{name} has {plural(int((~np.isfinite(out)).sum()), 'missing value')}: drop those sessions")
    if (far := np.abs(out) >= FAR).any():
        raise DataError(f"{name} has {out[far][0]:g}, no time in seconds: write dates, or seconds since a Monday")
    return np.asarray(out)


_ZONE = re.compile(r"(Z|[+-]\d{2}:?\d{2})$")
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(.*)")


def _dates(texts: Array, name: str) -> Array:
    """Texts as dates, 2024-01-31 07:30 or 31.1.2024 07:30; a time zone at the end is taken off to UTC."""
    unique, code = np.unique(texts, return_inverse=True)
    times = np.empty(len(unique), dtype="datetime64[ms]")
    zoned = 0
    for i, text in enumerate(unique.tolist()):
        date, shift = text.strip(), np.timedelta64(0, "m")
        if (zone := _ZONE.search(date)) and len(date) > 10:
            zoned += 1
            date, sign = date[: zone.start()].strip(), zone.group(1)
            if sign != "Z":
                digits = sign[1:].replace(":", "")
                shift = np.timedelta64((1 if sign[0] == "+" else -1) * (60 * int(digits[:2]) + int(digits[2:])), "m")
        if dotted := _DOTTED.fullmatch(date):
            date = f"{dotted[3]}-{int(dotted[2]):02d}-{int(dotted[1]):02d}{dotted[4]}"
        try:
            times[i] = np.datetime64(date).astype("datetime64[ms]") - shift
        except ValueError:
            raise DataError(f"{name} must hold dates or seconds, not {text!r}: write 2024-01-31 07:30") from None
    if 0 < zoned < len(unique):
        raise DataError(f"{name} has times with and without a time zone: write all of them alike")
    return times[code]


def shown(seconds: float) -> str:
    """A time as a date, or as seconds where these are small numbers.

    >>> shown(3600.0), shown(1.7e9)
    ('3600 s', '2023-11-18T22:13')
    """
    if abs(seconds) < 1e8:
        return f"{seconds:g} s"
    return str((MONDAY + np.timedelta64(round(1000 * float(seconds)), "ms")).astype("datetime64[m]"))
