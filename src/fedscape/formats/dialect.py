"""Detect the dialect of a text file from its bytes: compression, encoding, separator, decimal sign."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fedscape.errors import DataError, plural
from fedscape.formats.files import Name, reading

ALWAYS_ALLOWED = 2**30  # decompressed bytes that are always allowed
MOST_EXPANSION = 256  # maximum expansion ratio above that
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_HEAD = 2**18
_MARKS = ((codecs.BOM_UTF8, "utf8"), (codecs.BOM_UTF16_LE, "utf16"), (codecs.BOM_UTF16_BE, "utf16"))
_COMMA, _POINT = re.compile(r"[-+]?\d+,\d+"), re.compile(r"[-+]?\d+\.\d+")


@dataclass(frozen=True)
class Dialect:
    """The dialect of a CSV file."""

    separator: str = ","
    encoding: str = "utf8"
    decimal: str = "."
    size: int = 0  # bytes, decompressed

    @property
    def remark(self) -> str:
        """Describe what differs from commas, UTF-8 and a decimal point; "" if nothing does."""
        parts = []
        if self.separator != ",":
            parts.append(f"separated by {SEPARATORS[self.separator]}")
        if self.encoding != "utf8":
            parts.append(f"encoded as {'UTF-16' if self.encoding == 'utf16' else 'Windows-1252 (Latin-1)'}")
        if self.decimal == ",":
            parts.append("with decimal commas")
        return ", ".join(parts)


def open_bytes(path: Name) -> Any:
    """Open a file for reading bytes, decompressed by its ending (.gz, .bz2, .zst, .lz4)."""
    return pa.input_stream(str(path), compression="detect")


def uneven_line(path: Name, dialect: Dialect) -> str:
    """Name the first line whose number of cells is not that of the header; "" if there is none."""
    encoding = {"utf8": "utf-8-sig", "utf16": "utf-16"}.get(dialect.encoding, dialect.encoding)
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding, errors="replace", newline="") as text:
        lines = csv.reader(text, delimiter=dialect.separator)
        header = next(lines, [])
        try:
            for cells in lines:
                if cells and len(cells) != len(header):
                    count, named = plural(len(cells), "cell"), plural(len(header), "column")
                    return (
                        f"line {lines.line_num:,} has {count}, where the header names {named}: mend that "
                        "line; a cell that holds a separator stands in quotes"
                    )
        except csv.Error:  # a cell that this reader takes for too long
            return ""
    return ""


def find_dialect(path: Name, what: str = "CSV file") -> Dialect:
    """Detect the encoding from all bytes, and the rest from the first lines.

    A file that is not UTF-8 is read as Windows-1252. Any bytes are valid there, so the remark must mention it.
    """
    with reading(path, what):
        head, valid, size = _scan(path)
    if head.startswith(b"PK\x03\x04"):
        raise DataError(f"{path} is a zip archive or an Excel file, not a {what}: save the sheet as CSV, or unpack it")
    encoding = next((name for mark, name in _MARKS if head.startswith(mark)), "utf8" if valid else "cp1252")
    if encoding != "utf16" and b"\0" in head:
        raise DataError(f"{path} holds zero bytes and is no text: it is not a {what}, whatever its ending says")
    text = head.decode("utf-16" if encoding == "utf16" else encoding, errors="ignore").lstrip("\ufeff")
    lines = text.splitlines(keepends=True)[:50]
    separator = _separator(lines)
    cells = [cell.strip() for row in _cells(lines, separator) for cell in row]
    commas, points = (sum(bool(form.fullmatch(cell)) for cell in cells) for form in (_COMMA, _POINT))
    return Dialect(separator, encoding, "," if separator != "," and commas and not points else ".", size)


def _scan(path: Name) -> tuple[bytes, bool, int]:
    """Return the first bytes, whether all are UTF-8, and the decompressed size; refuse a decompression bomb."""
    limit = max(ALWAYS_ALLOWED, MOST_EXPANSION * os.stat(path).st_size)
    decoder, valid, size, head = codecs.getincrementaldecoder("utf8")(), True, 0, b""
    with open_bytes(path) as stream:
        while chunk := stream.read(_HEAD):
            head = head or chunk
            size += len(chunk)
            if size > limit:
                raise DataError(f"{path} grows to more than {limit:,} bytes when it is decompressed: unpack it first")
            if valid:
                try:
                    decoder.decode(chunk)
                except UnicodeDecodeError:
                    valid = False
    return head, valid, size


def _separator(lines: Sequence[str]) -> str:
    """Find the separator that splits most lines into as many cells (at least two) as the header; a comma by default."""
    best, most = ",", (0.0, 1)
    for separator in SEPARATORS:
        rows = _cells(lines, separator)
        width = len(rows[0]) if rows else 0
        score = (round(sum(len(row) == width for row in rows) / max(len(rows), 1), 1), width)
        if width > 1 and score > most:
            best, most = separator, score
    return best


def _cells(lines: Sequence[str], separator: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO("".join(lines), newline=""), delimiter=separator) if row]
    except csv.Error:
        return []
