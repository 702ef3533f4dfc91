"""The command line on Ray: the same results as without it, and one-line errors."""

from __future__ import annotations

import json

from shell import ok, refused


def test_fit_on_ray_gives_the_population_of_local(tmp_path):
    how = ["fit", "acs-race", "--components", "2", "--rounds", 4, "--quiet", "--json"]
    here = json.loads(ok(*how, "--out", tmp_path / "here.json"))
    there = json.loads(ok(*how, "--out", tmp_path / "there.json", "--engine", "ray", "--workers", 2))
    assert here == there
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()


def test_engines_that_do_not_exist_or_do_not_answer_are_one_line():
    assert "--engine must be local or ray, not 'spark'" in refused(2, "fit", "acs-race", "--engine", "spark")
    assert "go with --engine ray" in refused(2, "fit", "acs-race", "--workers", 2)
    gone = ("train", "femnist-mini", "--model", "linear", "--engine", "ray", "--address", "127.0.0.1:1")
    assert "no Ray cluster answers at '127.0.0.1:1'" in refused(1, *gone, RAY_gcs_rpc_server_reconnect_timeout_s="1")
