"""Parse texts that hold numbers or dates: thousands separators, decimal commas, units, date formats."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from fedscape.types import Array

_PLAIN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf(inity)?|nan", re.I)
_COMMA = re.compile(r"[-+]?\d+,\d+")
_POINTS_GROUP = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?")  # 3.146,42
_COMMAS_GROUP = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")  # 3,146.42
_SURE_POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+,\d+|[-+]?[1-9]\d{0,2}(\.\d{3}){2,}")
_SURE_COMMAS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+\.\d+|[-+]?[1-9]\d{0,2}(,\d{3}){2,}")
_UNIT = re.compile(r"^([-+]?)\s*[$€£¥]\s*|\s*[$€£¥%]$")

_TIME = r"\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(\s?[AaPp]\.?[Mm]\.?)?(\s?(Z|UTC|[-+]\d{2}:?\d{2}))?"
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mai|okt|dez|mär)[a-zä]*\.?"
_DAY = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}(?P<between>[-/.])\d{1,2}(?P=between)(\d{4}|\d{2})"
    rf"|\d{{1,2}}[-. ]+{_MONTH}[- ]+\d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{4}}"
)
_DATE = re.compile(rf"({_DAY})([ T,]+{_TIME})?|{_TIME}", re.I)


def parse_numbers(texts: Sequence[str]) -> tuple[Array, Array]:
    """Parse texts as numbers, NaN if a text is not one, and flag those that are not.

    All texts together decide the meaning of comma and point: 3,146.42 makes every comma a thousands separator,
    3.146,42 every point. Commas that all precede three digits separate thousands, unless another text shows otherwise.
    Currency and percent signs are dropped.

    >>> parse_numbers(["1.5", "2,5", "n/a"])[0].tolist()
    [1.5, 2.5, nan]
    >>> parse_numbers(["999", "1,234", "$2,000"])[0].tolist()
    [999.0, 1234.0, 2000.0]
    """
    bare = [_UNIT.sub(r"\1", text.strip()) for text in texts]
    separator = _thousands(bare)
    numbers = np.full(len(bare), np.nan)
    for j, text in enumerate(bare):
        if separator == "," and _COMMAS_GROUP.fullmatch(text):
            numbers[j] = float(text.replace(",", ""))
        elif separator == "." and _POINTS_GROUP.fullmatch(text):
            numbers[j] = float(text.replace(".", "").replace(",", "."))
        elif _PLAIN.fullmatch(text):
            numbers[j] = float(text)
        elif separator != "," and _COMMA.fullmatch(text):
            numbers[j] = float(text.replace(",", "."))
    return numbers, np.isnan(numbers)


def how_written(texts: Sequence[str]) -> str:
    """Describe how number texts were parsed, in a few words; "" if they are plain.

    >>> how_written(["$1,200.50", "$7.00"])
    'commas between thousands, a sign $ left out'
    """
    signs = sorted({sign for text in texts for sign in re.findall(r"[$€£¥%]", text)})
    bare = [_UNIT.sub(r"\1", text.strip()) for text in texts]
    separator = _thousands(bare)
    parts = [{",": "commas between thousands", ".": "points between thousands"}[separator]] if separator else []
    if separator == "" and any(_COMMA.fullmatch(text) for text in bare):
        parts.append("decimal commas")
    if signs:
        parts.append(f"a sign {' or '.join(signs)} left out")
    return ", ".join(parts)


def are_dates(texts: Sequence[str]) -> bool:
    """Whether nearly all of these texts are dates or times of day.

    >>> are_dates(["01.02.2024 07:00", "13.02.2024 14:00"]), are_dates(["1.5", "2.5"])
    (True, False)
    """
    looked_at = [text.strip() for text in texts[:1000]]
    dates = sum(bool(_DATE.fullmatch(text)) for text in looked_at)
    return bool(looked_at) and dates >= 0.95 * len(looked_at)


def _thousands(texts: Sequence[str]) -> str:
    """The thousands separator of these texts: a comma, a point, or "" where there is none."""
    commas = any(_SURE_COMMAS.fullmatch(text) for text in texts)
    points = any(_SURE_POINTS.fullmatch(text) for text in texts)
    if commas or points:
        return "" if commas and points else "," if commas else "."
    written = [text for text in texts if "," in text and _COMMA.fullmatch(text)]
    decimals = any("." in text and _PLAIN.fullmatch(text) for text in texts)
    grouped = all(_COMMAS_GROUP.fullmatch(text) for text in written)
    return "," if written and grouped and not decimals else ""
