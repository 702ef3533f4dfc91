"""A category that one client alone has: under privacy neither its name nor that it is there may come out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value

import fedscape as fs
from fedscape import Federation, Gaussian, Ledger, PrivacyError
from fedscape.formats import from_csv, from_frame, from_huggingface, from_parquet, to_csv, to_parquet
from fedscape.learning import cross_entropy
from fedscape.studies.kinds import declared_counts

RARE = "rare-disease"
NAMES = ["cold", "flu", "ulcer"]
PRIVACY = Gaussian(clip=1.5, multiplier=1.0, noise_seed=1)


def table(*, rare: bool) -> pd.DataFrame:
    """Forty clients with four rows each; the last has one row more, of a category that no other has."""
    rng = np.random.default_rng(0)
    who = np.repeat([f"c{i:02d}" for i in range(40)], 4)
    rows = pd.DataFrame({"who": who, "y": rng.choice(NAMES, len(who)), "x": rng.normal(size=len(who))})
    return pd.concat([rows, pd.DataFrame({"who": ["c39"], "y": [RARE], "x": [0.5]})]) if rare else rows


def through_csv(rows: pd.DataFrame, folder) -> Federation:
    rows.to_csv(folder / "rows.csv", index=False)
    return from_csv(folder / "rows.csv", client="who")


def through_parquet(rows: pd.DataFrame, folder) -> Federation:
    rows.to_parquet(folder / "rows.parquet")
    return from_parquet(folder / "rows.parquet", client="who")


def through_our_parquet(rows: pd.DataFrame, folder) -> Federation:
    to_parquet(from_frame(rows, client="who"), folder / "ours.parquet", client="who", overwrite=True)
    return from_parquet(folder / "ours.parquet", client="who")


def through_dictionary(rows: pd.DataFrame, folder) -> Federation:
    return from_frame(rows.astype({"y": "category"}), client="who")


def through_folder(rows: pd.DataFrame, folder) -> Federation:
    from_frame(rows, client="who").save(folder / "saved", overwrite=True)
    return Federation.load(folder / "saved")


def through_arrays(rows: pd.DataFrame, folder) -> Federation:
    return Federation.from_arrays({"y": rows["y"].tolist(), "x": rows["x"].to_numpy()}, clients=rows["who"].tolist())


def through_clients(rows: pd.DataFrame, folder) -> Federation:
    parts = {who: {"y": part["y"].tolist(), "x": part["x"].to_numpy()} for who, part in rows.groupby("who")}
    return Federation.from_clients(list(parts.values()), ids=list(parts))


def through_cuts(rows: pd.DataFrame, folder) -> Federation:
    fed = from_frame(rows, client="who")
    fed = Federation.concat([fed.take(slice(0, 20)), fed.take(slice(20, 40))])
    return fed.where(np.ones(fed.n_rows, dtype=bool)).select(["y", "x"]).with_column("z", fed["x"]).split(test=0.3)[0]


WAYS = [
    through_csv,
    through_parquet,
    through_our_parquet,
    through_dictionary,
    through_folder,
    through_arrays,
    through_clients,
    through_cuts,
]


def network() -> fs.FedAvg:
    torch.manual_seed(0)
    return fs.FedAvg(fs.LocalSGD(torch.nn.Linear(1, 4), cross_entropy, lr=0.1, epochs=1, batch_size=4))


def fits(fed: Federation):
    """Every way to a private fit that takes codes for categories."""
    return {
        "histogram": lambda: fs.Histogram(3).fit(fed, privacy=PRIVACY),
        "mixture": lambda: fs.MixtureOfDirichletMultinomials(2, rounds=2).fit(fed, privacy=PRIVACY),
        "numbered": lambda: fs.MixtureOfDirichletMultinomials(1, n_categories=3, rounds=2).fit(fed, privacy=PRIVACY),
        "candidates": lambda: fs.choose_components(
            fs.MixtureOfDirichletMultinomials(rounds=2),
            fed,
            candidates=[1, 2],
            privacy=PRIVACY,
            measure_privacy=PRIVACY,
        ),
        "network": lambda: list(
            fs.rounds(network(), fed.with_column("x", fed["x"].astype("f4")[:, None]), n_rounds=1, privacy=PRIVACY)
        ),
    }


@pytest.mark.parametrize("way", WAYS)
def test_names_that_were_collected_are_refused_whoever_is_there(way, tmp_path):
    said = []
    for rare in (False, True):
        fed = way(table(rare=rare), tmp_path)
        assert not fed.is_declared("y")
        for name, fit in fits(fed).items():
            with pytest.raises(PrivacyError, match=r"names of 'y' were collected from rows.*declare\('y'") as refusal:
                fit()
            said.append((rare, name, str(refusal.value)))
    assert {(n, text) for rare, n, text in said if rare} == {(n, text) for rare, n, text in said if not rare}
    assert not any(RARE in text for *_, text in said)


@pytest.mark.parametrize("way", WAYS[:3])
def test_declared_names_make_a_rare_one_leave_no_trace(way, tmp_path):
    files = []
    for rare in (False, True):
        fed = way(table(rare=rare), tmp_path).declare("y", NAMES)
        mixture = fs.MixtureOfDirichletMultinomials(2, rounds=2).fit(fed, privacy=PRIVACY, ledger=Ledger())
        counts = fs.Histogram(3).fit(fed, privacy=PRIVACY)
        mixture.save(tmp_path / "mixture.json")
        text = "".join(file.read_text(errors="replace") for file in sorted(tmp_path.glob("mixture*")))
        shown = f"{mixture!r} {counts!r} {mixture.category_names_} {mixture.weights_} {counts.counts_}"
        files.append((text, shown, mixture.concentrations_.tobytes(), counts.counts_.tobytes()))
    assert files[0][1:] == files[1][1:]
    assert not any(RARE in text for file in files for text in file[:2])


def test_a_declaration_survives_what_is_done_to_a_federation(tmp_path):
    fed = from_frame(table(rare=True), client="who").declare("y", NAMES)
    fed.save(tmp_path / "saved")
    to_parquet(fed, tmp_path / "rows.parquet")
    again = [
        Federation.load(tmp_path / "saved"),
        from_parquet(tmp_path / "rows.parquet", client="client"),
        fed.take([3, 4]),
        fed.split(test=0.3)[1],
        Federation.concat([fed.take(slice(0, 5)), fed.take(slice(5, 9))]),
        Federation(fed.columns, fed.offsets, fed.ids, names=fed.names),
        Federation.from_arrays({"y": ["flu", RARE]}, clients=[0, 1], names={"y": NAMES}),
    ]
    assert all(each.is_declared("y") and each.names["y"] == tuple(NAMES) for each in again)
    assert again[-1]["y"].tolist() == [1, -1]
    to_csv(fed, tmp_path / "rows.csv")  # which has no place for a declaration
    assert not from_csv(tmp_path / "rows.csv", client="client").is_declared("y")


def test_what_others_declare_counts():
    assert fs.datasets.load("femnist-mini").is_declared("y")
    assert fs.datasets.load("acs-race").is_declared("y")
    features = Features({"who": Value("int64"), "y": ClassLabel(names=NAMES)})
    rows = Dataset.from_dict({"who": [0, 1], "y": [0, 2]}, features=features)
    assert from_huggingface(rows, client="who").is_declared("y")


def test_names_must_be_different_texts():
    fed = Federation.from_arrays({"y": ["flu"]}, clients=[0])
    for names in ([], ["flu", "flu"], "flu"):
        with pytest.raises(fs.DataError, match="names must be a list of different texts"):
            fed.declare("y", names)


def test_a_private_count_of_a_study_is_one_of_declared_categories():
    said = []
    for rare in (False, True):
        fed = from_frame(table(rare=rare), client="who")
        with pytest.raises(PrivacyError, match=r"the categories of 'y' follow from the rows.*--names a,b,c") as refusal:
            fs.study(fed, epsilon=1.0, progress=False)
        said.append(str(refusal.value))
        counts = declared_counts(fed, None, NAMES).sum(axis=0)
        assert counts.tolist() == table(rare=False)["y"].value_counts()[NAMES].tolist()
    assert said[0] == said[1]


def test_a_private_training_takes_declared_classes_and_no_categories_from_rows(tmp_path):
    """The file of a model would name a class, or a category of a feature, that one client alone has."""
    from shell import fedscape, ok, refused

    rows = ["who,dose,ward,illness"]
    rows += [f"{i % 12},{i % 7},{'ab'[i % 5 % 2]},{['flu', 'cold'][i % 3 % 2]}" for i in range(240)]
    rows += ["11,3,b,rare-disease"]
    table = tmp_path / "clinic.csv"
    table.write_text("\n".join(rows) + "\n")
    call = ["train", table, "--client", "who", "--column", "illness", "--rounds", 1, "--cohort", 4, "--model", "linear"]
    private = [*call, "--epsilon", 8, "--delta", 1e-3, "--quiet"]
    assert "the classes of 'illness' are inferred from the rows" in refused(2, *private, "--features", "dose")
    both = refused(2, *private, "--features", "dose,ward", "--names", "flu,cold")
    assert "the categories of ward are inferred from the rows" in both
    said = ok(*private, "--features", "dose", "--names", "flu,cold", "--out", tmp_path / "out", "--json")
    everything = said.encode() + b"".join(p.read_bytes() for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert b"rare-disease" not in everything
    plain = fedscape(*call, "--names", "flu,cold")
    assert "1 row of classes not in --names: left out" in plain.stdout + plain.stderr
    assert "none of the classes in --names, or found, occurs in 'illness': 'mumps'" in refused(
        2, *call, "--names", "mumps"
    )


def test_one_row_does_not_choose_the_columns_of_a_private_model(tmp_path):
    """A column with one value in all rows is left out: a single other value changed the shape of the model."""
    from shell import ok, refused

    lines = [f"{i % 12},{i % 7},{(3 * i) % 5},9,{'ab'[i % 2]}" for i in range(240)]
    shapes, how = [], ["--client", "who", "--column", "sick", "--rounds", 1, "--cohort", 0, "--model", "linear"]
    for number, last in enumerate(("11,3,1,9,a", "11,3,1,8,a")):
        table, out = tmp_path / f"{number}.csv", tmp_path / f"run{number}"
        table.write_text("\n".join(["who,dose,age,score,sick", *lines, last]) + "\n")
        private = ["train", table, *how, "--epsilon", 8, "--delta", 1e-3, "--names", "a,b", "--quiet"]
        assert "name them, as with --features dose,age" in refused(2, *private)
        ok(*private, "--features", "dose,age", "--out", out)
        shapes.append((out / "model.safetensors").stat().st_size)
    assert shapes[0] == shapes[1]
