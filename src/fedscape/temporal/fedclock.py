"""FedClock: modes learned from the clock by regression, without clustering and by sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.local import LocalSGD
from fedscape.learning.server import Adam, Rule
from fedscape.learning.trainer import trainer_of
from fedscape.temporal.branched import MEAN, Branched, Seen
from fedscape.temporal.calibration import ScoreSums, Verdict, abstaining, posterior
from fedscape.temporal.clues import label_roots, projected, spaced
from fedscape.temporal.covariates import Context, Covariates, Harmonics, Shares
from fedscape.temporal.curves import Linear, Zones
from fedscape.temporal.fedtem import small_example, three_branches, told
from fedscape.temporal.gaussians import segment_means
from fedscape.temporal.priors import Prior, Soft, check_prior, expected_shares, first_prior
from fedscape.temporal.regression import (
    Groups,
    Moments,
    aligned,
    are_apart,
    contrast_noise,
    discriminant,
    pack,
    significance,
)
from fedscape.types import Array, Arrays, Kept, Tensor

_LINEAR = Linear()
_KINDS = ("labels", "features", "both")
_FEATURES = ("fixed", "network", "both")
_ABOVE = 0.2  # of the way from chance to always that features must find the mode
_FAR = 8.0  # standard deviations of clients: a score beyond them counts as that
_FASTER = 4  # times as fast as the network ages, discriminants of its features do
_FEW = 10  # times as many statistics as clients: the ridge is then double
_GROUPS = {
    "means": "feature_means",
    "mass": "server.feature_mass",
    "scatter": "server.feature_scatter",
    "clients": "server.feature_clients",
}
_SCORES = ("score_means", "score_scatter", "score_rows", "score_thin")


class FedClock(Branched):
    """A branch for each mode, the modes learned from the clock. Sums are all the server sees.

    What a prior says of round t, the shares s(t), makes the mean of any statistic of its clients the mean over modes
    weighted by s(t): a linear regression over rounds gives the modes' means. It is done on the square roots of clients'
    label shares; the discriminant of those tells a client that has labels its mode, and it trains that branch alone. A
    client without labels finds its branch by a second discriminant, on features, learned from clients whose mode was
    told by their labels; its scores have a law, learned from clients before they enter the discriminant, which makes
    them probabilities. Predictions mix the branches by them.

    No branch is made before the regression says that rounds matter (`significance`) and features have been seen to
    find the mode of more than a few clients beyond chance; until then all branches learn alike, as one model does.
    `verdict(state)` says what was found.

    The state holds `model.<parameter>`, the two discriminants (`clue_*`, `score_*`), the modes' mean features,
    `trusted`, `branching`, `p_value` and `agreement`. Metrics as for FedTEM.

    Parameters
    ----------
    local
        How a client trains; the model is a MultiBranch, the loss cross entropy.
    prior
        A curve, `Soft`, or `Harmonics(period)` where only the period is known. None: nothing is known of rounds but
        `context`.
    context
        In place of a prior: a known covariate of each round, [rounds] levels (hours, weekdays, regions, versions) or
        numbers.
    by
        What is regressed on the clock: "labels"; "features" where modes have the same labels; "both".
    features
        What tells modes without labels: "network", what enters its branches; "fixed" random projections of the input,
        which do not age; "both".
    projections
        How many fixed projections.
    rows
        Of how many rows of a client features are computed in training, evenly spaced; None for all.
    memory
        How much a round counts that is one round old, for what depends on the network, which ages.
    ridge
        Of both discriminants, in units of each statistic's variance.
    abstain
        Where no branch is likelier than this a unit takes the mean of all of them.
    significance
        The p-value of no dependence on the clock below which modes are believed.
    classes
        How many there are; None: as many as the network's last linear layer has outputs.
    noise
        Under privacy, the standard deviation of the noise on the number of clients of a mode, as for FedTKM.
    strength, smoothing
        lambda and epsilon of equation (4): the pull on the other branches, by default none.
    server, weighting, initial
        As for FedAvg.

    >>> import fedscape as fs
    >>> from fedscape.learning import cross_entropy, models
    >>> fed = fs.Federation({"x": np.eye(4), "y": [0, 1, 0, 1]}, [0, 2, 4])
    >>> step = fs.LocalSGD(fs.temporal.MultiBranch(models.linear(4, 2)), cross_entropy, lr=1.0, epochs=1, batch_size=2)
    >>> method = FedClock(step, Linear(4))
    >>> print(*(method.verdict(r.state) for r in fs.rounds(method, fed, n_rounds=1)))
    one model for all: labels do not clearly follow the clock (p = 1, 1 rounds); try by='both'
    """

    name = "fedclock"

    def __init__(
        self,
        local: LocalSGD,
        prior: Prior | Harmonics | None = _LINEAR,
        *,
        context: npt.ArrayLike | None = None,
        by: str = "labels",
        features: str = "both",
        projections: int = 16,
        rows: int | None = None,
        memory: float = 0.99,
        ridge: float = 0.1,
        abstain: float = 0.6,
        significance: float = 1e-4,
        classes: int | None = None,
        noise: float = 0.0,
        strength: float = 0.0,
        smoothing: float = 0.0,
        server: Rule = MEAN,
        weighting: str = "samples",
        initial: str = "given",
    ) -> None:
        super().__init__(
            local, strength=strength, smoothing=smoothing, server=server, weighting=weighting, initial=initial
        )
        self.prior = prior
        self.context = None if context is None else np.asarray(context)
        self.by = by
        self.features = features
        self.projections = projections
        self.rows = rows
        self.memory = memory
        self.ridge = ridge
        self.abstain = abstain
        self.significance = significance
        self.classes = classes
        self.noise = noise
        self._check()

    def _check(self) -> None:
        if self.context is not None and self.prior not in (None, _LINEAR):
            raise DataError("give a prior or a context, not both: the context is what rounds are regressed on")
        if self.by not in _KINDS or self.features not in _FEATURES:
            raise DataError(
                f"by must be one of {_KINDS} and features one of {_FEATURES}, not {self.by!r} and {self.features!r}"
            )
        if not isinstance(self.prior, Harmonics) and self.context is None:
            check_prior(self.prior, self.n_modes)
        counts = (self.projections, self.rows, self.classes)
        if self.projections < 1 or any(n is not None and n < 2 for n in counts[1:]):
            raise DataError(f"projections must be at least 1, rows and classes at least 2 or None, not {counts}")
        shares = (self.memory, self.abstain, self.significance)
        if not (min(self.memory, self.significance) > 0 and self.abstain >= 0 and max(shares) <= 1):
            raise DataError(f"memory and significance must be above 0 and at most 1, abstain from 0 to 1, not {shares}")
        if not (0 <= self.ridge < np.inf and 0 <= self.noise < np.inf):
            raise DataError(f"ridge and noise must be at least 0, not {self.ridge} and {self.noise}")

    # -- what is regressed, and on what --------------------------------------------------------------------------------

    @property
    def n_classes(self) -> int:
        """How many labels clients can have."""
        sizes = [layer.out_features for layer in self.local.model.modules() if hasattr(layer, "out_features")]
        if self.classes is None and not sizes:
            raise DataError("the network has no linear layer to count classes by: say classes=")
        return int(self.classes or sizes[-1])

    @property
    def n_features(self) -> int:
        """How many numbers tell modes apart without labels."""
        network = 0 if self.features == "fixed" else self.local.model.n_features
        return network + (0 if self.features == "network" else self.projections)

    @property
    def n_clues(self) -> int:
        """How many numbers of a client are regressed on the clock."""
        return (0 if self.by == "features" else self.n_classes) + (0 if self.by == "labels" else self.n_features)

    @property
    def covariates(self) -> Covariates:
        """What is known of a round."""
        if self.context is not None:
            return Context.of(self.context)
        if isinstance(self.prior, Harmonics):
            return self.prior
        return Shares(None if isinstance(self.prior, Soft) else self.prior, self.n_modes)

    def modes(self, seed: int) -> Arrays:
        k, q, m, d, p = self.n_modes, self.n_modes - 1, self.n_features, self.n_clues, len(self.covariates.constant)
        law = (np.zeros((k, q)), np.zeros((k, q, q)), np.zeros((k, q, q)), np.zeros(k))
        return {
            "clue_weights": np.zeros((k, d)),
            "clue_offsets": np.zeros(k),
            "score_weights": np.zeros((q, m)),
            "score_offsets": np.zeros(q),
            **dict(zip(_SCORES, law, strict=True)),
            "trusted": np.asarray(0.0),
            "branching": np.asarray(0.0),
            "p_value": np.asarray(1.0),
            "rounds": np.asarray(0.0),
            "agreement": np.zeros(k),
            "server.clue_count": np.asarray(0.0),
            **{_GROUPS[name]: np.asarray(values) for name, values in Groups.empty(k, m)._asdict().items()},
            **_stored("server.clue_", Moments.empty(p, d)),
            **_stored("server.round_", Moments.empty(p, d)),
            **_stored("server.score_", ScoreSums.empty(k)),
            **first_prior(k),
        }

    # -- what clients do -----------------------------------------------------------------------------------------------

    def see(self, state: Arrays, clients: Federation, *, outputs: bool = False) -> Seen:
        """Features of all rows, the network's and the fixed ones as the method uses them."""
        parts, made = [], None
        if outputs or self.features != "fixed":
            features, made = super().see(state, clients, outputs=outputs)
            parts += [] if self.features == "fixed" else [features]
        if self.features != "network":
            x = trainer_of(self.local).column(clients, self.local.features, slice(None))
            parts.append(projected(self.local.inputs(x), self.projections, scaled=x.dtype == torch.uint8))
        return Seen(torch.cat(parts, dim=1), made)

    def prepare_round(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept, Arrays]:
        k, some = self.n_modes, clients.sizes > 0
        looked = spaced(clients, self.rows)
        features, offsets = self.see(state, looked).features, self.offsets(looked)
        means = segment_means(features, offsets).cpu().numpy()
        parts = [] if self.by == "features" else [label_roots(clients, self.local.target, self.n_classes)]
        clues = np.concatenate([*parts, *([] if self.by == "labels" else [means])], axis=1)
        mode = (clues @ state["clue_weights"].T + state["clue_offsets"]).argmax(axis=1)
        near = np.eye(k)[mode] * some[:, None]
        away = (means - state["feature_means"][mode]) * some[:, None]
        scores, rows, several = self._scores(state, features, offsets)
        chosen = posterior(state, scores, looked.sizes).argmax(axis=1)
        sent = {
            "present": some,
            "clues": clues,
            "clue_pairs": pack(clues[:, :, None] * clues[:, None, :]),
            "near": near,
            "away": near[:, :, None] * away[:, None, :],
            "away_pairs": pack(away[:, :, None] * away[:, None, :]),
            "score_first": near[:, :, None] * scores[:, None, :],
            "score_pairs": near[:, :, None, None] * (scores[:, :, None] * scores[:, None, :])[:, None],
            "score_right": near * (chosen == mode)[:, None],
            "score_rows": near[:, :, None, None] * rows[:, None],
            "score_several": near * several[:, None],
            "score_thin": near / np.maximum(looked.sizes, 1)[:, None],
        }
        dtype = np.dtype(str(self.local.dtype).removeprefix("torch."))
        weights = near[clients.client_of_row] if state["branching"] > 0 else np.full((clients.n_rows, k), 1 / k)
        return weights, {}, {name: np.asarray(values, dtype=dtype) for name, values in sent.items()}

    def _scores(self, state: Arrays, features: Tensor, offsets: Tensor) -> tuple[Array, Array, Array]:
        """Mean scores [units, q], the scatter of rows about them [units, q, q], and which units have two or more."""
        each = features @ self.double(state["score_weights"]).T - self.double(state["score_offsets"])
        means, n = segment_means(each, offsets), offsets.diff()
        pairs = segment_means((each[:, :, None] * each[:, None, :]).flatten(1), offsets).reshape(
            -1, *[each.shape[1]] * 2
        )
        several = n > 1
        scale = (several * n / (n - 1).clamp(min=1))[:, None, None]
        scatter = (pairs - means[:, :, None] * means[:, None, :]) * scale
        return means.clamp(-_FAR, _FAR).cpu().numpy(), scatter.cpu().numpy(), several.cpu().numpy()

    def _shares_of_units(self, state: Arrays, rows: Seen, clients: Federation, unit: str, batch: int) -> Tensor:
        ends = self.offsets_of_units(clients, unit, batch)
        sizes = ends.diff().cpu().numpy()
        chances = np.full((len(sizes), self.n_modes), 1 / self.n_modes)
        if state["branching"] > 0:
            scores = self._scores(state, rows.features, ends)[0]
            chances = abstaining(posterior(state, scores, sizes), self.abstain)
        return self.double(np.repeat(chances, sizes, axis=0))

    # -- what the server makes of it -----------------------------------------------------------------------------------

    def learn(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        total = {n: np.asarray(v, dtype=float) for n, v in total.items() if not n.startswith("delta.") and n != "ids"}
        shares, remembered = self._covariates_of(state, total, key)
        count = float(total["present"])
        if told(np.asarray(count), self.noise) <= 0:
            return remembered
        return {**remembered, **self._regressed(state, total, shares, count), **self._supervised(state, total, count)}

    def _covariates_of(self, state: Arrays, total: Arrays, key: Key) -> tuple[Array, Arrays]:
        if isinstance(self.prior, Soft) and self.context is None:
            return expected_shares(self.prior, state, key, total["near"])
        return self.covariates.row(key.round), {"server.last": np.asarray(key.round)}

    def _regressed(self, state: Arrays, total: Arrays, a: Array, count: float) -> Arrays:
        """The regression on the clock with this round, the discriminant it gives, and whether to believe it."""
        memory = 1.0 if self.by == "labels" or self.features == "fixed" else self.memory
        mean = total["clues"] / count
        clues = _moments(state, "server.clue_").plus(a, count, total["clues"], total["clue_pairs"], memory)
        by_round = _moments(state, "server.round_").plus(a, 1.0, mean, pack(np.outer(mean, mean)), memory)
        n = memory * float(state["server.clue_count"]) + count
        coefficients, scatter = clues.coefficients(), clues.residual(n)
        metric = discriminant(np.eye(len(scatter)), scatter, ridge=self._ridge(n, len(scatter))).weights
        loadings = self.covariates.loadings(coefficients, (metric + metric.T) / 2, clues.gram, self.n_modes)
        if not isinstance(self.covariates, Shares):
            loadings = loadings[aligned(loadings @ coefficients, state["clue_weights"], state["clue_offsets"])]
        means = loadings @ coefficients
        weights, test = means @ metric, significance(by_round, self.covariates.constant)
        clear = are_apart(means, metric, contrast_noise(clues.gram, loadings))
        trusted = clear and test.p_value < self.significance
        return {
            "clue_weights": weights,
            "clue_offsets": -0.5 * (weights * means).sum(axis=1),
            "trusted": np.asarray(float(trusted)),
            "branching": np.asarray(float(trusted and self._found(state["agreement"]))),
            "p_value": np.asarray(test.p_value),
            "rounds": np.asarray(test.rounds),
            "server.clue_count": np.asarray(n),
            **_stored("server.clue_", clues),
            **_stored("server.round_", by_round),
        }

    def _ridge(self, n: float, d: int) -> float:
        """The ridge for d statistics of n clients: larger where there are few clients."""
        return self.ridge * (1 + _FEW * d / max(n, 1.0))

    def _found(self, agreement: Array) -> bool:
        """Whether features find the modes of enough clients."""
        return bool(agreement.mean() > (1 + _ABOVE * (len(agreement) - 1)) / len(agreement))

    def _supervised(self, state: Arrays, total: Arrays, count: float) -> Arrays:
        """The modes' features and the law of scores, of clients whose mode the clock's discriminant told."""
        if state["trusted"] == 0:
            return {}
        near = told(np.maximum(total["near"], 0.0), self.noise)
        own = self.memory ** (len(near) * near / max(float(near.sum()), 1.0))  # a mode ages while its clients are seen
        groups = Groups(**{name: state[_GROUPS[name]] for name in Groups._fields})
        groups = groups.plus(near, total["away"], total["away_pairs"], count, own, self.memory)
        kept = {_GROUPS[name]: np.asarray(values) for name, values in groups._asdict().items()}
        if not groups.known:
            return kept
        within, centre = groups.within(), groups.means.mean(axis=0)
        ridge = self._ridge(float(groups.clients), len(centre))
        weights = discriminant(groups.means - centre, within, ridge=ridge).weights[:-1]
        weights = weights / np.sqrt(max(float(np.mean(((weights @ within) * weights).sum(axis=1))), 1e-300))
        sums = ScoreSums(**{name: state[f"server.score_{name}"] for name in ScoreSums._fields})
        if state["score_weights"].any():  # the scores of this round are those of a discriminant
            parts = {n: total[f"score_{n}"] for n in ScoreSums._fields if n != "mass"}
            sums = sums.plus(ScoreSums(mass=near, **parts), own**_FASTER)
        return {
            **kept,
            "score_weights": weights,
            "score_offsets": weights @ centre,
            **sums.law(state),
            "agreement": sums.agreement,
            **_stored("server.score_", sums),
        }

    def verdict(self, state: Arrays) -> Verdict:
        """What was found up to this state: whether rounds matter, and whether features tell the modes."""
        agreement = tuple(float(share) for share in state["agreement"])
        return Verdict(
            bool(state["branching"] > 0),
            float(state["p_value"]),
            float(state["rounds"]),
            agreement,
            self.by,
            bool(state["trusted"] > 0),
        )

    @classmethod
    def examples(cls) -> Sequence[tuple[FedClock, Federation]]:
        fed, one, two = small_example()
        return [
            (cls(one, Linear(4)), fed),
            (cls(two, Soft(4), weighting="equal", server=Adam(), by="both", rows=3), fed),
            (cls(three_branches(two), Zones(6), noise=0.5, features="fixed", by="features"), fed),
            (cls(one, Harmonics(4), features="network"), fed),
            (cls(one, None, context=np.array(["a", "b", "a", "c"] * 4)), fed),
        ]


def _stored(prefix: str, parts: Any) -> Arrays:
    return {prefix + name: np.asarray(values) for name, values in parts._asdict().items()}


def _moments(state: Arrays, prefix: str) -> Moments:
    return Moments(**{name: np.asarray(state[prefix + name]) for name in Moments._fields})
