"""Read each stored file into a Federation: NumPy archives, Arrow tables, idx images, JPEG streams and speeches."""

from __future__ import annotations

import importlib
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.federation import Federation
from fedscape.errors import DataError, MissingExtraError
from fedscape.formats.npz import read_gzip, read_npz
from fedscape.types import Array

DIGITS = tuple("0123456789")
CHARACTERS = (*DIGITS, *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"abcdefghijklmnopqrstuvwxyz")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
RACES = (  # RAC1P 1 to 9
    "White",
    "Black or African American",
    "American Indian",
    "Alaska Native",
    "American Indian or Alaska Native, tribe not told apart",
    "Asian",
    "Native Hawaiian or other Pacific Islander",
    "some other race",
    "two or more races",
)
ALPHABET = (*" !$&',-.", *DIGITS, *":;?", *CHARACTERS[10:])  # the characters of the plays, with line ends as blanks
WINDOW = 80


def writers(paths: list[Path]) -> Federation:
    """FEMNIST images and labels by writer."""
    stored = _arrays(paths[0])
    who = stored["writers"]
    columns = {"x": stored["x"], "y": stored["y"]}
    return Federation.from_arrays(columns, clients=who[stored["client"]], ids=who, names={"y": CHARACTERS})


def writer_labels(paths: list[Path]) -> Federation:
    """FEMNIST label histograms, one row per writer."""
    stored = _arrays(paths[0])
    return _histograms(stored["counts"], stored["writers"], CHARACTERS)


def region_races(paths: list[Path]) -> Federation:
    """Histograms of race, one row per region."""
    stored = _arrays(paths[0])
    return _histograms(stored["race"], _region_ids(*stored["race_client"].T), RACES)


def region_incomes(paths: list[Path]) -> Federation:
    """Histograms of income, one row per region."""
    stored = _arrays(paths[0])
    edges = stored["income_edges"]
    bins = [f"[{low:g}, {high:g})" for low, high in pairwise(edges)]
    return _histograms(stored["income"], _region_ids(*stored["income_client"].T), bins)


def _histograms(counts: Array, ids: Array, names: Any) -> Federation:
    return Federation({"y": counts.astype(np.int32)}, np.arange(len(ids) + 1), ids, names={"y": names})


def _region_ids(state: Array, region: Array) -> Array:
    return np.array([f"{s:02d}-{r:05d}" for s, r in zip(state.tolist(), region.tolist(), strict=True)])


def persons(paths: list[Path]) -> Federation:
    """Census records by region; `race` is RAC1P counted from 0, with names."""
    columns, names = _columns(_table(paths[0]))
    regions, codes = np.unique(columns["ST"].astype(np.int64) * 100_000 + columns["PUMA"], return_inverse=True)
    columns["race"] = columns["RAC1P"] - 1
    fed = Federation.from_arrays(columns, clients=codes, names={**names, "race": RACES})
    ids = _region_ids(regions // 100_000, regions % 100_000)
    return Federation(fed.columns, fed.offsets, ids[fed.ids], names=fed.names)


def flights(paths: list[Path]) -> Federation:
    """Flights by carrier."""
    return _grouped(_table(paths[0]), "carrier")


def pupils_by_authority(paths: list[Path]) -> Federation:
    """A-level chemistry by education authority."""
    return _grouped(_table(paths[0]), "lea")


def pupils_by_school(paths: list[Path]) -> Federation:
    """Exam scores by school."""
    return _grouped(_table(paths[0]), "school")


def houses(paths: list[Path]) -> Federation:
    """Radon measurements by county."""
    return _grouped(_table(paths[0]), "county.name")


def _table(path: Path) -> Any:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path)
    import pyarrow.csv

    return pyarrow.csv.read_csv(path)


def _columns(table: Any) -> tuple[dict[str, Array], dict[str, list[str]]]:
    """Convert an Arrow table to arrays: texts as codes with names, numbers with gaps as float64 with NaN."""
    import pyarrow as pa

    columns: dict[str, Array] = {}
    names: dict[str, list[str]] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_string(column.type):
            column = column.dictionary_encode()
        if pa.types.is_dictionary(column.type):
            columns[name], names[name] = _codes(column)
        elif column.null_count:
            columns[name] = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        else:
            columns[name] = column.to_numpy(zero_copy_only=False)
    return columns, names


def _codes(column: Any) -> tuple[Array, list[str]]:
    """Codes of the texts in use, in sorted order; a missing text is -1."""
    texts = column.dictionary.to_pylist()
    stored = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    used = sorted({texts[code] for code in np.unique(stored).tolist() if code >= 0})
    place = {text: code for code, text in enumerate(used)}
    code_of = np.array([*(place.get(text, -1) for text in texts), -1], dtype=np.int32)
    return code_of[stored], used


def _grouped(table: Any, client: str) -> Federation:
    columns, names = _columns(table)
    who, texts = columns.pop(client), names.pop(client, None)
    fed = Federation.from_arrays(columns, clients=who, names=names)
    return fed if texts is None else Federation(fed.columns, fed.offsets, np.array(texts)[fed.ids], names=names)


def speeches(paths: list[Path]) -> Federation:
    """Windows of 80 characters and the next one, by play and role, at every position of a role's text."""
    roles = json.loads(read_gzip(paths[0]))
    code_of = np.full(256, 255, dtype=np.uint8)
    code_of[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    texts = []
    for role in roles:
        text = " ".join(" ".join(role["speeches"]).split())
        codes = code_of[np.frombuffer(text.encode("latin-1"), dtype=np.uint8)]
        if (codes == 255).any():
            raise DataError(f"the role {role['role']!r} holds the unknown character {text[int(codes.argmax())]!r}")
        texts.append(codes)
    offsets = offsets_of([max(len(text) - WINDOW, 0) for text in texts])
    x, y = np.empty((offsets[-1], WINDOW), dtype=np.uint8), np.empty(offsets[-1], dtype=np.uint8)
    for codes, (begin, end) in zip(texts, pairwise(offsets), strict=True):
        if end > begin:
            x[begin:end] = np.lib.stride_tricks.sliding_window_view(codes[:-1], WINDOW)
            y[begin:end] = codes[WINDOW:]
    ids = [f"{role['play']}/{role['role']}" for role in roles]
    return Federation({"x": x, "y": y}, offsets, ids, names={"y": ALPHABET})


def digits(paths: list[Path]) -> Federation:
    """MNIST: train images, train labels, test images, test labels."""
    return _pooled([_idx(path) for path in paths[::2]], [_idx(path) for path in paths[1::2]], DIGITS, first=0)


def clothes(paths: list[Path]) -> Federation:
    """Fashion-MNIST: test images and labels."""
    return _pooled([_idx(paths[0])], [_idx(paths[1])], FASHION, first=1)


def small_photos(paths: list[Path]) -> Federation:
    """CIFAR-10 from JPEG streams: train, test."""
    stored = [_arrays(path) for path in paths]
    images = [_decode(part["blob"].tobytes(), part["offset"].tolist()) for part in stored]
    return _pooled(images, [part["y"] for part in stored], CIFAR10, first=0)


def _pooled(images: list[Array], labels: list[Array], names: tuple[str, ...], *, first: int) -> Federation:
    """Pool all rows into one client; `split` marks the test rows."""
    split = np.repeat(np.arange(first, first + len(labels)), [len(part) for part in labels]).astype(np.uint8)
    columns = {"x": np.concatenate(images), "y": np.concatenate(labels), "split": split}
    return Federation(columns, [0, len(split)], ["0"], names={"y": names, "split": ("train", "test")})


def _idx(path: Path) -> Array:
    """Read an idx file of bytes: two zeros, the type 8, the number of axes, their lengths, the values."""
    data = read_gzip(path)
    axes = data[3] if data[:3] == b"\x00\x00\x08" else 0
    shape = tuple(np.frombuffer(data, dtype=">u4", count=axes, offset=4).tolist()) if axes else ()
    if not axes or int(np.prod(shape)) != len(data) - 4 - 4 * axes:
        raise DataError(f"{path} is not a whole idx file of bytes: its {len(data):,} bytes do not match its head")
    return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def _decode(blob: bytes, offset: list[int]) -> Array:
    try:
        image = importlib.import_module("PIL.Image")
    except ImportError:
        raise MissingExtraError(
            "reading JPEG images needs 'PIL', which is not installed: run  pip install pillow"
        ) from None
    out = np.empty((len(offset) - 1, 32, 32, 3), dtype=np.uint8)
    for row, (begin, end) in enumerate(pairwise(offset)):
        with image.open(io.BytesIO(blob[begin:end])) as stream:
            if stream.size != (32, 32):
                raise DataError(f"image {row:,} must have 32 x 32 pixels, not {stream.size[0]} x {stream.size[1]}")
            out[row] = np.asarray(stream.convert("RGB"))
    return out


def phones(paths: list[Path]) -> Federation:
    """One row per phone and half-hour."""
    stored = _arrays(paths[0])
    available = stored["available"]
    n_phones, n_slots = available.shape
    slot = np.arange(n_slots)
    time = np.datetime64(str(stored["start"]), "m") + slot * np.timedelta64(int(stored["step_minutes"]), "m")
    columns = {
        "available": available.reshape(-1),
        "slot": np.tile(slot.astype(np.int16), n_phones),
        "time": np.tile(time, n_phones),
    }
    return Federation(columns, np.arange(n_phones + 1) * n_slots)


def _arrays(path: Path) -> dict[str, Array]:
    return read_npz(path)
