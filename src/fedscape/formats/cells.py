"""Texts in a CSV file that a spreadsheet would run as formulas."""

from __future__ import annotations

from typing import Any

_FORMULA = r"^([=+\-@\t\r\n])"


def without_formulas(table: Any) -> Any:
    """Prefix an apostrophe to every text of a pyarrow table that a spreadsheet would run; leave numbers alone.

    Such a text begins with =, +, -, @, a tab or a line break. Column names get the same treatment. Use this for
    tables that people read, not for data files, which must round-trip unchanged.

    >>> import pyarrow as pa
    >>> without_formulas(pa.table({"client": ["=1+1", "ash"], "loss": [-1.0, 2.0]})).to_pydict()
    {'client': ["'=1+1", 'ash'], 'loss': [-1.0, 2.0]}
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    def quoted(texts: Any) -> Any:
        return pc.replace_substring_regex(texts, pattern=_FORMULA, replacement=r"'\1")

    columns = []
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        texts = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        columns.append(quoted(column) if texts else column)
    return pa.table(columns, names=[quoted(name).as_py() for name in table.column_names])
