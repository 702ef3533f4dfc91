"""Damaged population files: read, or refused with one line; never anything else."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from fedscape import FedscapeError, MixtureOfDirichletMultinomials

FUZZ = int(os.environ.get("FEDSCAPE_FUZZ", "300"))


def damaged(whole: bytes, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.3:
        return whole[: rng.randrange(len(whole))]
    if kind < 0.4:
        return rng.randbytes(rng.randrange(200))
    body = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(body))
        body[place : place + rng.randint(0, 4)] = rng.randbytes(rng.randint(0, 4))
    return bytes(body)


@pytest.mark.parametrize("ending", ["json", "npz"])
def test_a_damaged_population_is_read_or_refused_in_one_line(tmp_path, ending):
    counts = np.random.default_rng(0).multinomial(20, [0.5, 0.3, 0.2], 60)
    MixtureOfDirichletMultinomials(2, rounds=3).fit(counts).save(tmp_path / "p.json")
    target = tmp_path / f"p.{ending}"
    whole, rng, refused = target.read_bytes(), random.Random(0), 0
    for _ in range(FUZZ):
        target.write_bytes(damaged(whole, rng))
        try:
            MixtureOfDirichletMultinomials.load(tmp_path / "p.json")
        except FedscapeError as error:
            refused += 1
            assert len(str(error).splitlines()) == 1  # noqa: PT017
    assert refused > FUZZ / 2
