"""Simulated clients: exact histograms, no row twice where rows suffice, each recipe's law, and always an end."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedscape import (
    DataError,
    FederatedKMeans,
    Federation,
    Key,
    MixtureOfDirichletMultinomials,
    datasets,
    simulate,
    studies,
)
from fedscape.formats.shuffle import Threads
from fedscape.simulate import (
    Binned,
    Cells,
    ConditionallyIID,
    Dirichlet,
    FromMixture,
    FullyIID,
    Labels,
    Pathological,
    Quantity,
    Shards,
    Shifted,
    SignCodes,
    clients,
    feasibility,
    plan,
    sharded,
    with_codes,
)
from fedscape.simulate.columns import codes_of
from fedscape.simulate.deal import deal, deal_twin, shuffle_groups, shuffle_groups_twin, words
from fedscape.simulate.recipes import BLOCK, _lifted, _rounded
from fedscape.simulate.shifted import turned


def proxy(rows: int = 5000, categories: int = 5, seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    y = rng.choice(categories, rows, p=np.arange(1, categories + 1) / np.arange(1, categories + 1).sum())
    return Federation({"x": rng.normal(size=(rows, 3)), "y": y, "row": np.arange(rows)}, [0, rows])


def fitted(categories: int = 5) -> MixtureOfDirichletMultinomials:
    rng = np.random.default_rng(1)
    counts = rng.multinomial(rng.integers(5, 30, 200), rng.dirichlet(np.ones(categories)))
    return MixtureOfDirichletMultinomials(1).fit(counts, progress=False)


RECIPES = {
    "iid": FullyIID(np.arange(3, 23)),
    "mixture": FromMixture(fitted()),
    "dirichlet": Dirichlet(0.3),
    "dirichlet-sizes": Dirichlet(0.3, sizes=20),
    "shards": Shards(2),
    "quantity": Quantity(0.5, least=1),
    "pathological": Pathological(2),
}


# -- dealing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_kernels_equal_their_plain_twins(seed):
    rng = np.random.default_rng(seed)
    available = rng.integers(1, 30, 6)
    starts = np.concatenate(([0], np.cumsum(available)))
    order, again = np.arange(starts[-1]), np.arange(starts[-1])
    state = words(Key(seed), 6)
    shuffle_groups(order, starts, state)
    shuffle_groups_twin(again, starts, state)
    assert order.tolist() == again.tolist()
    counts = rng.integers(0, 5, (4, 6)).astype(np.int32)
    counts[:, 3] = [0, available[3] + 2, 2 * available[3], available[3]]  # more than there are
    shared = counts.sum(axis=0) > available
    offsets = np.concatenate(([0], np.cumsum(counts.sum(axis=1)))).astype(np.int64)
    out, twin = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int64)
    stamp = np.full(starts[-1], -1)
    deal(counts, order, starts, shared, words(Key(9), 4), stamp, offsets, out)
    deal_twin(counts, order, starts, shared, words(Key(9), 4), stamp, offsets, twin)
    assert out.tolist() == twin.tolist()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("policy", ["refuse", "replace", "independent"])
def test_histograms_are_exact_and_disjoint_clients_share_no_row(name, policy):
    recipe, data = RECIPES[name], proxy()
    made = plan(recipe, data, n_clients=40, column="y", seed=3, policy=policy)
    sim = made.federation()
    if recipe.by_category:
        assert np.array_equal(sim.counts("y", 5), made.histograms)
    assert np.array_equal(sim.sizes, made.histograms.sum(axis=1))
    assert np.array_equal(sim["x"], data["x"][sim["row"]])  # rows stay whole
    if policy != "independent":
        assert len(np.unique(sim["row"])) == sim.n_rows
    for i in range(len(made)):
        assert len(np.unique(made.indices(i))) == made.sizes[i]


def test_same_seed_same_clients_and_another_seed_others():
    one, two, other = (plan(FromMixture(fitted()), proxy(), n_clients=50, seed=s).rows for s in (4, 4, 5))
    assert one.tolist() == two.tolist()
    assert one.tolist() != other.tolist()


def test_an_independent_client_does_not_depend_on_how_many_follow():
    few, many = (plan(FromMixture(fitted()), proxy(), n_clients=n, seed=4, policy="independent") for n in (3, 5000))
    for i in range(3):
        assert few.indices(i).tolist() == many.indices(i).tolist()


def test_indices_come_before_data_and_any_clients_can_be_materialised_alone():
    made = plan(Dirichlet(0.5), proxy(), n_clients=20, seed=0)
    whole = made.federation()
    part = made.federation([7, 2])
    assert part.ids.tolist() == [7, 2]
    assert np.array_equal(part["row"], np.concatenate([whole.client(7)["row"], whole.client(2)["row"]]))
    assert len(made.federation(slice(3, 5))) == 2
    assert repr(made) == "Plan(20 clients, 5,000 rows of 5,000)"


def test_rows_of_a_category_are_drawn_evenly():
    """Chi-square over the rows of the proxy: every row as often as any other."""
    data = Federation({"y": [0] * 40 + [1] * 60}, [0, 100])
    for policy, recipe in (("independent", ConditionallyIID(np.tile([3, 5], (4000, 1)))), ("replace", FullyIID(7))):
        made = plan(recipe, data, n_clients=4000, seed=1, policy=policy)
        seen = np.bincount(made.rows, minlength=100)
        if recipe.by_category:
            assert stats.chisquare(seen[:40]).pvalue > 1e-6
            assert stats.chisquare(seen[40:]).pvalue > 1e-6
        else:
            assert stats.chisquare(seen).pvalue > 1e-6
    first = [plan(FullyIID(1), data, n_clients=1, seed=s).rows[0] for s in range(2000)]
    assert stats.chisquare(np.bincount(first, minlength=100)).pvalue > 1e-6


def test_pairs_of_rows_of_one_client_are_drawn_evenly():
    data = Federation({"y": [0] * 6}, [0, 6])
    rows = plan(FullyIID(2), data, n_clients=30_000, seed=2, policy="independent").rows.reshape(-1, 2)
    pairs = np.bincount(rows[:, 0] * 6 + rows[:, 1], minlength=36).reshape(6, 6)
    assert not np.diag(pairs).any()
    assert stats.chisquare(pairs[~np.eye(6, dtype=bool)]).pvalue > 1e-6


# -- feasibility -------------------------------------------------------------------------------------------------------


def short() -> tuple[ConditionallyIID, Federation]:
    return ConditionallyIID(np.full((10, 2), 4)), Federation({"y": [0] * 100 + [1] * 25}, [0, 125])


def test_too_few_rows_are_refused_before_work_with_names_and_numbers():
    recipe, data = short()
    found = feasibility(recipe, data)
    assert not found.possible
    assert found.short.tolist() == [1]
    with pytest.raises(DataError, match=r"category 1 has 25 rows, the plan needs 40 .*policy='replace'"):
        plan(recipe, data)
    named = Federation({"y": ["b"] * 25 + ["a"] * 100}, [0, 125])
    with pytest.raises(DataError, match="'b' has 25 rows, the plan needs 40"):
        plan(recipe, named)


def test_replacing_shares_rows_of_short_categories_alone():
    recipe, data = short()
    made = plan(recipe, data, policy="replace")
    assert (made.federation().counts("y") == 4).all()
    zero = made.rows[made.rows < 100]
    assert len(np.unique(zero)) == len(zero)
    assert "drawn with replacement" in str(made.feasibility)
    for i in range(10):
        assert len(np.unique(made.indices(i))) == 8


def test_scaling_keeps_shares_and_stays_within_the_rows():
    recipe, data = short()
    made = plan(recipe, data, policy="scale")
    counts = made.federation().counts("y")
    assert counts.sum(axis=0).tolist() == [25, 25]
    assert len(np.unique(made.rows)) == len(made.rows)
    assert counts.max() <= 3
    assert "scaled by 0.625" in str(made.feasibility)


def test_a_category_without_any_row_cannot_be_stood_in_for():
    for policy in ("replace", "scale", "independent"):
        with pytest.raises(DataError, match="category 2 has no rows, the plan needs 3"):
            plan(ConditionallyIID([[1, 0, 3]]), {"y": [0, 0, 1]}, policy=policy)


def test_a_client_that_asks_for_more_than_there_is_gets_every_row_evenly():
    rows = plan(FullyIID(25), {"y": [0] * 10}, n_clients=3, policy="independent").rows.reshape(3, 25)
    for client in rows:
        assert set(np.bincount(client, minlength=10)) == {2, 3}


def test_bad_input_is_refused_in_one_line():
    for call, message in [
        (lambda: clients(Dirichlet(0.0), proxy(), n_clients=3), "alpha must be above 0"),
        (lambda: clients(Dirichlet(1.0), proxy()), "n_clients must be a whole number"),
        (lambda: clients(Dirichlet(1.0), proxy(), n_clients=3, policy="maybe"), "policy must be one of"),
        (lambda: clients(FullyIID([-1]), proxy(), n_clients=3), "sizes must be whole numbers"),
        (lambda: clients(ConditionallyIID([[0.5]]), proxy()), "histograms must be whole numbers"),
        (lambda: clients(ConditionallyIID([1, 2]), proxy()), "histograms must be"),
        (lambda: clients(Shards(0), proxy(), n_clients=2), "per_client must be at least 1"),
        (lambda: clients(Pathological(9), proxy(), n_clients=2), "classes must be from 1 to the 5"),
        (lambda: clients(Quantity(1.0, least=1000), proxy(), n_clients=9), "least=1000 asks for 9,000 rows"),
        (lambda: clients(FullyIID(1), 7, n_clients=1), "proxy must be a Federation"),
        (lambda: clients(FullyIID(1), "no-such-file.parquet", n_clients=1), "no Parquet file"),
        (
            lambda: clients(ConditionallyIID([[1, 1]]), proxy()),
            "the proxy has rows of 5 categories, the recipe knows 2",
        ),
        (lambda: clients(Dirichlet(1.0), {"y": [[1, 2]]}, n_clients=2), "holds count vectors"),
        (lambda: clients(Dirichlet(1.0), {"y": [0.5, 1.0]}, n_clients=2), "must hold whole numbers"),
        (lambda: clients(Dirichlet(1.0), {"y": [-1, 1]}, n_clients=2), "holds the category -1"),
        (lambda: clients(Dirichlet(1.0), proxy(), n_clients=2, column="z"), "there is no column 'z'"),
        (lambda: clients(Dirichlet(1.0), proxy(), n_clients=2, column=[]), "at least one column"),
        (lambda: clients(Shifted(Dirichlet(1.0), by="x"), proxy(), n_clients=2), "by must be"),
    ]:
        with pytest.raises(DataError, match=message):
            call()


def test_clients_without_rows_are_normal():
    made = clients(ConditionallyIID([[0, 0], [2, 1]]), {"y": [0, 0, 1]})
    assert made.sizes.tolist() == [0, 3]


# -- recipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_what_other_splitters_hang_on_ends_at_once_with_exact_counts(seed):
    available = np.full(100, 500)
    for recipe in (Dirichlet(0.01), Dirichlet(0.01, least=10), Dirichlet(1e-6, least=1), Shards(2), Pathological(3)):
        counts = recipe.draw(available, 500, Key(seed))
        assert np.array_equal(counts.sum(axis=0), available)
        assert counts.min() >= 0
        assert counts.sum(axis=1).min() >= getattr(recipe, "least", 0)


def test_dirichlet_shares_have_the_law_of_a_dirichlet():
    alpha, n = 0.4, 8
    shares = np.array([Dirichlet(alpha).draw(np.array([10**6]), n, Key(s))[0, 0] for s in range(3000)]) / 1e6
    assert stats.kstest(shares[shares > 1e-4], lambda x: cut_beta(x, alpha, n)).pvalue > 1e-6
    drawn = Dirichlet(alpha, sizes=10).draw(np.full(3, 10**6), 6000, Key(0))
    expected = 6000 * stats.betabinom(10, alpha, 2 * alpha).pmf(np.arange(11))
    for j in range(3):
        assert stats.chisquare(np.bincount(drawn[:, j], minlength=11), expected).pvalue > 1e-6


def cut_beta(x, alpha, n):
    law = stats.beta(alpha, alpha * (n - 1))
    return (law.cdf(x) - law.cdf(1e-4)) / (1 - law.cdf(1e-4))


def test_quantity_sizes_add_up_and_labels_are_alike():
    data = proxy(20_000)
    sim = clients(Quantity(0.5), data, n_clients=10, seed=1)
    assert sim.n_rows == 20_000
    counts = sim.counts("y")
    counts = counts[counts.sum(axis=1) > 100]
    assert stats.chi2_contingency(counts).pvalue > 1e-6
    assert sim.sizes.max() > 2 * sim.sizes.mean()


def test_fully_iid_clients_have_the_sizes_law_and_the_pooled_labels():
    sizes = np.array([1, 1, 5])
    made = plan(FullyIID(sizes), proxy(), n_clients=3000, seed=0, policy="independent")
    assert stats.chisquare(np.bincount(made.sizes, minlength=6)[[1, 5]], [2000, 1000]).pvalue > 1e-6
    seen = made.federation().counts("y", 5).sum(axis=0)
    shares = proxy().counts("y").sum(axis=0)
    assert stats.chisquare(seen, seen.sum() * shares / shares.sum()).pvalue > 1e-6
    assert plan(FullyIID(sizes), proxy()).sizes.tolist() == [1, 1, 5]


def test_mixture_clients_have_the_law_of_the_mixture():
    model = fitted(3)
    drawn = FromMixture(model, sizes=12).draw(np.full(3, 9), 8000, Key(0))
    alpha = model.concentrations_[0]
    law = stats.betabinom(12, alpha[0], alpha[1:].sum()).pmf(np.arange(13))
    seen, expected = np.bincount(drawn[:, 0], minlength=13), 8000 * law
    some = expected > 5
    assert stats.chisquare(seen[some], expected[some] * seen[some].sum() / expected[some].sum()).pvalue > 1e-6


def test_conditionally_iid_draws_true_histograms():
    true = np.array([[1, 0], [0, 1], [2, 2]])
    drawn = ConditionallyIID(true).draw(np.array([9, 9]), 3000, Key(0))
    which = np.array([true.tolist().index(row) for row in drawn.tolist()])
    assert stats.chisquare(np.bincount(which)).pvalue > 1e-6


def test_shards_hold_few_categories_and_equal_sizes():
    counts = Shards(2).draw(np.full(10, 600), 100, Key(0))
    assert set(counts.sum(axis=1)) == {60}
    assert (counts > 0).sum(axis=1).max() <= 2
    uneven = Shards(3).draw(np.array([7, 0, 50, 44]), 8, Key(1))
    assert uneven.sum(axis=0).tolist() == [7, 0, 50, 44]
    assert np.ptp(uneven.sum(axis=1)) <= 3
    owners = np.array([Shards(1).draw(np.array([5, 5]), 2, Key(s))[0, 0] for s in range(2000)])
    assert stats.binomtest(int((owners == 5).sum()), 2000).pvalue > 1e-6


@pytest.mark.parametrize(("classes", "number", "n"), [(2, 10, 25), (3, 7, 100), (5, 5, 4), (1, 3, 2), (4, 9, 1)])
def test_pathological_clients_have_exactly_their_classes_evenly_used(classes, number, n):
    counts = Pathological(classes).draw(np.full(number, 5000), n, Key(3))
    assert ((counts > 0).sum(axis=1) == classes).all()
    assert np.ptp((counts > 0).sum(axis=0)) <= 2
    used = counts.sum(axis=0) > 0
    assert (counts.sum(axis=0)[used] == 5000).all()


def test_rounding_loses_no_row_and_lifting_moves_only_what_is_needed():
    rng = np.random.default_rng(0)
    for _ in range(100):
        shares = rng.dirichlet(np.full(rng.integers(1, 20), 0.1))
        total = int(rng.integers(0, 1000))
        assert _rounded(shares, total).sum() == total
    counts = np.array([[0, 0], [50, 10], [3, 1], [30, 30]])
    lifted = _lifted(counts, 5, rng)
    assert lifted.sum(axis=0).tolist() == counts.sum(axis=0).tolist()
    assert lifted.sum(axis=1).min() == 5
    assert np.ptp(lifted.sum(axis=1)[[1, 3]]) <= 1


def test_shifted_rows_are_transformed_and_labels_permuted():
    rng = np.random.default_rng(0)
    data = Federation({"x": rng.integers(0, 256, (60, 4, 4), dtype=np.uint8), "y": np.arange(60) % 5}, [0, 60])
    data = data.with_column("row", np.arange(60))
    for by in ("label", "shift", "both"):
        sim = clients(Shifted(Dirichlet(0.4), by=by), data, n_clients=3, seed=2)
        assert sim.n_rows == 60
        moved = sim["shift"] == 1
        assert moved.sum() == 30
        assert np.array_equal(sim["x"][~moved], data["x"][sim["row"][~moved]])
        assert np.array_equal(sim["x"][moved], turned(data["x"][sim["row"][moved]]))
        old, new = data["y"][sim["row"][moved]], sim["y"][moved]
        assert len({*zip(old.tolist(), new.tolist(), strict=True)}) == len(set(old.tolist()))  # one permutation
        assert np.array_equal(sim["y"][~moved], data["y"][sim["row"][~moved]])


def test_turning_is_rotation_flip_and_inversion():
    image = np.arange(9, dtype=np.uint8).reshape(1, 3, 3)
    assert np.array_equal(turned(image)[0], 255 - np.fliplr(np.rot90(image[0])))
    with pytest.raises(DataError, match="square images"):
        turned(np.zeros((2, 3)))


# -- what is modelled --------------------------------------------------------------------------------------------------


def test_columns_cross_and_numbers_are_binned():
    fed = Federation({"y": ["a", "b", "a"], "z": [1.0, 20.0, 70.0]}, [0, 3])
    found = codes_of(fed, ["y", Binned("z", (0, 10, 50, np.inf))])
    assert found.values.tolist() == [0, 4, 2]
    assert found.number == 6
    assert found.names[4] == "b x [10, 50)"
    assert with_codes(fed, Labels("y", 2)).names["code"] == ("a", "b")


def test_clients_are_cut_along_crossed_columns_and_learned_codes():
    data = datasets.load("femnist-mini")
    cells = Cells(FederatedKMeans(4, rounds=3, n_init=1).fit(data, progress=False), 4)
    for column in ([Labels("y", 62), cells], [Labels("y", 62), SignCodes(2)], ["y", "y"]):
        coded = with_codes(data, column)
        made = plan(ConditionallyIID(coded.counts("code")), data, column=column, seed=0)
        again = with_codes(made.federation(), column)
        assert np.array_equal(again.counts("code"), coded.counts("code"))


def test_sign_codes_split_the_data_and_are_the_same_for_the_same_seed():
    data = datasets.load("femnist-mini")
    one, two = SignCodes(4).codes(data), SignCodes(4).codes(data)
    assert np.array_equal(one.values, two.values)
    assert one.number == 16
    assert len(np.unique(one.values)) > 4
    with pytest.raises(DataError, match="bits must be from 1 to 20"):
        SignCodes(0).codes(data)
    with pytest.raises(DataError, match="cross to"):
        codes_of(data, [SignCodes(20), SignCodes(5)])
    with pytest.raises(DataError, match="cross to 18,446,744,073,709,551,616"):  # 2**64, which is 0 in 64 bits
        codes_of(data, [SignCodes(16, seed=s) for s in range(4)])


# -- ways in and out ---------------------------------------------------------------------------------------------------


def test_proxies_of_every_kind(tmp_path):
    import datasets as hf
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"x": np.arange(30.0), "y": np.arange(30) % 3}
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "rows.parquet")
    kinds = [columns, table, pd.DataFrame(columns), tmp_path / "rows.parquet", hf.Dataset(table)]
    made = [clients(Dirichlet(1.0), kind, n_clients=4, seed=1) for kind in kinds]
    for sim in made:
        assert np.array_equal(sim["x"], made[0]["x"])
    (tmp_path / "bad.parquet").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        clients(Dirichlet(1.0), tmp_path / "bad.parquet", n_clients=4)


def test_simulated_clients_go_out_to_parquet_leaf_and_hugging_face(tmp_path):
    from fedscape.formats import from_huggingface, to_huggingface

    sim = clients(Dirichlet(1.0), proxy(200), n_clients=6, seed=1)
    datasets.write(sim, tmp_path / "sim.parquet")
    datasets.write(sim, tmp_path / "sim.json")
    again = [datasets.read(tmp_path / "sim.parquet"), datasets.read(tmp_path / "sim.json")]
    again.append(from_huggingface(to_huggingface(sim), client="client", ids=sim.ids))
    for fed in again:
        assert fed.counts("y", 5).tolist() == sim.counts("y", 5).tolist()


def test_the_partitioner_works_with_flwr_datasets(tmp_path, monkeypatch):
    import datasets as hf
    from flwr_datasets import FederatedDataset

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    rows = hf.Dataset.from_dict({"label": (np.arange(600) % 3).tolist(), "row": list(range(600))})
    given = {"train": rows}
    monkeypatch.setattr("flwr_datasets.federated_dataset.datasets.load_dataset", lambda **_: hf.DatasetDict(given))
    partitioner = simulate.PopulationPartitioner(fitted(3), num_partitions=12, seed=1)
    federated = FederatedDataset(dataset="in memory", partitioners={"train": partitioner}, shuffle=False)
    parts = [federated.partitioners["train"].load_partition(i) for i in range(12)]
    indices = partitioner.partition_id_to_indices
    for i, part in enumerate(parts):
        assert part["row"] == indices[i] or list(part["row"]) == indices[i]
    everything = np.concatenate([indices[i] for i in range(12)])
    assert len(np.unique(everything)) == len(everything)
    again = simulate.PopulationPartitioner(fitted(3), num_partitions=12, seed=1)
    again.dataset = rows
    assert again.partition_id_to_indices == indices
    assert partitioner.num_partitions == 12
    with pytest.raises(DataError, match="partition_id must be from 0 to 11"):
        partitioner.load_partition(12)
    with pytest.raises(DataError, match="partitions only choose them"):
        simulate.PopulationPartitioner(Shifted(Dirichlet(1.0)), num_partitions=2)


def test_flwr_datasets_plots_the_partitions():
    import datasets as hf
    import matplotlib

    matplotlib.use("Agg")
    from flwr_datasets.visualization import plot_label_distributions

    partitioner = simulate.PopulationPartitioner(Dirichlet(0.3), num_partitions=5)
    labels = hf.ClassLabel(names=["a", "b", "c"])
    rows = hf.Dataset.from_dict({"label": (np.arange(90) % 3).tolist()}, features=hf.Features({"label": labels}))
    partitioner.dataset = rows
    figure, _, frame = plot_label_distributions(partitioner, label_name="label")
    assert frame.to_numpy().sum() == 90
    matplotlib.pyplot.close(figure)


def test_a_named_proxy_is_matched_to_a_named_population_by_name(tmp_path):
    counts = np.tile([8, 1, 0], (30, 1)) + np.random.default_rng(0).integers(0, 2, (30, 3))
    true = Federation({"y": counts}, np.arange(31), names={"y": ("a", "b", "c")})
    mdm = MixtureOfDirichletMultinomials(1).fit(true, progress=False)
    rows = np.repeat([0, 1, 2], [100, 500, 900])
    proxy = Federation({"y": rows}, [0, 1500], names={"y": ("c", "b", "a")})
    made = plan(FromMixture(mdm), proxy, n_clients=20, column="y", seed=0)
    assert made.feasibility.names == ("a", "b", "c")
    assert made.feasibility.available.tolist() == [900, 500, 100]
    got = made.federation().counts("y")
    assert np.array_equal(got[:, ::-1], made.histograms)
    assert got[:, 2].sum() > 0.6 * got.sum()
    mdm.save(tmp_path / "p.json")
    proxy.save(tmp_path / "proxy")
    sim, _ = studies.simulated(tmp_path / "proxy", tmp_path / "p.json", n_clients=20)
    assert sim.counts("y")[:, 2].sum() > 0.6 * sim.n_rows
    strange = Federation({"y": rows}, [0, 1500], names={"y": ("c", "z", "a")})
    with pytest.raises(DataError, match="the proxy has rows of 'z', a category the recipe does not know"):
        plan(FromMixture(mdm), strange, n_clients=20, column="y")
    unnamed = plan(FromMixture(mdm), {"y": rows}, n_clients=5, column="y")
    assert np.array_equal(unnamed.federation().counts("y"), unnamed.histograms)  # by number


NOTHING = Federation({"y": np.empty(0, dtype=np.int64)}, [0, 0])
REFUSED = {
    "alpha must be one number, or with sizes= one for each of 5": lambda: plan(
        Dirichlet([0.5, 0.2, 0.1]), proxy(), n_clients=5
    ),
    "not [3] of them": lambda: plan(Dirichlet([0.5, 0.2, 0.1], sizes=4), proxy(), n_clients=5),
    "histograms are those of no client": lambda: plan(ConditionallyIID(np.zeros((0, 3), int)), proxy(), n_clients=5),
    "the proxy has no rows": lambda: plan(Dirichlet(0.5), NOTHING, n_clients=5),
    "no rows, and no categories": lambda: plan(Dirichlet(0.5, sizes=3), NOTHING, n_clients=5),
    "below what least= promises": lambda: plan(Dirichlet(0.5, sizes=9, least=2), proxy(), n_clients=5, policy="scale"),
    "leave one of the two out": lambda: plan(Quantity(0.5, least=2), proxy(), n_clients=5, policy="scale"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_recipe_can_do_is_one_line(message):
    with pytest.raises(DataError) as error:
        REFUSED[message]()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_independent_clients_of_a_mixture_do_not_depend_on_how_many_follow():
    few, many = (plan(FromMixture(fitted()), proxy(), n_clients=n, seed=3, policy="independent") for n in (10, 50))
    assert all(np.array_equal(few.indices(i), many.indices(i)) for i in range(10))


@pytest.mark.parametrize("n_clients", [1, 5000, 9000])
def test_clients_written_shard_by_shard_are_those_of_one_plan(tmp_path, monkeypatch, n_clients):
    monkeypatch.setattr(sharded, "SHARD", BLOCK)
    rows = Federation.from_clients([{"y": np.arange(300) % 3, "x": np.arange(600.0).reshape(300, 2)}])
    recipe = FromMixture(MixtureOfDirichletMultinomials(1).fit([[3, 1, 0], [0, 2, 2]]))
    whole = plan(recipe, rows, n_clients=n_clients, seed=3, policy="independent")
    for number in (1, 2):
        target = tmp_path / str(number)
        feasible = sharded.write_clients(recipe, rows, target, n_clients=n_clients, seed=3, tasks=Threads(number))
        assert str(feasible) == str(whole.feasibility)
        written, expected = Federation.load(target), whole.federation()
        assert written.fingerprint() == expected.fingerprint()
        assert all(written[name].tobytes() == expected[name].tobytes() for name in expected.columns)
        assert len(list(target.glob("part-*"))) == (0 if n_clients == 1 else -(-n_clients // BLOCK))
    with pytest.raises(DataError, match="exists already"):
        sharded.write_clients(recipe, rows, target, n_clients=2)
    with pytest.raises(DataError, match="clients of FullyIID depend on one another"):
        sharded.write_clients(FullyIID(3), rows, tmp_path / "no", n_clients=2)
    short = rows.where(rows["y"] > 0)
    with pytest.raises(DataError, match="category 0 has no rows"):
        sharded.write_clients(recipe, short, tmp_path / "no", n_clients=20)
    assert not (tmp_path / "no").exists()


class FirstOfBlockEmpty:
    """A population whose clients at multiples of BLOCK have no rows."""

    n_categories = 3

    def sample(self, n, *, seed, sizes=None):
        counts = np.random.default_rng(seed).multinomial(2, [0.5, 0.3, 0.2], n)
        counts[0] = 0
        return counts


def test_a_shard_whose_clients_have_no_rows_is_read_like_any_other(tmp_path, monkeypatch):
    monkeypatch.setattr(sharded, "SHARD", BLOCK)
    rows = Federation.from_clients([{"y": np.arange(30) % 3, "x": np.ones((30, 2), dtype=np.float32)}])
    recipe, n = FromMixture(FirstOfBlockEmpty()), BLOCK + 1
    sharded.write_clients(recipe, rows, tmp_path / "f", n_clients=n, seed=3, tasks=Threads(1))
    written = Federation.load(tmp_path / "f")
    whole = plan(recipe, rows, n_clients=n, seed=3, policy="independent").federation()
    assert np.flatnonzero(written.sizes == 0).tolist() == [0, BLOCK]
    assert written.fingerprint() == whole.fingerprint()
    assert all(written[name].dtype == whole[name].dtype for name in whole.columns)
