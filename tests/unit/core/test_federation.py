from __future__ import annotations

import numpy as np
import pytest

from fedscape import DataError, Federation
from fedscape.core.arrays import Ragged, group_rows, segment_count, segment_count_twin, segment_sum, segment_sum_twin


def random_federation(seed: int = 0, n: int = 40) -> Federation:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 9, n))))
    rows = offsets[-1]
    return Federation({"x": rng.normal(size=(rows, 2, 3)), "y": rng.integers(0, 4, rows)}, offsets)


def test_grouping_keeps_the_order_of_a_clients_rows():
    rng = np.random.default_rng(0)
    who = rng.integers(0, 50, 2_000)
    fed = Federation.from_arrays({"row": np.arange(2_000)}, clients=who)
    assert fed.ids.tolist() == sorted(set(who.tolist()))
    for i, client in enumerate(fed.ids):
        assert fed.take([i])["row"].tolist() == np.flatnonzero(who == client).tolist()


def test_rows_that_lie_together_are_not_moved_or_copied():
    x = np.arange(6.0)
    fed = Federation.from_arrays({"x": x}, clients=["b", "b", "b", "a", "a", "a"])
    assert fed.ids.tolist() == ["b", "a"]
    assert np.shares_memory(fed["x"], x)


def test_texts_and_numbers_group_alike():
    who = np.random.default_rng(1).integers(10, 99, 500)
    by_number = Federation.from_arrays({"row": np.arange(500)}, clients=who)
    by_text = Federation.from_arrays({"row": np.arange(500)}, clients=who.astype(str))
    assert by_number.offsets.tolist() == by_text.offsets.tolist()
    assert by_number["row"].tolist() == by_text["row"].tolist()


def test_counting_sort_equals_stable_argsort():
    codes = np.random.default_rng(2).integers(0, 30, 3_000)
    begin = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=30))))[:-1]
    assert (group_rows(codes, begin.copy()) == np.argsort(codes, kind="stable")).all()


def test_clients_without_rows_are_kept_where_named():
    fed = Federation.from_arrays({"y": [1, 2]}, clients=["b", "a"], ids=["a", "none", "b"])
    assert fed.sizes.tolist() == [1, 0, 1]
    assert fed["y"].tolist() == [2, 1]


def test_a_federation_without_clients_or_rows_is_normal():
    assert len(Federation({"x": np.empty((0, 3))}, [0])) == 0
    assert Federation.from_arrays({"y": []}, clients=[]).n_rows == 0


def test_texts_become_codes_with_names():
    fed = Federation({"carrier": ["UA", "AA", "UA"]}, [0, 3])
    assert fed["carrier"].tolist() == [1, 0, 1]
    assert fed.names["carrier"] == ("AA", "UA")
    assert fed.counts("carrier").tolist() == [[1, 2]]


def test_columns_and_attributes_cannot_be_changed():
    fed = random_federation()
    with pytest.raises(ValueError, match="read-only"):
        fed["y"][0] = 3
    with pytest.raises(AttributeError, match="immutable"):
        fed.offsets = np.array([0])
    with pytest.raises(TypeError):
        fed.columns["y"] = np.zeros(3)


def test_take_by_position_mask_slice_and_id_agree():
    fed = random_federation()
    mask = np.zeros(len(fed), dtype=bool)
    mask[5:9] = True
    by_slice = fed.take(slice(5, 9))
    for other in (fed.take([5, 6, 7, 8]), fed.take(mask), fed.take(fed.positions([5, 6, 7, 8]))):
        assert other["x"].tobytes() == by_slice["x"].tobytes()
        assert other.offsets.tolist() == by_slice.offsets.tolist()
    assert np.shares_memory(by_slice["x"], fed["x"])
    assert fed.take(slice(9, 5)).n_rows == 0
    assert fed.take([]).n_rows == 0
    assert fed.take(slice(0, 9, 3)).ids.tolist() == [0, 3, 6]


def test_take_in_another_order_brings_the_rows_along():
    fed = random_federation()
    part = fed.take([7, 2])
    assert part["y"].tolist() == [*fed.take([7])["y"], *fed.take([2])["y"]]
    assert fed.client(7)["y"].tolist() == fed.take([7])["y"].tolist()


def test_where_keeps_all_clients():
    fed = random_federation()
    part = fed.where(fed["y"] == 1)
    assert part.sizes.tolist() == fed.counts("y", 4)[:, 1].tolist()
    assert len(part) == len(fed)


def test_split_is_exact_disjoint_and_independent_of_order():
    fed = random_federation(n=200).with_column("row", np.arange(random_federation(n=200).n_rows))
    train, test = fed.split(test=0.25, seed=4)
    assert sorted([*train["row"], *test["row"]]) == list(range(fed.n_rows))
    expected = np.minimum(np.floor(fed.sizes * 0.25 + 0.5), np.maximum(fed.sizes - 1, 0))
    assert test.sizes.tolist() == expected.tolist()
    order = np.random.default_rng(0).permutation(len(fed))
    again = fed.take(order).split(test=0.25, seed=4)[1]
    assert sorted(again["row"].tolist()) == sorted(test["row"].tolist())
    assert sorted(fed.split(test=0.25, seed=5)[1]["row"].tolist()) != sorted(test["row"].tolist())


def test_split_chooses_each_row_equally_often():
    fed = Federation({"row": np.tile(np.arange(5), 4_000)}, np.arange(0, 20_001, 5))
    seen = np.bincount(fed.split(test=0.2, seed=1)[1]["row"], minlength=5)
    assert seen.sum() == 4_000
    assert np.abs(seen - 800).max() < 5 * np.sqrt(4_000 * 0.2 * 0.8)


def test_split_clients_is_exact_and_disjoint():
    fed = random_federation(n=31)
    train, test = fed.split_clients(test=0.3, seed=2)
    assert sorted([*train.ids, *test.ids]) == list(range(31))
    assert len(test) == 9


def test_counts_against_a_plain_loop_and_its_twin():
    fed = random_federation()
    plain = [[int((fed.take([i])["y"] == c).sum()) for c in range(6)] for i in range(len(fed))]
    assert fed.counts("y", n_categories=6).tolist() == plain
    assert (segment_count(fed["y"], fed.offsets, 4) == segment_count_twin(fed["y"], fed.offsets, 4)).all()


def test_ready_counts_are_added():
    fed = Federation({"y": [[1, 2], [3, 0], [0, 5]]}, [0, 2, 2, 3])
    assert fed.counts("y").tolist() == [[4, 2], [0, 0], [0, 5]]


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int32, np.uint8, bool])
def test_segment_sum_equals_its_twin(kind):
    fed = random_federation()
    rows = (fed["x"] * 3).astype(kind)
    assert segment_sum(rows, fed.offsets) == pytest.approx(segment_sum_twin(rows, fed.offsets))
    assert (segment_sum(rows[:, 0, 0], fed.offsets)[fed.sizes == 0] == 0).all()


def test_bin_puts_each_value_between_its_edges():
    fed = Federation({"v": [0.0, 4.9, 5.0, 1e9]}, [0, 4]).bin("v", [0, 5, np.inf], name="bin")
    assert fed["bin"].tolist() == [0, 0, 1, 1]
    assert fed.names["bin"] == ("[0, 5)", "[5, inf)")


def test_concat_puts_clients_one_after_the_other():
    fed = random_federation()
    again = Federation.concat([fed.take(slice(0, 10)), fed.take(slice(10, None))])
    assert again["x"].tobytes() == fed["x"].tobytes()
    assert again.offsets.tolist() == fed.offsets.tolist()


def test_kept_arrays_follow_their_clients():
    kept = {"z": Ragged(np.arange(5), np.array([0, 2, 2, 5]))}
    fed = Federation({}, [0, 0, 0, 0]).with_kept(kept)
    assert fed.take([2, 0]).kept["z"].flat.tolist() == [2, 3, 4, 0, 1]


def test_fingerprint_tells_clients_apart_and_not_values():
    fed = random_federation()
    assert fed.fingerprint() == random_federation().fingerprint()
    assert fed.fingerprint() != fed.take(slice(0, 39)).fingerprint()


BAD = {
    "a negative category": (lambda: Federation({"y": [0, -3]}, [0, 2]).counts("y", 5), "category -3 in row 1"),
    "a missing text": (lambda: Federation({"y": [0, -1]}, [0, 2]).counts("y", 5), "-1 marks a missing text"),
    "a fractional category": (lambda: Federation({"y": [0.0, 1.5]}, [0, 2]).counts("y", 5), "1.5 in row 1"),
    "NaN as a category": (lambda: Federation({"y": [np.nan]}, [0, 1]).counts("y", 5), "nan in row 0"),
    "a negative count": (lambda: Federation({"y": [[1, -2]]}, [0, 1]).counts("y"), "count -2 in row 0"),
    "a category too large": (lambda: Federation({"y": [7]}, [0, 1]).counts("y", 5), "raise n_categories to 8"),
    "an unknown column": (lambda: Federation({"y": [7]}, [0, 1])["z"], "no column 'z'; the columns are: 'y'"),
    "duplicate ids": (lambda: Federation({}, [0, 0, 0], ids=["a", "a"]), "'a' stands for 2 clients"),
    "ids of another number": (lambda: Federation({}, [0, 0], ids=["a", "b"]), "2 ids"),
    "fractional ids": (lambda: Federation({}, [0, 0], ids=[0.5]), "ids must be whole numbers or texts"),
    "offsets that fall": (lambda: Federation({"y": [1, 2]}, [0, 2, 1]), "never fall"),
    "a column of another length": (lambda: Federation({"y": [1, 2]}, [0, 3]), "2 rows, but the offsets end at 3"),
    "a missing client": (lambda: Federation.from_arrays({"y": [1, 2]}, clients=["a", None]), "the first in row 1"),
    "a NaN client": (lambda: Federation.from_arrays({"y": [1, 2]}, clients=[np.nan, 1.0]), "1 missing values"),
    "a fractional client": (lambda: Federation.from_arrays({"y": [1]}, clients=[0.5]), "whole numbers or texts"),
    "a client not among ids": (lambda: Federation.from_arrays({"y": [1]}, clients=["z"], ids=["a"]), "'z' has rows"),
    "mixed types": (lambda: Federation({"y": np.array([1, "a"], dtype=object)}, [0, 2]), "mixes types (int, str)"),
    "lists of different length": (lambda: Federation({"y": [[1], [1, 2]]}, [0, 2]), "is not one array"),
    "a nameless column": (lambda: Federation({"": [1]}, [0, 1]), "at least one character"),
    "complex numbers": (lambda: Federation({"y": [1j]}, [0, 1]), "numbers or texts, not complex"),
    "names for no column": (lambda: Federation({}, [0], names={"y": ["a"]}), "which is no column"),
    "a position too large": (lambda: Federation({}, [0, 0]).take([1]), "from 0 to 0"),
    "a position twice": (lambda: Federation({}, [0, 0, 0]).take([1, 1]), "only once"),
    "ids as positions": (lambda: Federation({}, [0, 0], ids=["a"]).take(["a"]), "positions(ids) finds ids"),
    "an unknown id": (lambda: Federation({}, [0, 0], ids=["a"]).client("b"), "no client 'b'"),
    "a mask of rows too short": (lambda: Federation({"y": [1, 2]}, [0, 2]).where([True]), "each of the 2 rows"),
    "a share above one": (lambda: Federation({"y": [1]}, [0, 1]).split(test=1.5), "not 1.5"),
    "one client to split": (lambda: Federation({"y": [1]}, [0, 1]).split_clients(), "at least two clients"),
    "a value outside the edges": (lambda: Federation({"y": [9.0]}, [0, 1]).bin("y", [0, 5]), "9.0 in row 0"),
    "edges that fall": (lambda: Federation({"y": [9.0]}, [0, 1]).bin("y", [5, 0]), "rising numbers"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_input_gets_one_clear_line(case):
    call, message = BAD[case]
    with pytest.raises(DataError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_ready_counts_that_do_not_fit_are_refused():
    fed = Federation({"y": np.array([[2 * 10**9, 1]] * 2)}, [0, 2])
    with pytest.raises(DataError, match=r"column 'y' has a count of 4,000,000,000: the largest is 2\*\*31 - 1"):
        fed.counts("y")


def test_counts_of_values_that_are_no_codes_are_refused_before_memory_is_taken():
    fed = Federation({"y": (np.arange(2000) % 40 + 1) * 25_000}, np.arange(0, 2001, 2))  # 40 of a million codes
    with pytest.raises(DataError, match=r"40 values up to 1,000,000.*would take 4.0 GB.*coded\('y'\)"):
        fed.counts("y")
    with pytest.raises(DataError, match=r"coded\('y'\)"):
        Federation({"y": [10**9, 10**9 + 1]}, [0, 1, 2]).counts("y")
    assert fed.coded("y").counts("y").shape[0] == 1000
