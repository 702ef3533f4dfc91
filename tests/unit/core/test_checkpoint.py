from __future__ import annotations

import errno
import hashlib
import os
import random
import resource
import stat
import subprocess
import sys

import numpy as np
import pytest

from fedscape import Federation, Histogram, rounds
from fedscape.core.checkpoint import read, replace_file, write
from fedscape.errors import CheckpointError

FUZZ = int(os.environ.get("FEDSCAPE_FUZZ", "500"))
ARRAYS = {
    "a": np.arange(6.0).reshape(2, 3),
    "empty": np.empty((0, 4), dtype=np.float32),
    "scalar": np.array(3),
    "text": np.array(["é", "xyz"]),
    "flag": np.array([True, False]),
}


def test_arrays_and_header_come_back_exactly(tmp_path):
    write(tmp_path / "c", ARRAYS, {"round": 3, "nested": {"x": [1, 2]}})
    arrays, header = read(tmp_path / "c")
    assert header == {"round": 3, "nested": {"x": [1, 2]}}
    for name, values in ARRAYS.items():
        assert arrays[name].dtype == values.dtype
        assert arrays[name].shape == values.shape
        assert arrays[name].tobytes() == values.tobytes()
        arrays[name][...] = arrays[name]  # can be written to


def test_every_truncation_and_every_changed_byte_is_refused(tmp_path):
    path = tmp_path / "c"
    write(path, ARRAYS, {"round": 3})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(CheckpointError, match=r"torn or damaged|not a fedscape checkpoint"):
            read(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=r"torn or damaged|not a fedscape checkpoint"):
            read(path)


def forged(text: bytes, tail: bytes = b"") -> bytes:
    body = b"fedscape 1\n" + len(text).to_bytes(8, "little") + text + tail
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "content",
    [
        forged(b'{"arrays": [{"name": "a", "dtype": "<f8", "shape": [1000000000000]}], "header": {}}'),
        forged(b'{"arrays": [{"name": "a", "dtype": "|O", "shape": [1]}], "header": {}}', b"12345678"),
        forged(b'{"arrays": [{"name": "a", "dtype": "<f8", "shape": [-1]}], "header": {}}'),
        forged(b'{"arrays": [], "header": {}}', b"left over"),
        forged(b"not json"),
        forged(b'{"header": {}}'),
        forged(b"[" * 100_000),
    ],
    ids=["a bomb", "an object", "a negative shape", "left over", "no JSON", "no arrays", "deep nesting"],
)
def test_a_forged_file_is_refused_before_anything_is_allocated(tmp_path, content):
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a checkpoint this version can read") as error:
        read(tmp_path / "c")
    assert "\n" not in str(error.value)


def test_damage_with_a_right_checksum_is_read_or_refused_in_one_line(tmp_path):
    """What no accident makes, but a forger can: bytes changed anywhere, and the checksum made right again."""
    path, rng = tmp_path / "c", random.Random(0)
    write(path, ARRAYS, {"round": 3})
    whole = path.read_bytes()[:-32]
    refused = 0
    for _ in range(FUZZ):
        body = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(11, len(body))
            body[place : place + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
        path.write_bytes(bytes(body) + hashlib.sha256(body).digest())
        try:
            arrays, _ = read(path)
            assert sum(v.nbytes for v in arrays.values()) <= len(body)
        except CheckpointError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1  # noqa: PT017
    assert refused > FUZZ / 2


def test_a_run_whose_header_lacks_something_is_refused(tmp_path):
    fed = Federation({"y": [0, 1]}, [0, 1, 2])
    next(rounds(Histogram(2), fed, n_rounds=2)).save(tmp_path / "run")
    arrays, header = read(tmp_path / "run")
    for lost in ("run", "next", "notes"):
        write(tmp_path / "run", arrays, {name: value for name, value in header.items() if name != lost})
        with pytest.raises(CheckpointError, match="lacks"):
            rounds(Histogram(2), fed, n_rounds=2, resume=tmp_path / "run")
    write(tmp_path / "run", arrays, {"kind": "population"})
    with pytest.raises(CheckpointError, match="not the checkpoint of a run"):
        rounds(Histogram(2), fed, n_rounds=2, resume=tmp_path / "run")


def test_a_missing_file_and_an_object_array_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        read(tmp_path / "none")
    with pytest.raises(CheckpointError, match="'x' of type object cannot be saved"):
        write(tmp_path / "c", {"x": np.array([None])}, {})


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    write(tmp_path / "c", {"x": np.arange(3)}, {"round": 1})

    def full(file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CheckpointError, match="No space left on device; what was there is unchanged"):
        replace_file(tmp_path / "c", full)
    assert read(tmp_path / "c")[1] == {"round": 1}
    assert os.listdir(tmp_path) == ["c"]


def test_a_write_that_the_system_cuts_off_leaves_the_old_file(tmp_path):
    """The same with a real limit on the size of files, in a process of its own."""
    write(tmp_path / "c", {"x": np.arange(3)}, {"round": 1})
    code = (
        "import resource, signal, sys, numpy as np\n"
        "from fedscape.errors import CheckpointError\n"
        "from fedscape.core.checkpoint import write\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, {resource.RLIM_INFINITY}))\n"
        "try: write(sys.argv[1], {'x': np.zeros(1_000_000)}, {})\n"
        "except CheckpointError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large" in done.stdout
    assert read(tmp_path / "c")[1] == {"round": 1}
    assert os.listdir(tmp_path) == ["c"]


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written: No such file or directory"):
        write(tmp_path / "none" / "c", {}, {})
    with pytest.raises(CheckpointError, match="cannot be written: Is a directory"):
        write(tmp_path, {}, {})


def test_a_read_only_folder_is_said_in_one_line_and_nothing_is_left(tmp_path, monkeypatch):
    write(tmp_path / "c", {"x": np.arange(3)}, {"round": 1})

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(
        "fedscape.core.checkpoint.tempfile.mkstemp", refuse
    )  # root may write anywhere: the system's answer is made
    with pytest.raises(CheckpointError, match="cannot be written: Read-only file system; what was there is unchanged"):
        write(tmp_path / "c", {}, {})
    assert read(tmp_path / "c")[1] == {"round": 1}
    assert os.listdir(tmp_path) == ["c"]


def test_a_secret_is_for_its_owner_alone(tmp_path):
    write(tmp_path / "s", {}, {}, secret=True)
    write(tmp_path / "open", {}, {})
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) & 0o400
