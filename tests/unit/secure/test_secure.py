"""Secure sums: primitives against published vectors, Shamir against brute force, whole rounds against plain sums."""

from __future__ import annotations

import itertools
import subprocess
import sys
from math import comb
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats
from secure_rounds import cohort, unmasked, up_to_masked, vectors

from fedscape.errors import DataError, PrivacyError, TooFewClients
from fedscape.secure import primitives as p
from fedscape.secure import shamir
from fedscape.secure.parameters import BROKEN, SEARCHED, derive

# -- primitives --------------------------------------------------------------------------------------------------------


def test_x25519_is_that_of_rfc_7748():
    key = point = bytes([9]) + bytes(31)
    for i in range(1000):
        key, point = p.agree(key, point), key
        if i == 0:
            assert key.hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert key.hex() == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_a_public_key_of_low_order_is_refused():
    with pytest.raises(PrivacyError, match="a public key of low order"):
        p.agree(p.random_seed(), bytes(32))


def test_hkdf_is_that_of_rfc_5869():
    key = p.derive_key(b"\x0b" * 22, salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA)))
    assert key.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_chacha20_poly1305_is_that_of_rfc_8439():
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen "
        b"would be it."
    )
    sealed = p.ChaCha20Poly1305(bytes(range(0x80, 0xA0))).encrypt(
        bytes.fromhex("070000004041424344454647"), text, bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    )
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"


def test_what_was_sealed_opens_only_with_its_key_and_what_it_is_bound_to():
    sealed = p.encrypt(bytes(32), b"share", b"round 1")
    assert p.decrypt(bytes(32), sealed, b"round 1") == b"share"
    assert p.decrypt(bytes(32), sealed, b"round 2") is None
    assert p.decrypt(b"\x01" * 32, sealed, b"round 1") is None
    assert p.decrypt(bytes(32), sealed[:-1], b"round 1") is None


def test_ed25519_is_that_of_rfc_8032():
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    assert p.verifier_of(seed).hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert p.sign(seed, b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
        "24655141438e7a100b"
    )
    assert p.is_signed(p.verifier_of(seed), p.sign(seed, b""), b"")
    assert not p.is_signed(p.verifier_of(seed), p.sign(seed, b""), b"other")


def test_aes_in_counter_mode_is_that_of_sp_800_38a():
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(range(0xF0, 0x100)))).encryptor()
    assert stream.update(bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")).hex() == "601ec313775789a5b7a7f504bbf3d228"


@pytest.mark.parametrize("length", [1, 2, 3, 2**14, 2**14 + 1, 2**15 + 5])
def test_masks_are_the_words_of_aes_over_a_counter(length):
    key = bytes(range(32))
    blocks = b"".join(i.to_bytes(16, "big") for i in range(length // 2 + 1))
    wanted = np.frombuffer(Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(blocks), dtype="<u8")[:length]
    numbers = np.full(length, 7, dtype=np.uint64)
    p.add_masks(numbers, [(key, 1)])
    assert np.array_equal(numbers, wanted + np.uint64(7))
    p.add_masks(numbers, [(key, -1)])
    assert (numbers == 7).all()


def test_without_the_package_one_line_names_the_extra():
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import fedscape as fs\n"
        "fed = fs.Federation({'y': [0, 1, 1]}, [0, 1, 2, 3])\n"
        "assert fs.Histogram(2).fit(fed, progress=False).counts_.tolist() == [1, 2]\n"
        "try: import fedscape.secure.protocol\n"
        "except fs.FedscapeError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.count("\n") == 1
    assert "cryptography" in said
    assert "fedscape[flower]" in said


# -- Shamir ------------------------------------------------------------------------------------------------------------


def product(a: int, b: int) -> int:
    """In GF(256), bit by bit."""
    out = 0
    while b:
        out ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return out


def test_the_field_is_that_of_aes():
    assert product(0x57, 0x83) == 0xC1  # FIPS 197, 4.2
    assert all(shamir.PRODUCT[a, b] == product(a, b) for a in range(256) for b in range(256))
    assert all(product(a, int(shamir.INVERSE[a])) == 1 for a in range(1, 256))


def test_a_line_through_two_known_shares():
    assert shamir.join({1: bytes([0x2A ^ 3]), 2: bytes([0x2A ^ product(3, 2)])}) == b"\x2a"  # 0x2a + 3 x


@pytest.mark.parametrize(("threshold", "number"), [(1, 1), (1, 4), (2, 3), (3, 5), (5, 5)])
def test_any_threshold_shares_give_the_secret_back(threshold, number):
    secret = bytes(range(100, 132))
    shares = shamir.split(secret, threshold, range(1, number + 1))
    assert all(len(share) == 32 for share in shares.values())
    for points in itertools.combinations(shares, threshold):
        some = {x: shares[x] for x in points}
        assert shamir.join(some) == secret
        assert all(shamir.join(some, at=x) == shares[x] for x in shares)


def test_one_share_fewer_fits_every_secret_alike():
    for known in ((1, 2), (7, 255)):  # of three that are needed: whatever the third is, another secret comes out
        shares = dict.fromkeys(known, b"\x11")
        assert len({shamir.join({**shares, 3: bytes([third])}) for third in range(256)}) == 256


def test_shares_below_the_threshold_are_uniform():
    drawn = np.array([_two(b"\x05") for _ in range(20_000)])
    counts = np.histogram2d(drawn[:, 0] // 32, drawn[:, 1] // 32, bins=8, range=[[0, 8], [0, 8]])[0]
    assert stats.chisquare(counts.ravel()).pvalue > 5.7e-7  # five standard errors


def _two(secret: bytes) -> tuple[int, int]:
    shares = shamir.split(secret, 3, [1, 2, 3])
    return shares[1][0], shares[2][0]


def test_a_threshold_or_points_that_cannot_be_are_refused():
    with pytest.raises(DataError, match="threshold must be from 1 to the number of shares, 2, not 3"):
        shamir.split(b"s", 3, [1, 2])
    for points in ([0, 1], [1, 1], [1, 256]):
        with pytest.raises(DataError, match="different numbers from 1 to 255"):
            shamir.split(b"s", 2, points)
    with pytest.raises(DataError, match="all of the same length"):
        shamir.join({1: b"a", 2: b"bc"})


# -- parameters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "dropouts", "colluders"), [(100, 0.1, 0.02), (100, 0.3, 0.02), (1000, 0.1, 0.05)])
def test_tails_are_those_of_scipy(n, dropouts, colluders):
    found = derive(n, dropouts=dropouts, colluders=colluders)
    near = stats.hypergeom(n - 1, found.dead, found.neighbours)
    assert n * near.sf(found.dead_near) <= 2.0**-10 < n * near.sf(found.dead_near - 1)
    near = stats.hypergeom(n - 1, found.colluding, found.neighbours)
    assert n * near.sf(found.colluding_near) <= 2.0 ** -(BROKEN + SEARCHED)
    assert n * near.sf(found.colluding_near - 1) > 2.0 ** -(BROKEN + SEARCHED)
    assert found.threshold == found.neighbours - found.dead_near
    assert found.margin >= 1


def test_two_fewer_neighbours_would_not_do():
    for n in (100, 1000):
        k = derive(n, dropouts=0.1, colluders=0.05).neighbours
        with pytest.raises(PrivacyError, match="not safe for a cohort"):
            derive(n, dropouts=0.1, colluders=0.05, neighbours=k - 2)


def test_the_table_of_the_page():
    lines = (Path(__file__).parents[3] / "docs" / "secure-sums.md").read_text().splitlines()
    begin = lines.index("| parties | drop-outs | colluders | k | t | must live | smallest |") + 2
    rows = [line.strip("| ").split(" | ") for line in itertools.takewhile(lambda line: line, lines[begin:])]
    assert len(rows) == 7
    for n, dropouts, colluders, *wanted in rows:
        neighbours = 99 if wanted[0] == "99" else None  # the one row in which it was set by hand
        found = derive(int(n), dropouts=float(dropouts), colluders=float(colluders), neighbours=neighbours)
        assert [found.neighbours, found.threshold, found.least, found.smallest] == [int(number) for number in wanted]


def test_the_numbers_that_the_page_says():
    found = derive(100, dropouts=0.1, colluders=0.02, neighbours=20)
    assert (found.threshold, found.dead_near, found.colluding_near, found.least, found.smallest) == (12, 8, 2, 90, 3)
    assert derive(100, dropouts=0.1, colluders=0.05, neighbours=99).smallest == 75
    assert derive(1000, dropouts=0.1, colluders=0.05).neighbours == 82


@pytest.mark.parametrize("n", [0, 1, 2])
def test_cohorts_that_are_too_small_are_refused(n):
    with pytest.raises(PrivacyError, match=rf"not safe for a cohort of {n} "):
        derive(n, dropouts=0.1, colluders=0.05)


def test_a_threshold_is_neither_too_low_nor_too_high():
    with pytest.raises(PrivacyError, match=r"threshold 11 is not above \(20 \+ 2 colluding neighbours\) / 2"):
        derive(100, dropouts=0.1, colluders=0.02, neighbours=20, threshold=11)
    with pytest.raises(PrivacyError, match="8 neighbours may be dead, so threshold must be from 1 to 12"):
        derive(100, dropouts=0.1, colluders=0.02, neighbours=20, threshold=13)


def test_a_ring_falls_apart_only_where_two_runs_are_bad():
    """The bound on the ring against brute force: every set of bad places on a small ring."""
    n, k, bad = 12, 4, 5
    apart = 0
    for places in itertools.combinations(range(n), bad):
        left = set(range(n)) - set(places)
        seen, edge = set(), [min(left)]
        while edge:
            u = edge.pop()
            if u in seen:
                continue
            seen.add(u)
            edge += [v for s in (-2, -1, 1, 2) if (v := (u + s) % n) in left]
        apart += seen != left
    assert 0 < apart <= comb(n, 2) * comb(n - k, bad - k)


def test_a_lying_server_opens_at_least_the_smallest_sum_on_small_rings():
    """Every set in which each client has h neighbours has at least `smallest` clients: brute force on a ring."""
    n, k = 14, 6
    for h in range(1, k + 1):
        bound = max(h + 1, n // (2 * k + 1 - h) * (h + 1)) if 2 * h > k else h + 1
        for size in range(1, bound):
            for some in itertools.combinations(range(n), size):
                chosen = set(some)
                near = min(sum((u + s) % n in chosen for s in (-3, -2, -1, 1, 2, 3)) for u in chosen)
                assert near < h, (h, some)


# -- rounds ------------------------------------------------------------------------------------------------------------


def test_every_pattern_of_drop_outs_gives_the_plain_sum():
    """Six clients, of which two may be dead: all who never answer, all who share keys and go, all who go at the end."""
    x = vectors(6)
    number = 0
    for gone in itertools.product(("", "early", "late", "silent"), repeat=6):
        sets = {kind: {u for u in range(6) if gone[u] == kind} for kind in ("early", "late", "silent")}
        dead = sets["early"] | sets["late"]
        if len(dead) > 2 or len(dead | sets["silent"]) > 2:
            continue
        clients, frame = cohort(6)
        server = up_to_masked(clients, frame, x, early=sets["early"], late=sets["late"])
        total = unmasked(server, clients, frame, silent=sets["silent"])
        wanted = x[[u for u in range(6) if u not in dead]].sum(axis=0, dtype=np.uint64)
        assert np.array_equal(total, wanted)
        assert not server.liars
        number += 1
    assert number == 1 + 6 * 3 + 15 * 9


@pytest.mark.parametrize("seed", range(6))
def test_random_drop_outs_of_a_hundred_give_the_plain_sum(seed):
    rng = np.random.default_rng(seed)
    clients, frame = cohort(100, dropouts=0.1, colluders=0.02, index=seed)
    assert frame.parameters.neighbours < 30
    gone = rng.permutation(100)[: frame.parameters.dead]
    split = np.sort(rng.integers(0, len(gone) + 1, 2))
    early, late, silent = gone[: split[0]], gone[split[0] : split[1]], gone[split[1] :]
    x = vectors(100, seed=seed)
    server = up_to_masked(clients, frame, x, early=set(early), late=set(late))
    total = unmasked(server, clients, frame, silent=set(silent))
    there = np.setdiff1d(np.arange(100), np.concatenate([early, late]))
    assert np.array_equal(total, x[there].sum(axis=0, dtype=np.uint64))


def test_more_drop_outs_than_allowed_end_the_round_and_open_nothing():
    x = vectors(6)
    clients, frame = cohort(6)
    server = up_to_masked(clients, frame, x, late={0, 1, 2})
    with pytest.raises(TooFewClients, match="3 of 6 clients sent masked sums, 4 must: nothing was opened"):
        server.lists()
    clients, frame = cohort(6)
    server = up_to_masked(clients, frame, x)
    with pytest.raises(TooFewClients, match="neighbours opened a share of one client's mask, 3 true ones are needed"):
        unmasked(server, clients, frame, silent={0, 1, 2})
    before = server._sum.copy()  # still masked by what nobody has opened
    with pytest.raises(TooFewClients):
        server.total()
    assert np.array_equal(server._sum, before)


def test_several_rounds_of_one_run_have_masks_of_their_own():
    clients, frame = cohort(6)
    x = vectors(6)
    seen = []
    for index in range(3):
        again = type(frame)(frame.roster, index, frame.cohort, frame.parameters)
        server = up_to_masked(clients, again, x, late={index})
        seen.append(server._sum.copy())
        total = unmasked(server, clients, again)
        assert np.array_equal(total, np.delete(x, index, axis=0).sum(axis=0, dtype=np.uint64))
    assert len({s.tobytes() for s in seen}) == 3


def test_messages_have_one_law_whatever_the_inputs_of_one_total():
    """The masked vectors of two inputs with one total: joint two-sample test over all clients' low bits."""
    one = np.array([[3], [0], [0], [0]], dtype=np.uint64)
    other = np.array([[0], [1], [2**64 - 5], [7]], dtype=np.uint64)
    counts = np.zeros((2, 4, 4, 4, 4), dtype=int)
    for side, x in enumerate((one, other)):
        for _ in range(600):
            clients, frame = cohort(4, dropouts=0.0)
            received = _shared(clients, frame)
            y = [clients[u].masked_input(frame, x[u], received[u])[0] for u in range(4)]
            counts[(side, *(int(v) % 4 for v in y))] += 1
    for axes in itertools.combinations(range(1, 5), 2):  # pairs of clients
        table = counts.sum(axis=tuple({1, 2, 3, 4} - set(axes))).reshape(2, -1)
        assert stats.chi2_contingency(table).pvalue > 5.7e-7
        assert stats.chisquare(table.sum(axis=0)).pvalue > 5.7e-7
    assert (one.sum(dtype=np.uint64)) == other.sum(dtype=np.uint64)


def test_what_the_server_opens_leaves_only_the_total():
    """All that the server may open taken away, vectors of one total still have one law: only their sum is left."""
    inputs = np.array([[[9], [0], [0]], [[2], [3], [4]]], dtype=np.uint64)
    low = np.zeros((2, 4, 4), dtype=int)
    for side in (0, 1):
        for _ in range(600):
            clients, frame = cohort(3, dropouts=0.0)
            received = _shared(clients, frame)
            self_masks = [frame.key(client.turn.b, "self") for client in clients]
            y = np.array([clients[u].masked_input(frame, inputs[side, u], received[u]) for u in range(3)])
            for u in range(3):
                p.add_masks(y[u], [(self_masks[u], -1)])
            assert y.sum(dtype=np.uint64) == 9
            low[side, int(y[0, 0]) % 4, int(y[1, 0]) % 4] += 1
    assert stats.chi2_contingency(low.reshape(2, -1)).pvalue > 5.7e-7
    assert stats.chisquare(low.sum(axis=0).ravel()).pvalue > 5.7e-7


def _shared(clients, frame):
    shared = [client.share_keys(frame) for client in clients]
    return [{v: (shared[v].public, shared[v].packages[u]) for v in frame.neighbours(u)} for u in range(len(clients))]
