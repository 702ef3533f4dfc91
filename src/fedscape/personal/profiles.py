"""Groups of clients found from descriptions of their data, a model for each, and new clients served without labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fedscape.core.blocks import on_host
from fedscape.core.computation import Computation
from fedscape.core.engine import Engine, as_engine
from fedscape.core.federation import Federation
from fedscape.core.kept import kept_rows
from fedscape.core.random import Key
from fedscape.core.rounds import check_declared_classes
from fedscape.core.validate import check_number, check_whole
from fedscape.errors import DataError, NotFittedError, PrivacyError
from fedscape.learning.evaluation import valid_rows
from fedscape.learning.local import LocalSGD, check_local
from fedscape.learning.trainer import trainer_of
from fedscape.personal.features import principal_directions, projected
from fedscape.personal.fedem import log_sum, logs, small_example
from fedscape.personal.shared import (
    each_model,
    forward,
    measured,
    moved_from,
    moved_models,
    stacked,
    start_models,
    sums_over_rows,
    weighted,
    weighted_sums,
)
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.statistics.histogram import Histogram
from fedscape.statistics.kmeans import FederatedKMeans
from fedscape.statistics.moments import Moments
from fedscape.types import Array, Arrays, Kept, Tensors

_BINS = 128  # of squared distances, by powers of two from 2^-8 to 2^8
_UNMEASURED = 0.05  # variance within groups where privacy lets nobody measure it: that of 20 rows
_SURE = 4.0  # times what chance makes of the centres' spread: below it a number does not tell groups apart
_JOINT = 4  # directions whose moments are taken class by class


class Profiles:
    """What clients' data look like in a few numbers, groups of clients by them, and who belongs to none.

    The idea of FLUX (2025) and FEROMA (2026): clients are described, grouped by their descriptions, and every group has
    a model. Here descriptions are moments: of the leading principal components of the features, scaled to variance 1
    inside clients, a client's means and variances. Where labels are named, also its class shares and the components'
    means class by class. Each number then has a sampling variance near 1 / rows. They stay with the client: components
    come from summed moments (`Moments`), groups from k-means by sums (`FederatedKMeans`), their number from the least
    BIC of spherical Gaussians among 1 to `most`.

    A client without labels is compared by the part of its description that needs none. It gets weights of the groups,
    w_g in proportion to share_g exp(-|p - c_g|^2 / 2 s^2), s^2 being the variance within groups, over the numbers in
    which centres differ by more than chance. Where groups differ in their labels only, the weights are their shares. It
    abstains, and has the shares too, where it is farther from every group than all but a share `alpha` of clients that
    were kept out of the grouping. For a client like those, that happens with probability about alpha.

    Parameters
    ----------
    n_groups
        How many groups; None finds it.
    most
        The largest number tried.
    directions
        How many principal components.
    column, target
        The features, and the labels if descriptions are to use them.
    alpha
        How often a client that belongs may abstain; 0 never does.
    kept_out
        The share of the clients that the distance is calibrated on, by a keyed draw.
    bound
        Under privacy: rows of features, and descriptions, longer than this are shortened to it.
    seed
        Of k-means and the draw.

    Learns `n_groups_`, `centres_` [groups, p], `shares_` [groups], `variance_`, `threshold_` and `bic_` by number.

    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(m, 1.0, (40, 2)) for m in [(4, 0), (0, 4)] * 12])
    >>> fed = Federation({"x": x}, np.arange(0, 961, 40))
    >>> profiles = Profiles(directions=2).fit(fed)
    >>> profiles.n_groups_, profiles.weights(fed)[0].max().round(2).item()
    (2, 1.0)
    """

    def __init__(
        self,
        n_groups: int | None = None,
        *,
        most: int = 6,
        directions: int = 16,
        column: str = "x",
        target: str | None = None,
        alpha: float = 0.05,
        kept_out: float = 0.25,
        bound: float | None = None,
        seed: int = 0,
    ) -> None:
        self.n_groups = n_groups
        self.most = most
        self.directions = directions
        self.column = column
        self.target = target
        self.alpha = alpha
        self.kept_out = kept_out
        self.bound = bound
        self.seed = seed
        check_whole("most", most, least=1)
        check_whole("directions", directions, least=1)
        if n_groups is not None:
            check_whole("n_groups", n_groups, least=1)
        if not 0 <= check_number("alpha", alpha) < 1 or not 0 <= check_number("kept_out", kept_out) < 1:
            raise DataError(f"alpha and kept_out must be at least 0 and below 1, not {alpha} and {kept_out}")

    def fit(
        self, data: Engine | Federation, *, privacy: Privacy | None = None, ledger: Ledger | None = None
    ) -> Profiles:
        """Find the groups of these clients.

        Parameters
        ----------
        data
            The clients, here.
        privacy, ledger
            How sums are clipped and noised, and where every release is written first: those of moments and k-means
            and one of distances. Needs `bound` and `n_groups`: numbers of groups are compared by measuring them.
        """
        clients = as_engine(data).clients
        if not isinstance(clients, Federation):
            raise DataError("Profiles is for clients whose data are here")
        if privacy is not None and (self.bound is None or self.n_groups is None):
            raise PrivacyError("private profiles need bound= and n_groups=: what is not bounded cannot be noised")
        if privacy is not None and privacy.unit != "client":
            raise PrivacyError("one row moves the whole description of its client: use unit='client' for profiles")
        if privacy is not None and self.target is not None:
            check_declared_classes(clients, self.target)
        if privacy is not None and ledger is None:
            ledger = privacy.new_ledger()
        self.ledger_ = ledger
        with np.errstate(all=None if privacy is None else "ignore"):  # a warning would tell
            self._learn(clients, privacy, ledger)
        return self

    def _learn(self, clients: Federation, privacy: Privacy | None, ledger: Ledger | None) -> None:
        how: dict[str, Any] = {"progress": False, "privacy": privacy, "ledger": ledger}
        moments = Moments(column=self.column, bound=self.bound).fit(clients, **how)
        mean, vectors = principal_directions(moments, min(self.directions, len(moments.mean_)))
        z, own = self._centred(clients, mean, vectors)
        inside = Moments(column="z", bound=self.bound).fit(Federation({"z": z - own}, clients.offsets), **how)
        spread = np.diag(inside.covariance_)
        self.mean_, self.vectors_ = mean, vectors / np.sqrt(np.maximum(spread, 1e-6 * max(spread.max(), 1e-12)))
        self.n_classes_ = 0 if self.target is None else clients.categories(self.target)
        present = clients.take(np.flatnonzero(clients.sizes))
        out = Key(self.seed, purpose="clients kept out").uniform(present) < self.kept_out * (self.alpha > 0)
        rows = _each_one_row(self.describe(present))
        self._group(rows.take(np.flatnonzero(~out)), how)
        self._calibrate(present.take(np.flatnonzero(out)), how)

    def describe(self, clients: Federation, *, labelled: bool = True) -> Array:
        """Each client's own description, [clients, p]; zeros without rows. Without labels only the first 2k numbers.

        A label that is none of the classes counts for none.
        """
        z, own = self._centred(clients, self.mean_, self.vectors_)
        n, away = np.maximum(clients.sizes, 1)[:, None], z - own
        squares = (sums_over_rows(away**2, clients) / n - (clients.sizes > 0)[:, None]) / np.sqrt(2)
        parts = [sums_over_rows(z, clients) / n, squares]
        if labelled and self.target is not None:
            own_class = clients[self.target][:, None] == np.arange(self.n_classes_)
            one_hot = own_class * np.sqrt(self.n_classes_)
            joint = np.einsum("nc,nk->nck", one_hot, away[:, :_JOINT])
            parts += [sums_over_rows(one_hot, clients) / n, _flat(sums_over_rows(joint, clients)) / n]
        return np.concatenate(parts, axis=1)

    def _centred(self, clients: Federation, mean: Array, vectors: Array) -> tuple[Array, Array]:
        """Rows along these directions, and for each row the mean of its client's: [rows, k]."""
        z = projected(clients[self.column], mean, vectors)
        means = sums_over_rows(z, clients) / np.maximum(clients.sizes, 1)[:, None]
        return z, np.repeat(means, clients.sizes, axis=0)

    def _group(self, rows: Federation, how: dict[str, Any]) -> None:
        n, p = float(len(rows)), rows["profile"].shape[1]
        if n < 2 and how["privacy"] is None:
            raise DataError(f"there must be two clients to group at least, there are {n:.0f}: lower kept_out")
        tried = [self.n_groups] if self.n_groups is not None else range(1, min(self.most, len(rows) - 1) + 1)
        fitted, self.bic_ = {}, {}
        for k in tried:
            means = FederatedKMeans(k, column="profile", bound=self.bound, seed=self.seed, **_lengths(how))
            means.fit(rows, **how)
            if how["privacy"] is not None:
                n = max(float(means.sizes_.sum()), 1.0)  # the noisy number: the exact one is a secret
            within = n * means.inertia_ if np.isfinite(means.inertia_) else n * p * _UNMEASURED
            sizes = np.maximum(means.sizes_, 1e-3)
            mixed = -2 * float(sizes @ np.log(sizes / sizes.sum()))  # which group each client is in
            self.bic_[k] = n * p * np.log(max(within, 1e-12) / (n * p)) + mixed + k * (p + 1) * np.log(n)
            fitted[k] = (means, within)
        self.n_groups_ = min(self.bic_, key=self.bic_.__getitem__)
        means, within = fitted[self.n_groups_]
        self.centres_, self.variance_ = means.centres_, max(within / (n * p), 1e-6)
        sizes = np.maximum(means.sizes_, 0.0) + 1e-3
        self.shares_, self.n_clients_ = sizes / sizes.sum(), n

    def _calibrate(self, clients: Federation, how: dict[str, Any]) -> None:
        """The distance beyond which a client abstains: a quantile of those of clients kept out, by a histogram."""
        self.threshold_ = np.inf
        if self.alpha == 0 or not (len(clients) or how["privacy"]):
            return
        edges = 2.0 ** np.linspace(-8, 8, _BINS)
        cell = np.searchsorted(edges, self._squares(self.describe(clients, labelled=False)).min(axis=1))
        bins = Federation({"y": np.minimum(cell, _BINS - 1)}, np.arange(len(clients) + 1), clients.ids)
        counts = np.maximum(Histogram(_BINS).fit(bins, **how).counts_, 0.0)
        total = counts.sum()
        enough = np.flatnonzero(np.cumsum(counts) >= (1 - self.alpha) * (total + 1))
        self.threshold_ = float(edges[enough[0]]) if len(enough) else np.inf  # the upper end of its bin

    def _squares(self, described: Array) -> Array:
        """Squared distance to each group over the numbers that need no labels, a mean over them: [clients, groups]."""
        width = 2 * self.vectors_.shape[1]
        away = described[:, None, :width] - self.centres_[None, :, :width]
        return np.asarray(np.mean(away**2, axis=2))

    def weights(self, clients: Federation) -> Array:
        """Weights of the groups for clients without labels: [clients, groups]; the shares where one abstains."""
        self._check_fitted()
        width = 2 * self.vectors_.shape[1]
        away = self.describe(clients, labelled=False)[:, None, :] - self.centres_[None, :, :width]
        raw = logs(self.shares_)[None, :] - (away**2 @ self._telling()) / (2 * self.variance_)
        soft = np.exp(raw - log_sum(raw, axis=1)[:, None])
        return np.asarray(np.where(self.abstains(clients)[:, None], self.shares_[None, :], soft))

    def _telling(self) -> Array:
        """How much each number without labels tells of the group, from 0 to 1: 0 where centres differ by chance."""
        width = 2 * self.vectors_.shape[1]
        centres = self.centres_[:, :width]
        between = self.shares_ @ (centres - self.shares_ @ centres) ** 2
        chance = _SURE * self.variance_ * max(self.n_groups_ - 1, 1) / self.n_clients_
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(between > chance, 1 - chance / between, 0.0))

    def abstains(self, clients: Federation) -> Array:
        """Which clients are farther from every group than clients usually are, or have no rows."""
        self._check_fitted()
        squares = self._squares(self.describe(clients, labelled=False)).min(axis=1)
        return np.asarray((squares > self.threshold_) | (clients.sizes == 0))

    def groups(self, clients: Federation) -> Array:
        """The nearest group of each client, by its labels too where descriptions use them."""
        self._check_fitted()
        away = self.describe(clients)[:, None] - self.centres_[None]
        return np.asarray(np.argmin((away**2).sum(axis=2), axis=1))

    def _check_fitted(self) -> None:
        if not hasattr(self, "centres_"):
            raise NotFittedError("these Profiles are not fitted yet: call fit() with the clients first")


class ProfiledFL(Computation):
    """A model for each group of fitted Profiles: a client trains the one of the group that its description is in.

    A client looks at its description in every round, so one whose data drift changes its group by itself. The server
    sees the sums of the moves of each group and their rows, never who is where. New clients without labels get the
    groups' models mixed by the weights that their description gives.

    Parameters
    ----------
    local
        How a client trains.
    profiles
        Fitted.
    initial
        "given" or "seed": the first weights, the same for all groups.

    >>> from fedscape.learning import cross_entropy, models
    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(m, 1.0, (40, 2)) for m in [(4, 0), (0, 4)] * 12])
    >>> fed = Federation({"x": x, "y": (x[:, 0] > 2).astype(int)}, np.arange(0, 961, 40))
    >>> step = LocalSGD(models.linear(2, 2), cross_entropy, lr=0.1, epochs=1, batch_size=8)
    >>> ProfiledFL(step, Profiles(directions=2).fit(fed)).start(0)["model.1.weight"].shape
    (2, 2, 2)
    """

    name = "profiled-fl"
    newcomers: ClassVar[str | None] = "the groups' models mixed by what its features say"

    block_rows = 2**14

    def __init__(self, local: LocalSGD, profiles: Profiles, *, initial: str = "given") -> None:
        self.local = local
        self.profiles = profiles
        self.initial = initial
        check_local(local, initial)
        profiles._check_fitted()

    @property
    def noised_before(self) -> bool:
        """Whether the profiles were fitted privately, so that private rounds are all that is left to book."""
        return self.profiles.ledger_ is not None

    @property
    def block_clients(self) -> int:  # type: ignore[override]  # it depends on the model
        """As many clients as are trained side by side."""
        return max(1, trainer_of(self.local).chunk // self.profiles.n_groups_)

    def start(self, seed: int) -> Arrays:
        one = start_models(self.local, 1, seed, initial=self.initial)
        return {n: np.repeat(v, self.profiles.n_groups_, axis=0) for n, v in one.items()}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._trained(state, clients, key)
        return {**weighted(moves, weight), "weight": weight}, kept

    def total(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        moves, weight, kept = self._trained(state, clients, key)
        return {**on_host(weighted_sums(moves, weight)), "weight": weight.sum(axis=0)}, kept

    def _trained(self, state: Arrays, clients: Federation, key: Key) -> tuple[Tensors, Array, Kept]:
        """Each client's move, what it counts in each group, and its group."""
        group = self.profiles.groups(clients)
        moves = moved_from(self.local, state, group, clients, key)
        return moves, np.eye(self.profiles.n_groups_)[group] * clients.sizes[:, None], {"group": group}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {**state, **moved_models(state, total, total["weight"])}

    def measure(self, state: Arrays, clients: Federation) -> Arrays:
        return measured(self, state, clients)

    def log_probs(self, state: Arrays, clients: Federation) -> Array:
        """log p(class | x) of each row: its client's group, or for a new client the groups mixed: [rows, classes]."""
        weight = np.array(self.profiles.weights(clients))
        group = kept_rows(clients, "group", np.asarray(-1))
        weight[group >= 0] = np.eye(self.profiles.n_groups_)[group[group >= 0]]
        outputs = forward(
            self.local, each_model(stacked(self.local, state)), clients, slice(0, clients.n_rows), loss=False
        )
        mix = np.repeat(logs(weight), clients.sizes, axis=0)  # [rows, groups]
        return log_sum(mix[:, :, None] + outputs, axis=1)

    def adapt(self, state: Arrays, clients: Federation, key: Key) -> Kept:
        """The group of each client by all that its description has."""
        return {"group": self.profiles.groups(clients)}

    def coded_columns(self) -> Sequence[str]:
        return (self.local.target,)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return valid_rows(self.local, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[ProfiledFL, Federation]]:
        fed, one, two = small_example()
        groups = [Profiles(2, directions=3, alpha=0.0, target=target).fit(fed) for target in (None, "y")]
        return [(cls(one, groups[0]), fed), (cls(two, groups[1], initial="seed"), fed)]


def _each_one_row(described: Array) -> Federation:
    return Federation({"profile": described}, np.arange(len(described) + 1))


def _lengths(how: dict[str, Any]) -> dict[str, int]:
    """Starts and rounds of k-means: under privacy each round is a release, and comparing starts is one more."""
    return {"n_init": 8, "rounds": 50} if how["privacy"] is None else {"n_init": 1, "rounds": 8}


def _flat(values: Array) -> Array:
    return values.reshape(len(values), int(np.prod(values.shape[1:])))
