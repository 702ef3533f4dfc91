"""The embedded data, the full files where FEDSCAPE_DATA names them, and what is said when something is missing."""

from __future__ import annotations

import gc
import gzip
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscape import datasets
from fedscape.core.federation import Federation
from fedscape.datasets.catalogue import CATALOGUE
from fedscape.datasets.loading import EMBEDDED
from fedscape.errors import DataError, MissingExtraError

ROOT = Path(__file__).resolve().parents[3]
FOLDER = os.environ.get("FEDSCAPE_DATA")
MINI = [name for name, entry in CATALOGUE.items() if entry.embedded]
FULL = [name for name, entry in CATALOGUE.items() if not entry.embedded]
full = pytest.mark.skipif(not FOLDER, reason="FEDSCAPE_DATA is not set")


def arrays_of(fed: Federation) -> list[np.ndarray]:
    return [*fed.columns.values(), fed.offsets, fed.ids]


def refusal(name: str) -> str:
    with pytest.raises(DataError) as caught:
        datasets.load(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def distance_to_all(counts: np.ndarray) -> float:
    """The mean total variation distance of the clients' histograms to the histogram of all."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(0.5 * np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that FEDSCAPE_DATA names."""
    monkeypatch.setenv("FEDSCAPE_DATA", str(tmp_path))
    return tmp_path


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, dtype=">u4").tobytes()
    return gzip.compress(head + values.astype(np.uint8).tobytes())


# -- every set --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MINI, *(pytest.param(name, marks=full) for name in FULL)])
def test_a_set_is_what_its_info_says(name: str) -> None:
    fed, known = datasets.load(name), datasets.info(name)
    assert (len(fed), fed.n_rows) == (known["clients"], known["rows"])
    assert known["size"] > 0
    assert known["embedded"] == (name in MINI)
    assert all(known[key] for key in ("description", "licence", "citation", "files"))
    assert len(set(fed.ids.tolist())) == len(fed)
    for column, texts in fed.names.items():
        values = fed[column]
        assert len(set(texts)) == len(texts)
        assert values.shape[1] == len(texts) if values.ndim == 2 else 0 <= values.min() <= values.max() < len(texts)


@pytest.mark.parametrize("name", [*MINI, *(pytest.param(name, marks=full) for name in FULL)])
def test_arrays_are_read_only_and_shared(name: str) -> None:
    fed = datasets.load(name)
    assert datasets.load(name) is fed
    for array in arrays_of(fed):
        with pytest.raises(ValueError, match="read-only"):
            array[:1] = array[:1]


def test_names_lists_the_embedded_sets_first() -> None:
    assert datasets.names() == MINI + FULL
    assert {"femnist-mini", "femnist-labels", "acs-mini", "acs-race", "acs-income"} <= set(MINI)


def test_embedded_files_are_small_and_have_their_licence_written_down() -> None:
    files = [path for path in EMBEDDED.iterdir() if path.name != "LICENCES.md"]
    assert sum(path.stat().st_size for path in files) <= 2_500_000
    licences = (EMBEDDED / "LICENCES.md").read_text(encoding="utf-8")
    assert {path.name for path in files} == {file for name in MINI for file in CATALOGUE[name].files}
    assert all(f"`{path.name}`" in licences for path in files)


def test_the_list_is_there_without_heavy_imports() -> None:
    script = (
        "import sys, fedscape.datasets as d; d.names(); print({'pyarrow', 'scipy', 'PIL', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# -- the embedded sets against facts measured elsewhere ---------------------------------------------------------------


def test_femnist_mini_has_both_campaigns_and_the_labels_counted_in_femnist_labels() -> None:
    fed, labels = datasets.load("femnist-mini"), datasets.load("femnist-labels")
    assert sum(writer < "f1500" for writer in fed.ids.tolist()) == 15
    np.testing.assert_array_equal(fed.counts("y"), labels.take(labels.positions(fed.ids)).counts("y"))
    assert fed["x"].shape[1:] == (28, 28)
    assert fed["x"].dtype == fed["y"].dtype == np.uint8
    assert (fed["x"][:, 0, :] == 255).mean() > 0.9  # the paper is white
    assert (fed.names["y"][0], fed.names["y"][10], fed.names["y"][36], fed.names["y"][61]) == ("0", "A", "a", "z")


def test_femnist_labels_agree_with_the_published_totals() -> None:
    counts = datasets.load("femnist-labels").counts("y")
    assert counts.sum() == 814_255
    assert (counts.sum(axis=1).min(), counts.sum(axis=1).max()) == (18, 583)
    assert distance_to_all(counts) == pytest.approx(0.263, abs=5e-4)


@pytest.mark.parametrize(("name", "distance"), [("acs-race", 0.220), ("acs-income", 0.125)])
def test_census_histograms_have_the_measured_heterogeneity(name: str, distance: float) -> None:
    fed = datasets.load(name)
    assert distance_to_all(fed.counts("y")) == pytest.approx(distance, abs=5e-4)
    assert fed["y"].dtype == np.int32
    assert fed.ids[0] == "01-00100"


def test_income_bins_are_named_as_bin_names_them() -> None:
    edges = [*range(0, 200_001, 5000), np.inf]
    binned = Federation({"income": [1.0]}, [0, 1]).bin("income", edges)
    assert datasets.load("acs-income").names["y"] == binned.names["income"]


def test_acs_mini_keeps_the_gaps_of_the_source() -> None:
    fed, races = datasets.load("acs-mini"), datasets.load("acs-race")
    np.testing.assert_array_equal(np.isnan(fed["PINCP"]), fed["AGEP"] < 15)
    assert np.isnan(fed["WKHP"]).sum() == 5_163
    assert (fed.sizes == 400).all()
    np.testing.assert_array_equal(fed["race"] + 1, fed["RAC1P"])
    assert fed.names["race"] == races.names["y"]
    everybody = races.take(races.positions(fed.ids)).counts("y")
    assert (fed.counts("race") <= everybody).all()  # the same regions, of which these are a part


def test_flights_mini_is_nested_in_aircraft() -> None:
    fed = datasets.load("flights-mini")
    flights = fed.counts("tailnum")  # [carriers, aircraft]
    assert (flights > 0).sum(axis=1).max() <= 12
    assert flights.max() <= 30
    assert len(fed.names["tailnum"]) == 154
    assert set(fed.names["origin"]) == {"EWR", "JFK", "LGA"}
    assert (np.isnan(fed["seats"]).sum(), np.isnan(fed["plane_year"]).sum()) == (420, 450)
    assert np.corrcoef(fed["dep_delay"], fed["arr_delay"])[0, 1] > 0.8


def test_shakespeare_windows_are_the_text_cut_by_hand() -> None:
    fed = datasets.load("shakespeare-mini")
    alphabet = fed.names["y"]
    with gzip.open(EMBEDDED / "shakespeare_mini.json.gz", "rt", encoding="utf-8") as stream:
        roles = json.load(stream)
    for role in (roles[0], roles[20], roles[-1]):
        text = " ".join(role["speeches"]).replace("\n", " ")
        one = fed.client(f"{role['play']}/{role['role']}")
        assert one.n_rows == len(text) - 80
        for row in (0, 17, one.n_rows - 1):
            assert "".join(alphabet[code] for code in one["x"][row]) == text[row : row + 80]
            assert alphabet[one["y"][row]] == text[row + 80]
    assert "hamlet/HAMLET" in fed.ids


# -- the full files ----------------------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize("name", ["femnist", "acs", "flights", "shakespeare"])
def test_a_mini_set_has_the_form_of_its_full_set(name: str) -> None:
    mini, whole = datasets.load(f"{name}-mini"), datasets.load(name)
    assert {c: (v.dtype, v.shape[1:]) for c, v in mini.columns.items()} == {
        c: (v.dtype, v.shape[1:]) for c, v in whole.columns.items()
    }
    assert mini.names.keys() == whole.names.keys()
    if name != "acs":  # two of its five states lie beyond the full file
        assert set(mini.ids.tolist()) <= set(whole.ids.tolist())
    if name == "femnist":
        part = whole.take(whole.positions(mini.ids))
        np.testing.assert_array_equal(part["x"], mini["x"])
        np.testing.assert_array_equal(part["y"], mini["y"])


@full
def test_full_sets_agree_with_facts_measured_elsewhere() -> None:
    flights = datasets.load("flights")
    assert (flights.client("OO").n_rows, flights.client("UA").n_rows) == (29, 57_782)
    assert (flights.counts("tailnum") > 0).sum() == 4_054
    available = datasets.load("phones")["available"].reshape(723, 241)
    assert (available == 1).sum() / (available >= 0).sum() == pytest.approx(0.081, abs=5e-4)
    races = datasets.load("acs-race")
    persons = datasets.load("acs")
    np.testing.assert_array_equal(persons.counts("race"), races.take(races.positions(persons.ids)).counts("y"))
    chem = datasets.load("chem97")
    assert (chem.sizes.min(), chem.sizes.max(), len(np.unique(chem["school"]))) == (10, 969, 2_410)


@full
def test_full_images_are_decoded_right() -> None:
    mnist = datasets.load("mnist")
    assert mnist["y"][:5].tolist() == [5, 0, 4, 1, 9]
    assert np.bincount(mnist["split"]).tolist() == [60_000, 10_000]
    assert mnist["x"][:60_000].mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert set(datasets.load("fashion-mnist")["split"].tolist()) == {1}
    cifar = datasets.load("cifar10")
    assert np.bincount(cifar["y"]).tolist() == [6_000] * 10
    train = cifar["x"][cifar["split"] == 0]
    np.testing.assert_allclose(train.mean(axis=(0, 1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=2e-3)


@full
def test_the_embedded_files_can_be_made_anew(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("embed_data", ROOT / "tools" / "embed_data.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for path in tool.embed(Path(FOLDER or "") / "small", tmp_path):
        if path.suffix == ".npz":
            with np.load(path) as made, np.load(EMBEDDED / path.name, allow_pickle=False) as stored:
                assert made.files == stored.files
                assert all(np.array_equal(made[key], stored[key]) for key in made.files)
        elif path.suffix == ".parquet":
            assert pq.read_table(path).equals(pq.read_table(EMBEDDED / path.name))
        else:
            assert gzip.decompress(path.read_bytes()) == gzip.decompress((EMBEDDED / path.name).read_bytes())


# -- the readers on small files made by hand ---------------------------------------------------------------------------


def test_idx_images_of_one_client_with_a_split(folder: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {name: rng.integers(0, 256, (n, 28, 28), dtype=np.uint8) for name, n in (("train", 5), ("t10k", 2))}
    for name, x in parts.items():
        put(folder / "mnist" / f"{name}-images-idx3-ubyte.gz", idx(x))
        put(folder / "mnist" / f"{name}-labels-idx1-ubyte.gz", idx(np.arange(len(x))))
    fed = datasets.load("mnist")
    assert fed.ids.tolist() == ["0"]
    assert fed["split"].tolist() == [0] * 5 + [1] * 2
    assert fed["y"].tolist() == [0, 1, 2, 3, 4, 0, 1]
    np.testing.assert_array_equal(fed["x"], np.concatenate([parts["train"], parts["t10k"]]))


def test_jpeg_images_need_pillow_and_are_decoded_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "test"):
        streams = []
        for shade in (0, 255):
            stream = io.BytesIO()
            image.new("RGB", (32, 32), (shade, shade, shade)).save(stream, format="JPEG")
            streams.append(stream.getvalue())
        (folder / "cifar10").mkdir(exist_ok=True)
        blob = np.frombuffer(b"".join(streams), dtype=np.uint8)
        offset = np.cumsum([0, *map(len, streams)], dtype=np.uint32)
        np.savez(
            folder / "cifar10" / f"cifar10_{part}_jpeg.npz", blob=blob, offset=offset, y=np.array([1, 7], np.uint8)
        )
    fed = datasets.load("cifar10")
    assert fed["x"].shape == (4, 32, 32, 3)
    assert fed["x"].mean(axis=(1, 2, 3)).tolist() == [0, 255, 0, 255]
    assert fed["split"].tolist() == [0, 0, 1, 1]
    del fed
    gc.collect()
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingExtraError, match="pip install pillow"):
        datasets.load("cifar10")


def test_csv_files_are_grouped_by_client_with_texts_as_codes(folder: Path) -> None:
    put(
        folder / "hierarchical" / "radon.csv.gz",
        gzip.compress(
            b"log.radon,basement,uranium,county,county.name\n0.5,1,-0.1,2,CLAY\n1.5,0,-0.2,1,AITKIN\n,0,0.3,2,CLAY\n"
        ),
    )
    fed = datasets.load("radon")
    assert fed.ids.tolist() == ["AITKIN", "CLAY"]
    np.testing.assert_array_equal(fed["log.radon"], [1.5, 0.5, np.nan])
    put(
        folder / "hierarchical" / "Chem97.csv.gz",
        gzip.compress(b"lea,school,score,gender,age,gcsescore\n9,1,4,M,3,6.625\n9,2,10,F,-3,7.625\n"),
    )
    chem = datasets.load("chem97")
    assert chem.ids.tolist() == [9]
    assert [chem.names["gender"][code] for code in chem["gender"]] == ["M", "F"]


def test_a_missing_text_in_a_table_is_minus_one_and_unused_texts_are_dropped(folder: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([2, None, 0], pa.int8()), pa.array(["Z", "unused", "A"]))
    table = pa.table({"carrier": ["AA", "AA", "UA"], "tailnum": texts, "seats": pa.array([None, 3, 4], pa.uint16())})
    (folder / "nycflights13").mkdir()
    pq.write_table(table, folder / "nycflights13" / "flights.parquet")
    fed = datasets.load("flights")
    assert fed["tailnum"].tolist() == [0, -1, 1]
    assert fed.names["tailnum"] == ("A", "Z")
    np.testing.assert_array_equal(fed["seats"], [np.nan, 3, 4])


def test_phones_have_one_row_per_half_hour(folder: Path) -> None:
    available = np.array([[0, 1, -1], [1, 1, 0]], dtype=np.int8)
    (folder / "device_availability").mkdir()
    np.savez(
        folder / "device_availability" / "flash_availability.npz",
        available=available,
        start=np.array("2020-01-29T00:00:00"),
        step_minutes=np.int16(30),
    )
    fed = datasets.load("phones")
    np.testing.assert_array_equal(fed["available"].reshape(2, 3), available)
    assert fed["slot"].tolist() == [0, 1, 2] * 2
    assert fed["time"][4] == np.datetime64("2020-01-29T00:30")


def test_roles_too_short_for_a_window_are_clients_without_rows(folder: Path) -> None:
    roles = [
        {"play": "p", "role": "A", "speeches": ["x" * 80]},
        {"play": "p", "role": "B", "speeches": ["y" * 80, "z"]},
    ]
    put(folder / "shakespeare" / "shakespeare_roles.json.gz", gzip.compress(json.dumps(roles).encode()))
    fed = datasets.load("shakespeare")
    assert fed.sizes.tolist() == [0, 2]
    assert [fed.names["y"][code] for code in fed["y"]] == [" ", "z"]


def test_a_full_set_is_let_go_when_nobody_holds_it(folder: Path) -> None:
    path = folder / "hierarchical" / "radon.csv.gz"
    head = b"log.radon,basement,uranium,county,county.name\n"
    put(path, gzip.compress(head + b"0.5,1,-0.1,2,CLAY\n"))
    first = datasets.load("radon")
    assert datasets.load("radon") is first
    del first
    gc.collect()
    put(path, gzip.compress(head + b"0.5,1,-0.1,2,CLAY\n0.7,1,-0.1,2,CLAY\n"))
    assert datasets.load("radon").n_rows == 2


# -- what is said when something is wrong ------------------------------------------------------------------------------


def test_an_unknown_name_gets_the_near_ones() -> None:
    assert refusal("femnist_mini") == (
        "there is no set of data called 'femnist_mini': did you mean 'femnist-mini' or 'femnist' or 'flights-mini'?"
    )
    assert "the names are: femnist-mini, " in refusal("zzz")
    with pytest.raises(DataError, match="did you mean 'phones'"):
        datasets.info("phone")


def test_without_the_variable_the_message_names_it_the_file_and_the_embedded_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FEDSCAPE_DATA", raising=False)
    message = refusal("femnist")
    assert "environment variable FEDSCAPE_DATA" in message
    assert "femnist/femnist_10pct.npz" in message
    assert all(name in message for name in MINI)
    assert datasets.info("femnist")["size"] is None


def test_a_missing_file_is_named_with_the_folder(folder: Path) -> None:
    message = refusal("acs")
    assert str(folder / "acs_pums" / "acs_pums_2024_st01-29.parquet") in message
    assert repr(str(folder)) in message
    assert "shakespeare-mini" in message


@pytest.mark.parametrize(
    ("name", "file", "source"),
    [
        ("femnist", "femnist/femnist_10pct.npz", "femnist_mini.npz"),
        ("acs", "acs_pums/acs_pums_2024_st01-29.parquet", "acs_mini.parquet"),
        ("shakespeare", "shakespeare/shakespeare_roles.json.gz", "shakespeare_mini.json.gz"),
    ],
)
def test_a_torn_file_is_refused_by_name(folder: Path, name: str, file: str, source: str) -> None:
    whole = (EMBEDDED / source).read_bytes()
    for data in (b"", whole[: len(whole) // 2], b"not what it should be"):
        put(folder / file, data)
        message = refusal(name)
        assert str(folder / file) in message
        assert "torn or foreign" in message or "is not a readable npz file" in message
    put(folder / file, whole)
    assert datasets.load(name).n_rows == datasets.load(f"{name}-mini").n_rows


def test_a_foreign_archive_is_refused(folder: Path) -> None:
    (folder / "femnist").mkdir()
    np.savez(folder / "femnist" / "femnist_10pct.npz", other=np.zeros(3))
    assert "KeyError: 'writers'" in refusal("femnist")
    np.savez(folder / "femnist" / "femnist_10pct.npz", writers=np.array(["a", None], dtype=object))
    assert "neither numbers nor texts" in refusal("femnist")


def test_an_idx_file_that_does_not_match_its_head_is_refused(folder: Path) -> None:
    whole = gzip.decompress(idx(np.zeros((2, 28, 28))))
    for name in ("images-idx3", "labels-idx1"):
        put(folder / "fashion_mnist" / f"t10k-{name}-ubyte.gz", gzip.compress(whole[:-1]))
    assert "is not a whole idx file of bytes" in refusal("fashion-mnist")


def test_a_role_with_an_unknown_character_is_refused(folder: Path) -> None:
    roles = [{"play": "p", "role": "A", "speeches": ["a" * 90 + "~"]}]
    put(folder / "shakespeare" / "shakespeare_roles.json.gz", gzip.compress(json.dumps(roles).encode()))
    assert "the role 'A' holds the unknown character '~'" in refusal("shakespeare")


def test_the_variable_may_point_to_the_home_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "femnist").mkdir()
    shutil.copy(EMBEDDED / "femnist_mini.npz", folder / "femnist" / "femnist_10pct.npz")
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.setenv("FEDSCAPE_DATA", f"~/{folder.name}")
    assert len(datasets.load("femnist")) == 30


def test_a_finished_study_is_no_data(tmp_path):
    """It holds a result.json, which was refused as a LEAF file that it is not."""
    for name in ("result.json", "report.html"):
        (tmp_path / name).write_text("{}")
    for given in (tmp_path, tmp_path / "result.json"):
        with pytest.raises(DataError, match=r"is a finished study, not data: open .*report.html, or name the data"):
            datasets.read(given)
    (tmp_path / "report.html").unlink()
    with pytest.raises(DataError, match="is not a LEAF file"):
        datasets.read(tmp_path)
