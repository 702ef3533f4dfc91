"""What a column is taken for: one function, the same answer everywhere, and a person who overrules it."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest

import fedscape as fs
from fedscape import DataError, Federation
from fedscape.datasets import read_table
from fedscape.formats.dialect import find_dialect
from fedscape.formats.findings import lines_of
from fedscape.formats.kinds import Overrules, kind_of
from fedscape.formats.modelled import classes_of, with_same_classes
from fedscape.formats.reading import Reading, encode, read_columns
from fedscape.statistics.description import describe
from fedscape.studies.prepare import prepare

RNG = np.random.default_rng(0)
KINDS = {
    "labels 1 to 5": ("stars", RNG.integers(1, 6, 200), "class"),
    "truth values": ("flag", RNG.random(200) < 0.5, "class"),
    "whole numbers with gaps": ("flag", np.where(np.arange(200) % 7 == 0, np.nan, np.arange(200) % 3), "class"),
    "two large numbers": ("label", RNG.integers(0, 2, 200) + 10**9, "class"),
    "negative labels": ("label", RNG.integers(0, 2, 200) * 2 - 1, "class"),
    "half stars": ("stars", RNG.integers(1, 11, 200) / 2, "ordered"),
    "an age": ("age", RNG.integers(18, 90, 3000), "number"),
    "a height": ("height", RNG.normal(size=200), "number"),
    "an amount": ("income", np.exp(RNG.normal(10, 1, 3000)).astype(int), "number"),
    "ten thousand classes of a label": ("label", np.arange(20_000) % 10_000, "class"),
    "ten thousand values of something else": ("size", np.arange(20_000) % 10_000, "number"),
    "an id by its values": ("post", np.arange(200) + 17, "id"),
    "an id by its name": ("film_id", RNG.integers(0, 150, 2000), "id"),
    "a key of the client's rows": ("SERIALNO", np.arange(300), "id"),
    "an index": ("Unnamed: 0", np.arange(200), "id"),
    "ids of 10^25": ("b", 1e25 + np.arange(200) * 1e20, "id"),
    "a survey weight": ("PWGTP", RNG.integers(5, 900, 500), "weight"),
    "the final weight of a census": ("fnlwgt", RNG.integers(12_285, 1_484_705, 500), "weight"),
    "replicate weights": ("PWGTP80", RNG.integers(5, 900, 500), "weight"),
    "a weight of mean 1": ("weight", np.linspace(0.8, 1.2, 401), "weight"),
    "an uneven weight": ("weight", np.exp(RNG.normal(4, 0.8, 500)), "weight"),
    "what patients weigh": ("weight", RNG.normal(75, 14, 500).round(1), "number"),
    "what patients weigh, whole": ("Weight", RNG.normal(75, 14, 500).astype(int), "number"),
    "what cars weigh": ("wt", RNG.normal(3.2, 0.9, 200).round(3), "number"),
    "what children weigh at birth": ("birth_weight", RNG.normal(3300, 500, 500).astype(int), "number"),
    "one value": ("unit", np.full(50, 7), "constant"),
    "no value": ("unit", np.full(50, np.nan), "empty"),
    "a date": ("when", np.datetime64("2024-01-01") + np.arange(9), "date"),
    "an image": ("x", np.zeros((4, 28, 28)), "array"),
}


@pytest.mark.parametrize("case", KINDS)
def test_the_kind_of_numbers(case):
    name, values, wanted = KINDS[case]
    assert kind_of(name, values).kind == wanted


def texts(*values: str) -> Federation:
    return Federation({"v": np.array(values)}, [0, len(values)])


TEXTS = {
    "few": (["ash", "oak"] * 30, "class"),
    "numbers but one": ([f"{v:.2f}" for v in RNG.normal(size=99)] + ["unknown"], "number"),
    "numbers and a mark for what is missing": ([f"{v:.2f}" for v in RNG.normal(size=80)] + ["?"] * 20, "number"),
    "decimal commas": ([f"{v:.2f}".replace(".", ",") for v in RNG.normal(size=99)], "number"),
    "half of them words": ([f"{v:.2f}" for v in RNG.normal(size=50)] + [f"word {i}" for i in range(50)], "id"),
    "codes that begin with 0": ([f"{v:05d}" for v in RNG.integers(0, 60, 300)], "class"),
    "a key": ([f"k{i}" for i in range(100)], "id"),
    "sentences": ([f"this is the sentence number {i}" for i in range(100)], "text"),
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_kind_of_texts(case):
    values, wanted = TEXTS[case]
    fed = texts(*values)
    assert kind_of("v", fed["v"], fed.names["v"]).kind == wanted


def test_occupation_codes_look_like_codes_and_ages_and_rounded_amounts_do_not():
    codes = np.sort(RNG.choice(np.arange(1000, 9900), 80, replace=False))
    jobs = codes[RNG.choice(80, 5000, p=RNG.dirichlet(np.full(80, 0.5)))]
    assert kind_of("job", jobs).code
    assert not kind_of("age", RNG.integers(0, 96, 5000)).code
    pressure = np.where(RNG.random(900) < 0.7, np.round(RNG.normal(132, 19, 900), -1), RNG.normal(132, 19, 900) // 1)
    assert kind_of("trestbps", pressure).kind == "number"
    assert kind_of("age_at_index", RNG.integers(20, 90, 900)).kind == "number"
    assert not kind_of("wage", np.round(np.exp(RNG.normal(7, 1, 5000)), -2).astype(int)).code
    assert kind_of("zip", RNG.integers(1, 9, 500)).code


def test_the_acs_as_its_codebook_describes_it():
    kinds = {kind.name: kind for kind in read_columns(fs.datasets.load("acs-mini")).columns}
    assert kinds["AGEP"].kind == kinds["PINCP"].kind == kinds["WKHP"].kind == "number"
    assert kinds["PWGTP"].kind == "weight"
    assert kinds["OCCP"].code
    assert not any(kinds[name].code for name in ("AGEP", "WKHP", "SCHL", "PINCP"))
    assert {kinds[name].kind for name in ("SEX", "RAC1P", "MAR", "COW", "race")} == {"class"}


def test_a_person_overrules():
    ages = RNG.integers(18, 60, 500)
    assert kind_of("age", ages, overrules=Overrules(categorical=("age",))).kind == "class"
    assert kind_of("stars", ages % 5, overrules=Overrules(numeric=("stars",))).kind == "number"
    fed = texts("ash", "oak", "ash")
    with pytest.raises(DataError, match="--numeric names 'v', but none of its texts is a number: the first is 'ash'"):
        kind_of("v", fed["v"], fed.names["v"], overrules=Overrules(numeric=("v",)))
    with pytest.raises(DataError, match="--ignore names 'z', which is no column; the columns are: 'v'"):
        read_columns(fed, overrules=Overrules(ignore=("z",)))
    with pytest.raises(DataError, match="'v' is under --categorical and under --numeric: name it once"):
        read_columns(fed, overrules=Overrules(categorical=("v",), numeric=("v",)))


def test_labels_one_to_five_are_five_categories_everywhere():
    stars = RNG.integers(1, 6, 400)
    fed = Federation({"a": RNG.normal(size=400), "stars": stars}, np.arange(0, 401, 20))
    assert describe(fed, column="stars")["skew"]["categories"] == 5
    assert len(prepare(fed, column="stars").names) == 5
    mixture = fs.MixtureOfDirichletMultinomials(1, column="stars", rounds=2).fit(fed, progress=False)
    assert mixture.concentrations_.shape[1] == 5
    assert mixture.category_names_ == ("1", "2", "3", "4", "5")
    assert fed.coded("stars").counts("stars").tolist() == fed.counts("stars", 6)[:, 1:].tolist()
    few = fed.where(stars != 3)  # a mixture is asked by the names it was fitted to
    assert mixture.predict_proba(few).shape == (20, 1)
    with pytest.raises(DataError, match="holds '9' in row 0, which is none of the 5 categories"):
        mixture.predict(Federation({"stars": [9, 1]}, [0, 2]))


def test_classes_that_are_no_codes_are_one_line_in_counts():
    huge = Federation({"y": [10**9, 10**9 + 1]}, [0, 1, 2])
    with pytest.raises(DataError, match=r"column 'y' holds 1,000,000,001, .* are coded\('y'\)"):
        huge.counts("y")
    assert huge.coded("y").counts("y").tolist() == [[1, 0], [0, 1]]
    assert Federation({"y": [True, False]}, [0, 1, 2]).counts("y").tolist() == [[0, 1], [1, 0]]
    with pytest.raises(DataError, match="must hold whole numbers; nan in row 1 is not one"):
        Federation({"y": [1.0, np.nan]}, [0, 2]).counts("y")


def test_names_of_classes_are_checked():
    fed = Federation({"y": [1, 2, 3]}, [0, 3])
    assert classes_of(fed, "y", overrules=Overrules(names=("low", "mid", "high"))).names == ("low", "mid", "high")
    with pytest.raises(DataError, match="--names gives 2 names, but the column 'y' has 3 classes"):
        classes_of(fed, "y", overrules=Overrules(names=("low", "high")))


def test_two_tables_have_the_same_classes_and_a_number_the_same_edges():
    one, other = Federation({"y": [1, 2, 2]}, [0, 3]), Federation({"y": [2, 10]}, [0, 2])
    made = with_same_classes([one, other], "y")
    assert [fed.names["y"] for fed in made] == [("1", "2", "10")] * 2
    assert [fed["y"].tolist() for fed in made] == [[0, 1, 1], [1, 2]]
    values = RNG.normal(size=500)
    cut = with_same_classes([Federation({"v": values}, [0, 500]), Federation({"v": values + 1}, [0, 500])], "v")
    assert cut[0].names == cut[1].names
    assert cut[1]["v"].mean() > cut[0]["v"].mean() + 0.5


# -- findings ----------------------------------------------------------------------------------------------------------


def found(columns: dict, target: str | None = None, **said: tuple[str, ...]) -> dict[tuple[str, str], str]:
    n = len(next(iter(columns.values())))
    reading = read_columns(Federation(columns, [0, n // 2, n]), target=target, overrules=Overrules(**said))
    return {(each.kind, each.column): str(each) for each in reading.findings}


def test_a_column_that_gives_the_label_away_is_found_and_left_out_and_a_good_one_is_not():
    n = 600
    a = RNG.normal(size=n)
    y = (a + 0.5 * RNG.normal(size=n) > 0).astype(int)
    columns = {"a": a, "later": np.where(RNG.random(n) < 0.99, y, 1 - y) + 3, "total": 10.0 * y + a / 9, "y": y}
    leaks = [column for kind, column in found(columns, "y") if kind == "leak"]
    assert sorted(leaks) == ["later", "total"]
    fed = Federation(columns, [0, n // 2, n])
    assert read_columns(fed, target="y").features == ("a",)
    assert read_columns(fed, target="y", overrules=Overrules(keep=("later",))).features == ("a", "later")
    assert read_columns(fed, target="y", features=["later"]).features == ("later",)


def test_a_rare_class_does_not_make_every_column_a_leak():
    y = (np.arange(1000) % 50 == 0).astype(int)
    assert not [kind for kind, _ in found({"a": RNG.normal(size=1000), "y": y}, "y") if kind == "leak"]


def test_text_in_numbers_infinity_and_outliers_have_their_row_and_value():
    a = RNG.normal(size=300)
    a[7], a[9] = np.inf, 1e300
    b = RNG.normal(size=300)
    b[11] = 5e4
    c = [f"{v:.3f}" for v in RNG.normal(size=300)]
    c[13] = "see remark"
    reading = read_columns(Federation({"a": a, "b": b, "c": np.array(c)}, [0, 150, 300]))
    places = {each.kind: (each.column, each.row, each.value) for each in reading.findings if each.row is not None}
    assert places["infinite"] == ("a", 7, "inf")
    assert places["outlier"] == ("b", 11, "50000")
    assert places["text in numbers"] == ("c", 13, "see remark")
    assert reading.features == ("a", "b", "c")
    x, _ = encode(Federation({"a": a, "b": b, "c": np.array(c)}, [0, 150, 300]), reading)
    assert np.isnan(x).sum(axis=0).tolist() == [2, 0, 1]


def test_what_is_left_out_is_said_and_why():
    n = 200
    said = found(
        {
            "PWGTP": RNG.integers(5, 900, n),
            "row_id": np.arange(n),
            "unit": np.full(n, 7),
            "a": RNG.normal(size=n),
            "when": np.datetime64("2024-01-01") + np.arange(n),
        }
    )
    assert set(said) == {("weight", "PWGTP"), ("id", "row_id"), ("constant", "unit"), ("date", "when")}
    assert said["weight", "PWGTP"].endswith("--keep PWGTP uses it")
    a = RNG.normal(size=n)
    assert ("duplicate", "b") in found({"a": a, "b": a})


def test_a_shared_finding_names_no_row_and_no_value():
    a = RNG.normal(size=100)
    a[7] = np.inf
    shared = [each.shared() for each in read_columns(Federation({"a": a}, [0, 100])).findings]
    assert "inf'" not in json.dumps(shared)
    assert {each["row"] for each in shared} == {None}


def test_a_reading_comes_back_from_json_and_makes_the_same_inputs_of_another_table():
    fed = Federation({"age": RNG.normal(size=40), "town": np.array(["a", "b"] * 20), "y": np.arange(40) % 2}, [0, 40])
    reading = read_columns(fed.with_column("town", np.array(["a", "b", "c", "a"] * 10)), target="y")
    again = Reading.from_json(json.loads(json.dumps(reading.to_json())))
    assert again == reading
    x, names = encode(Federation({"town": np.array(["c", "z"]), "age": [1.0, np.nan]}, [0, 2]), again)
    assert names == ("age", "town=a", "town=b", "town=c")
    assert x[0].tolist() == [1, 0, 0, 1]
    assert x[1, 1:].tolist() == [0, 0, 0]
    with pytest.raises(DataError, match="this is no saved reading of a table"):
        Reading.from_json({"columns": []})


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_row_of_a_finding_is_that_of_the_file_however_clients_lie(tmp_path):
    lines = ["who,v,label"] + [f"{'cab'[i % 3]},{i / 7:.3f},{i % 2}" for i in range(120)]
    lines[50] = "a,broken,1"
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    _, reading = read_table(tmp_path / "t.csv", client="who", target="label")
    each = next(each for each in reading.findings if each.kind == "text in numbers")
    assert (each.row, each.value) == (50, "broken")


def test_a_class_that_is_written_in_two_ways_is_found_and_letters_are_not(tmp_path):
    smokes = ["yes", "no", "Yes ", "NO", "yes", "no", "yes", "no"]
    lines = ["who,smokes,letter,label"] + [f"{'cab'[i % 3]},{smokes[i % 8]},{'aAbB'[i % 4]},{i % 2}" for i in range(96)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    _, reading = read_table(tmp_path / "t.csv", client="who", target="label")
    (found,) = [each for each in reading.findings if each.kind == "spelling"]
    assert (found.column, found.row, found.value, found.count) == ("smokes", 11, "Yes ", 24)
    assert "'smokes' has 2 classes that differ from another in case or spaces only" in str(found)


def test_a_line_of_sums_that_became_a_client_is_named(tmp_path):
    (tmp_path / "t.csv").write_text("site,a,y\ns1,1,u\ns1,2,v\nSummer,1,u\nSummer,3,v\nTotal,7,4\n")
    _, reading = read_table(str(tmp_path / "t.csv"), client="site", target="y")
    (each,) = [each for each in reading.findings if "sums" in each.line]
    assert (each.row, each.value) == (5, "Total")
    assert str(each).startswith("1 of 3 clients is named like a line of sums (row 5: 'Total')")
    assert "Total" not in str(each.shared())


def test_a_code_that_is_left_out_as_one_of_its_client_is_not_said_to_be_used():
    census = fs.datasets.load("acs-mini")
    findings = read_columns(census, target="MAR").findings
    assert [each.kind for each in findings if each.column == "ST"] == ["of client"]
    assert [each.kind for each in findings if each.column == "OCCP"] == ["code"]


def test_dialects_are_found_and_said(tmp_path):
    text = "who;länge;label\n" + "".join(f"c{i % 3};{i},5;{'jö' if i % 2 else 'nä'}\n" for i in range(60))
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    dialect = find_dialect(tmp_path / "t.csv")
    assert dialect.remark == "separated by semicolons, encoded as Windows-1252 (Latin-1), with decimal commas"
    fed, reading = read_table(tmp_path / "t.csv", client="who")
    assert fed["länge"][:2].tolist() == [0.5, 3.5]
    assert fed.names["label"] == ("jö", "nä")
    assert reading.findings[-1].kind == "dialect"
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(text.replace(",", ".").replace(";", "\t").encode()))
    assert read_table(tmp_path / "t.tsv.gz", client="who")[0]["länge"][:2].tolist() == [0.5, 3.5]


def test_ids_beyond_64_bits_stay_apart(tmp_path):
    lines = ["who,key,v,label"] + [f"c{i % 3},{10**25 + i},{'1e300' if i == 5 else i / 7},{i % 2}" for i in range(90)]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    fed, reading = read_table(tmp_path / "t.csv", client="who", target="label")
    assert len(set(fed.names["key"])) == 90
    assert reading["key"].kind == "id"
    assert fed["v"].dtype.kind == "f"  # 1e300 is a number, however large
    assert reading.features == ("v",)


def test_a_comma_in_quotes_and_semicolons_in_texts_leave_a_comma_file_alone(tmp_path):
    (tmp_path / "t.csv").write_text('who,v,text\n1,2.5,"a; b; c"\n1,3.5,"d, e; f"\n')
    assert find_dialect(tmp_path / "t.csv").separator == ","


def test_a_compressed_file_that_grows_beyond_measure_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedscape.formats.dialect.ALWAYS_ALLOWED", 1000)
    monkeypatch.setattr("fedscape.formats.dialect.MOST_EXPANSION", 2)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"0,1\n" * 100_000))
    with pytest.raises(DataError, match="when it is decompressed: unpack it first"):
        find_dialect(tmp_path / "t.csv.gz")


def test_python_takes_the_same_overrules():
    table = pa.table({"who": [1, 1, 2], "stars": [5, 3, 5], "v": ["1.5", "x", "2"], "z": [0, 0, 0]})
    fed = Federation.from_frame(table, client="who", categorical=["stars"], numeric=["v"], ignore=["z"])
    assert fed.counts("stars").tolist() == [[1, 1], [0, 1]]
    assert np.array_equal(fed["v"], [1.5, np.nan, 2.0], equal_nan=True)
    assert list(fed.columns) == ["stars", "v"]


def test_a_weight_that_is_used_is_said_and_one_that_is_not_too():
    """Body weight in a clinic table is a feature; nothing about a column of this name goes without a word."""
    rng = np.random.default_rng(3)
    kilograms = Federation({"weight": rng.normal(75, 14, 300).round(1), "y": rng.integers(0, 2, 300)}, [0, 150, 300])
    reading = read_columns(kilograms, target="y")
    assert reading.features == ("weight",)
    (line,) = [str(finding) for finding in reading.findings]
    assert line.startswith("'weight' is taken for what something weighs")
    assert line.endswith("used as a number; --ignore weight leaves it out")
    survey = kilograms.with_column("weight", np.exp(rng.normal(4, 0.8, 300)))
    reading = read_columns(survey, target="y")
    assert reading.features == ()
    (line,) = [str(finding) for finding in reading.findings]
    assert "survey weight" in line
    assert line.endswith("--keep weight uses it")
    texts = np.append(survey["weight"].astype(str)[:-1], "n/a")
    assert kind_of("PWGTP", *_coded(texts)).kind == "weight"


def _coded(texts):
    fed = Federation({"v": texts}, [0, len(texts)])
    return fed["v"], fed.names["v"]


def test_a_column_that_some_clients_have_not_at_all_is_named_as_theirs():
    """Where sites have other columns, a quarter of the rows without a value may be one site."""
    rows = np.array([1.5, 2.5, 3.5, np.nan, np.nan, np.nan, 4.5, np.nan])
    fed = Federation({"bp": rows, "age": np.arange(8.0)}, [0, 3, 6, 8])
    lines = lines_of(read_columns(fed).findings)
    assert any("'bp' has no value in 4 of 8 rows (50.0%), and in no row of 1 of 3 clients: " in line for line in lines)
