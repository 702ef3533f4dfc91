"""Compiled programs stay in a folder of the user's own, and a second process finds them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from fedscape.learning import LocalSGD, cross_entropy, models
from fedscape.learning.programs import VARIABLE, clear_programs, folder_for, keep_programs, kept_programs
from fedscape.learning.trainer import trainer_of


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSCAPE_PROGRAMS", str(tmp_path / "programs"))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    return tmp_path / "programs"


def test_the_folder_is_for_one_version_of_torch_and_one_device(base):
    folder = keep_programs("NVIDIA H200/7")
    assert folder == base / f"torch-{torch.__version__}-NVIDIA-H200-7"
    assert os.environ[VARIABLE] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert keep_programs("AVX2") == folder_for("AVX2") != folder


def test_where_the_user_says_where_torch_keeps_programs_it_stays_there(base, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert keep_programs("AVX2") is None
    assert os.environ[VARIABLE] == str(tmp_path / "mine")
    assert not base.exists()


def test_the_folder_that_torch_sets_when_it_is_imported_is_no_choice_of_the_user(base):
    call = "import os, torch._dynamo.utils; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    command, env = [sys.executable, "-W", "ignore", "-c", call], {**os.environ, "TMPDIR": tempfile.gettempdir()}
    os.environ[VARIABLE] = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()
    assert keep_programs("AVX2") == folder_for("AVX2")
    assert os.environ[VARIABLE] == str(folder_for("AVX2"))


@pytest.mark.parametrize("which", ["folder", "parent"])
def test_a_folder_that_others_may_write_to_is_not_used(base, which):
    folder = folder_for("AVX2")
    folder.mkdir(parents=True)
    (folder if which == "folder" else base).chmod(0o777)
    assert keep_programs("AVX2") is None
    assert VARIABLE not in os.environ


def test_a_folder_that_cannot_be_made_is_no_error(base):
    base.write_text("a file")
    assert keep_programs("AVX2") is None


def test_only_programs_are_deleted(base):
    (keep_programs("AVX2") / "code").write_bytes(b"12345")
    (base / "notes.txt").write_text("mine")
    assert kept_programs() == {folder_for("AVX2").name: 5}
    assert clear_programs() == 5
    assert [p.name for p in base.iterdir()] == ["notes.txt"]


def test_a_trainer_that_compiles_nothing_touches_no_folder(base):
    for strategy in ("sequential", "vmap", "auto"):
        trainer_of(LocalSGD(models.linear(4, 2), cross_entropy, lr=0.1, epochs=1, batch_size=2, strategy=strategy))
    assert VARIABLE not in os.environ
    assert not base.exists()


PROCESS = """
import hashlib, json, numpy as np, fedscape as fs
from fedscape.learning import FedAvg, cross_entropy, models
fed = fs.Federation({"x": np.random.default_rng(0).normal(size=(12, 4)), "y": [0, 1] * 6}, [0, 6, 12])
local = fs.LocalSGD(models.linear(4, 2), cross_entropy, lr=0.1, epochs=1, batch_size=6, strategy="compiled")
*_, last = fs.rounds(FedAvg(local), fs.Local(fed, threads=1), n_rounds=2, measure=0)
from torch._dynamo.utils import counters
found = {n: counters["inductor"]["fxgraph_cache_" + n] for n in ("hit", "miss")}
print(json.dumps({**found, "bytes": b"".join(v.tobytes() for v in last.state.values()).hex()}))
"""


def test_a_second_process_finds_the_programs_of_the_first_and_ends_with_the_same_bytes(base):
    def run() -> dict:
        source = str(Path(__file__).parents[3] / "src")
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run([sys.executable, "-c", PROCESS], env=env, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    first, second = run(), run()
    assert first["miss"] > 0
    assert first["hit"] == 0
    assert (second["hit"], second["miss"]) == (first["miss"], 0)
    assert second["bytes"] == first["bytes"]
    assert sum(kept_programs().values()) > 0
