"""Escaped text for pages, and numbers formatted for readers."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from fedscape.errors import plural

About = Mapping[str, Any]
NONE = "\u2013"


def safe(value: object) -> str:
    """Escape a text for use in markup, also inside an attribute.

    >>> safe("<b a='1'>")
    '&lt;b a=&#x27;1&#x27;&gt;'
    """
    return html.escape(str(value), quote=True)


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element, for any text.

    >>> embedded({"a": "</script>"})
    '{"a": "\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, allow_nan=False)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def number(value: float | None, digits: int = 3) -> str:
    """A number, or a dash for None.

    >>> number(0.12345), number(None), number(12345.6, 0)
    ('0.123', '\u2013', '12,346')
    """
    return NONE if value is None else f"{round(value, digits) + 0.0:,.{digits}f}"


def two_digits(value: float) -> str:
    """A number to two significant digits, never in exponent notation.

    >>> two_digits(0.0857), two_digits(8.94), two_digits(123456.0)
    ('0.086', '8.9', '120,000')
    """
    return f"{float(f'{value:.2g}'):,.10g}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share in percent.

    >>> percent(0.1234)
    '12.3%'
    """
    return NONE if value is None else f"{100 * value:.{digits}f}%"


def between(about: About, show: Any = number) -> str:
    """The interval of a number.

    >>> between({"low": 0.1, "high": 0.25})
    '0.100 to 0.250'
    """
    if about["low"] is None or about["high"] is None:
        return "no interval"
    return f"{show(about['low'])} to {show(about['high'])}"


def of_stages(section: About, what: str) -> str:
    """Tell the stages of a tournament: who took part in each, and whether the advice was settled.

    >>> stage = {"clients": 9, "rows": 90, "methods": ["a", "b"], "settled": True}
    >>> of_stages({"stages": [stage]}, "client")
    '2 methods on 9 clients (90 rows); that settled the advice.'
    """
    stages = section["stages"]
    stages_text = "; then ".join(
        f"{plural(len(s['methods']), 'method')} on {plural(s['clients'], what)} ({plural(s['rows'], 'row')})"
        for s in stages
    )
    if len({len(s["methods"]) for s in stages}) > 1:
        stages_text += (
            "; methods leave that are shown to be a point behind, or not to be a point better than the advice"
        )
    return f"{stages_text}; {'that settled the advice' if stages[-1]['settled'] else 'the advice is not settled'}."
