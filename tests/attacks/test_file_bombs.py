"""Who sends a file: a few bytes must not take gigabytes of memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tracemalloc
import zipfile
import zlib
from contextlib import contextmanager

import numpy as np
import pytest

from fedscape import DataError, MixtureOfDirichletMultinomials, datasets
from fedscape.errors import CheckpointError
from fedscape.formats.npz import read_npz
from fedscape.mixtures.dirichlet_multinomial.files import _checksum

MIB = 2**20


@contextmanager
def little_memory(most=64 * MIB):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def header(shape, dtype="<f8"):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def bomb(n_mib, name="x"):
    """An .npz of so many MiB of zeros, packed a thousandfold; made of one packed MiB, over and over."""
    head = header((n_mib * MIB // 8,))
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    body += (packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)) * n_mib + packer.flush()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{name}.npy", body)
    content, checksum = file.getvalue(), zlib.crc32(head)
    for _ in range(n_mib):
        checksum = zlib.crc32(bytes(MIB), checksum)
    about = struct.pack("<III", checksum, len(body), len(head) + n_mib * MIB)
    for at in (8, content.rindex(b"PK\x01\x02") + 10):  # method, time and date, then checksum and both sizes
        packed = zipfile.ZIP_DEFLATED.to_bytes(2, "little")
        content = content[:at] + packed + content[at + 2 : at + 6] + about + content[at + 18 :]
    return content


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, body in members.items():
            archive.writestr(f"{name}.npy", body)
    return file.getvalue()


def population(folder, content):
    """A population's two files, as someone would forge them around these bytes."""
    MixtureOfDirichletMultinomials().fit([[1, 1], [2, 0]]).save(folder / "p.json")
    (folder / "p.npz").write_bytes(content)
    about = json.loads((folder / "p.json").read_text())
    del about["checksum"]
    about["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "p.json").write_text(json.dumps({**about, "checksum": _checksum(about)}))
    return folder / "p.json"


def test_the_bomb_of_these_tests_is_a_sound_archive():
    assert not np.load(io.BytesIO(bomb(3)))["x"].any()
    assert not read_npz("x.npz", bomb(3))["x"].any()


def test_a_population_of_two_megabytes_does_not_unpack_to_gigabytes(tmp_path):
    path = population(tmp_path, bomb(1100, "weights"))
    assert (tmp_path / "p.npz").stat().st_size < 2 * MIB
    with little_memory(), pytest.raises(CheckpointError, match=r"p.npz would unpack to 1,153,433,728 bytes, more than"):
        MixtureOfDirichletMultinomials.load(path)


def test_a_population_whose_header_states_four_gigabytes_is_refused(tmp_path):
    path = population(tmp_path, zipped(weights=header((2**29,)) + bytes(16)))
    with little_memory(), pytest.raises(CheckpointError, match=r"says float64\[536870912\], 4,294,967,296 bytes, but"):
        MixtureOfDirichletMultinomials.load(path)


def test_a_set_of_data_does_not_unpack_to_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSCAPE_DATA", str(tmp_path))
    (tmp_path / "femnist").mkdir()
    (tmp_path / "femnist" / "femnist_10pct.npz").write_bytes(bomb(1100))
    with little_memory(), pytest.raises(DataError, match=r"not read; if you trust it, set FEDSCAPE_LIMIT=1153433728"):
        datasets.load("femnist")


def test_packed_text_does_not_unpack_without_limit(tmp_path, monkeypatch):
    path = tmp_path / "shakespeare" / "shakespeare_roles.json.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"[" + b" " * (100 * MIB) + b"]"))
    monkeypatch.setenv("FEDSCAPE_DATA", str(tmp_path))
    monkeypatch.setenv("FEDSCAPE_LIMIT", str(8 * MIB))
    with little_memory(), pytest.raises(DataError, match="unpacks to more than the 8,388,608 bytes allowed"):
        datasets.load("shakespeare")


def test_honest_data_that_packs_well_is_read(tmp_path):
    arrays = {"zeros": np.zeros((1000, 100)), "names": np.array(["a", "bcd"]), "empty": np.empty((0, 3), "<f4")}
    arrays["turned"] = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    assert (tmp_path / "a.npz").stat().st_size * 100 < arrays["zeros"].nbytes
    for name, values in read_npz(tmp_path / "a.npz").items():
        assert (values.dtype, values.shape, values.tolist()) == (
            arrays[name].dtype,
            arrays[name].shape,
            arrays[name].tolist(),
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped(x=header((3,), "|O") + bytes(24)), "holds object, which is neither numbers nor texts"),
        (zipped(x=header((4,)) + bytes(24)), r"says float64\[4\], 32 bytes, but has"),
        (zipped(x=header((-1, -4)) + bytes(32)), "is not a readable npz file"),
        (zipped(x=b"no header"), "is not a readable npz file"),
        (b"PK", "is not a readable npz file: File is not a zip file"),
    ],
)
def test_what_a_header_may_say(content, message):
    with pytest.raises(DataError, match=message) as caught:
        read_npz("sent.npz", content)
    assert "\n" not in str(caught.value)


def test_a_limit_that_is_no_number_gets_one_line(monkeypatch):
    monkeypatch.setenv("FEDSCAPE_LIMIT", "2 GB")
    with pytest.raises(DataError, match="FEDSCAPE_LIMIT must be a number of bytes, not '2 GB'"):
        read_npz("sent.npz", bomb(1))
