"""FedClock: modes learned by regression on the clock, without clustering and from sums alone."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.errors import DataError
from fedscape.learning.branches import branch_evidence, contrast_targets
from fedscape.learning.local import LocalSGD
from fedscape.learning.server import Adam, Rule
from fedscape.temporal.branched import MEAN, Branched, Seen
from fedscape.temporal.calibration import (
    ScoreSums,
    Verdict,
    abstaining,
    features_suffice,
    posterior,
    recent_shares,
)
from fedscape.temporal.clock_settings import check_bounded, check_settings
from fedscape.temporal.clock_state import OWN, first_clock, groups_in, moments_in, scores_in, stored, stored_groups
from fedscape.temporal.clues import clues_of, fixed_features, fixed_means, looked_at, means_of
from fedscape.temporal.covariates import Context, Covariates, Harmonics, Shares
from fedscape.temporal.curves import Linear, Zones
from fedscape.temporal.fedtem import small_example, three_branches, told
from fedscape.temporal.mean_network import first_mean, has_mean, next_mean, with_mean
from fedscape.temporal.priors import Prior, Soft, expected_shares, first_prior
from fedscape.temporal.regression import (
    Moments,
    aligned,
    are_apart,
    contrast_noise,
    metric_of,
    packed_pairs,
    ridge_for,
    significance,
    unit_discriminant,
)
from fedscape.temporal.scores import FAR, FAR_PRIVATELY, branch_statistics, scales_beside, score_statistics, unit_scores
from fedscape.types import Array, Arrays, Kept, Tensor

if TYPE_CHECKING:
    from fedscape.privacy.mechanisms import Privacy

_LINEAR = Linear()
_SOLVED = 4  # the regression adds every round and is solved every this many
_FASTER = 2  # the distribution of scores ages this many times faster than the features
_DRIFT = 0.5  # the share of what a round shows by which the network's features of all modes move together


class FedClock(Branched):
    """One branch per mode, with modes learned from the clock. The server sees sums only.

    A prior gives the shares s(t) of the modes in round t. The mean of any statistic of the clients of a round is then
    the mean over modes, weighted by s(t). A linear regression over rounds gives the modes' means. FedClock regresses
    the square roots of clients' label shares. The discriminant of these finds the mode of a client with labels, and the
    client trains that branch alone. Branches also learn to tell the modes apart: all their outputs are one softmax over
    modes and classes (`contrast`). A client without labels finds its branch by the branches' log-odds. The distribution
    of these is learned by sums and turns them into probabilities. Predictions mix the branches by them.

    FedClock branches once two things hold: the regression is significant (`significance`), and log-odds predict the
    mode of clients clearly better than chance. Until then all branches learn alike, as one model does.
    `verdict(state)` reports both.

    The state holds `model.<parameter>`, `mean.<parameter>`, the discriminant of clients with labels (`clue_*`), the
    distribution of scores (`score_*`), `trusted`, `branching`, `p_value` and `agreement`. Metrics as for FedTEM.

    Parameters
    ----------
    local
        How a client trains; the model is a MultiBranch, the loss cross entropy.
    prior
        A curve, `Soft`, or `Harmonics(period)` if only the period is known. None: `context` is all that is known of
        rounds.
    context
        In place of a prior: a known covariate of each round, [rounds] levels (hours, weekdays, regions, versions) or
        numbers.
    by
        The statistics regressed on the clock: "labels"; "features" if modes have the same labels; "both".
    features
        What separates modes without labels: "branches", their log-odds, learned by contrast. Or a second discriminant:
        on the "network"'s features, the input of its branches; on "fixed" random projections of the input, which do not
        age; on "both". `by` regresses these features too; for "branches" the fixed ones.
    contrast
        The weight of the loss by which branches learn to tell modes apart, for "branches".
    projections
        Number of fixed projections.
    held
        For "branches", the share of a client's rows that it does not train on. Scores of modes are learned from these,
        so that they are what new clients have. Clients with fewer than 1 / `held` rows use rows that they train on.
    rows
        The most rows per client, evenly spaced, for which scores and features are computed in training; None for all.
    memory
        The weight of sums that are one round old, for those that depend on the network, which ages.
    inertia
        The weight of earlier rounds in the mean network, the average of the networks of all rounds, which predicts and
        tells modes apart. The network of a single round leans to the modes of its cohort. 0: that network.
    ridge
        Of both discriminants, in units of each statistic's variance.
    abstain
        A unit whose likeliest branch is below this probability takes the mean of all branches.
    significance
        Modes are used once the p-value of no dependence on the clock is below this.
    classes
        Number of classes; None: the outputs of the network's last linear layer.
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
        features: str = "branches",
        contrast: float = 0.3,
        projections: int = 128,
        held: float = 0.05,
        rows: int | None = 10,
        memory: float = 0.99,
        inertia: float = 0.98,
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
        self.contrast = contrast
        self.projections = projections
        self.held = held
        self.rows = rows
        self.memory = memory
        self.inertia = inertia
        self.ridge = ridge
        self.abstain = abstain
        self.significance = significance
        self.classes = classes
        self.noise = noise
        check_settings(self)

    # -- statistics and covariates -------------------------------------------------------------------------------------

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        if self.classes is None and not self.local.outputs:
            raise DataError("the network has no linear layer to count classes by: say classes=")
        return int(self.classes or self.local.outputs)

    @property
    def by_branches(self) -> bool:
        """Whether the branches themselves tell modes apart, by contrast."""
        return self.features == "branches"

    @property
    def n_features(self) -> int:
        """Number of features of a row, those that `by` regresses; for "branches" the fixed ones, if any."""
        network = self.local.model.n_features if self.features in ("network", "both") else 0
        is_projected = self.features in ("fixed", "both") or (self.by_branches and self.by != "labels")
        return network + (self.projections if is_projected else 0)

    @property
    def n_clues(self) -> int:
        """Number of statistics of a client that are regressed on the clock."""
        return (0 if self.by == "features" else self.n_classes) + (0 if self.by == "labels" else self.n_features)

    @property
    def covariates(self) -> Covariates:
        """The covariates of a round."""
        if self.context is not None:
            return Context.of(self.context)
        if isinstance(self.prior, Harmonics):
            return self.prior
        return Shares(None if isinstance(self.prior, Soft) else self.prior, self.n_modes)

    def modes(self, seed: int) -> Arrays:
        return {**first_clock(self), **first_prior(self.n_modes)}

    def own_names(self, state: Arrays) -> Collection[str]:
        return [n for n in state if n.startswith(OWN) or not n.startswith(("model.", "mean.", "server."))]

    # -- clients -------------------------------------------------------------------------------------------------------

    def start(self, seed: int) -> Arrays:
        state = super().start(seed)
        return {**state, **first_mean(state)}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        after = super().update(state, total, key)
        return {**after, **next_mean(self.local, state, after, self.inertia, key.round)}

    def see(self, state: Arrays, clients: Federation, *, outputs: bool = False) -> Seen:
        """What tells modes of rows apart, under the mean network: its features, fixed ones, its branches' log-odds."""
        if self.by_branches:
            branches = self._branches(state, clients).to(torch.float64)
            return Seen(branch_evidence(branches), branches)
        state, parts, all_outputs = with_mean(state), [], None
        if outputs or self.features != "fixed":
            features, all_outputs = super().see(state, clients, outputs=outputs)
            parts += [features] if self.features in ("network", "both") else []
        if self.features in ("fixed", "both"):
            parts.append(fixed_features(self.local, clients, self.projections))
        return Seen(torch.cat(parts, dim=1), all_outputs)

    def _branches(self, state: Arrays, clients: Federation, rows: Array | None = None) -> Tensor:
        """Outputs of the branches of the mean network for these (or all) rows."""
        return self.outputs_of(state, clients, rows, network="mean" if has_mean(state) else "model")

    def _scores(self, state: Arrays, features: Tensor) -> Tensor:
        """The scores of rows by which modes are told apart: [rows, K - 1]."""
        if self.by_branches:
            return features
        return features @ self.double(state["score_weights"]).T - self.double(state["score_offsets"])

    @property
    def _far(self) -> float:
        return FAR_PRIVATELY if self.noise > 0 else FAR

    def prepare_round(self, state: Arrays, clients: Federation, key: Key) -> tuple[Array, Kept, Arrays]:
        k, some, branching = self.n_modes, clients.sizes > 0, state["branching"] > 0
        read, held = looked_at(clients, self.held if self.by_branches else 0.0, self.rows)
        offsets = np.append(0, np.cumsum(read))[clients.offsets]
        if self.by_branches:
            output = self._branches(state, clients, np.flatnonzero(read))
            means = fixed_means(self.local, clients, self.n_features, self.rows)
        else:
            output = self.see(state, clients.where(read)).features
            means = means_of(output, offsets)
        dtype = np.dtype(str(self.local.dtype).removeprefix("torch."))
        clues, pairs = clues_of(self.by, clients, means, self.local.target, self.n_classes, dtype)
        mode = (clues @ state["clue_weights"].T + state["clue_offsets"]).round(9).argmax(axis=1)  # ties: the first
        near = np.eye(k)[mode] * some[:, None]
        if self.by_branches:
            scores = branch_statistics(state, output, offsets, near, self._far)
        else:
            scores = score_statistics(state, self._scores(state, output).cpu().numpy(), offsets, near, self._far)
        sent = {"present": some, "clues": clues, "clue_pairs": pairs, "near": near, **scores}
        if not self.by_branches:
            away = (means - state["feature_means"][mode]) * some[:, None]
            sent["away"] = near[:, :, None] * away[:, None, :]
            sent["away_pairs"] = packed_pairs(away)
        trained = ~held[:, None]
        own = near[clients.client_of_row] * trained
        weights = own if branching else trained * np.full(k, 1 / k)
        if self.by_branches and state["trusted"] > 0:
            weights = contrast_targets(weights, own, state["mode_shares"], self.contrast)
        return weights, {}, {name: np.asarray(values, dtype=dtype) for name, values in sent.items()}

    def _shares_of_units(self, state: Arrays, rows: Seen, clients: Federation, unit: str, batch: int) -> Tensor:
        ends = self.offsets_of_units(clients, unit, batch).cpu().numpy()
        sizes = np.diff(ends)
        chances = np.full((len(sizes), self.n_modes), 1 / self.n_modes)
        if state["branching"] > 0:
            scores = unit_scores(self._scores(state, rows.features).cpu().numpy(), ends, self._far).means
            chances = abstaining(posterior(state, scores, sizes), self.abstain)
        return self.double(np.repeat(chances, sizes, axis=0))

    def under(self, privacy: Privacy) -> tuple[FedClock, Privacy]:
        """This method and this release made to fit each other: equal weights, `scales_beside`, the `noise` on modes."""
        check_bounded(self)
        scales = {**scales_beside(privacy.first_clip), **privacy.scales}
        noise = privacy.spread() * privacy.with_count(privacy.first_clip) * scales["near"]
        method = copy.copy(self)
        method.weighting, method.noise = "equal", max(self.noise, noise)
        return method, replace(privacy, scales=scales)

    # -- server --------------------------------------------------------------------------------------------------------

    def learn(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        total = {n: np.asarray(v, dtype=float) for n, v in total.items() if not n.startswith("delta.") and n != "ids"}
        shares, remembered = self._covariates_of(state, total, key)
        count = float(total["present"])
        if self.by_branches:
            remembered["mode_shares"] = recent_shares(state["mode_shares"], total["near"])
        if told(np.asarray(count), self.noise) <= 0:
            return remembered
        regressed = self._regressed(state, total, shares, count, key.round)
        return {**remembered, **regressed, **self._supervised(state, total, count)}

    def _covariates_of(self, state: Arrays, total: Arrays, key: Key) -> tuple[Array, Arrays]:
        if isinstance(self.prior, Soft) and self.context is None:
            return expected_shares(self.prior, state, key, total["near"])
        return self.covariates.row(key.round), {"server.last": np.asarray(key.round)}

    def _regressed(self, state: Arrays, total: Arrays, a: Array, count: float, t: int) -> Arrays:
        """Add this round to the sums of the regression; every `_SOLVED` rounds solve it."""
        memory = self.memory if self.by != "labels" and self.features in ("network", "both") else 1.0  # what ages
        mean = total["clues"] / count
        clues = moments_in(state, "server.clue_").plus(a, count, total["clues"], total["clue_pairs"], memory)
        by_round = moments_in(state, "server.round_").plus(a, 1.0, mean, packed_pairs(mean), memory)
        n = memory * float(state["server.clue_count"]) + count
        constant = self.covariates.constant
        return {
            "rounds": np.asarray(constant @ by_round.gram @ constant),
            "server.clue_count": np.asarray(n),
            **stored("server.clue_", clues),
            **stored("server.round_", by_round),
            **({} if t % _SOLVED else self._solved(state, clues, by_round, n)),
        }

    def _solved(self, state: Arrays, clues: Moments, by_round: Moments, n: float) -> Arrays:
        """The discriminant of the regression, and whether it is significant."""
        coefficients = clues.coefficients()
        scatter = clues.residual(n, coefficients)
        metric = metric_of(scatter, ridge_for(self.ridge, n, len(scatter)))
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
            "branching": np.asarray(float(trusted and features_suffice(state["agreement"]))),
            "p_value": np.asarray(test.p_value),
        }

    def _supervised(self, state: Arrays, total: Arrays, count: float) -> Arrays:
        """Update the distribution of scores, and their discriminant, with modes from the clock's discriminant."""
        if state["trusted"] == 0:
            return {}
        near = told(np.maximum(total["near"], 0.0), self.noise)
        own = self.memory ** (len(near) * near / max(float(near.sum()), 1.0))  # a mode ages only by its own clients
        fitted = {} if self.by_branches else self._fitted(state, total, near, own, count)
        sums = scores_in(state)
        if self.by_branches or state["score_weights"].any():  # this round's scores come from a fitted discriminant
            parts = {n: total[f"score_{n}"] for n in ScoreSums._fields if n != "mass"}
            sums = sums.plus(ScoreSums(mass=near, **parts), own**_FASTER)
        return {
            **fitted,
            **sums.law(state, pooled=self.noise > 0),
            "agreement": sums.agreement,
            **stored("server.score_", sums),
        }

    def _fitted(self, state: Arrays, total: Arrays, near: Array, own: Array, count: float) -> Arrays:
        """The discriminant on features, and the sums behind it."""
        groups = groups_in(state)
        drift = 0.0 if self.noise > 0 or self.features == "fixed" else _DRIFT
        groups = groups.plus(near, total["away"], total["away_pairs"], count, own, self.memory, drift=drift)
        kept = stored_groups(groups)
        if not groups.known:
            return kept
        scores = unit_discriminant(groups, ridge=ridge_for(self.ridge, float(groups.clients), self.n_features))
        return {**kept, "score_weights": scores.weights, "score_offsets": scores.offsets}

    def verdict(self, state: Arrays) -> Verdict:
        """Report whether statistics follow the clock, and whether features predict the mode, as of this state."""
        return Verdict.of(state, self.by, self.significance)

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
