"""How well does a fitted mixture represent real clients that it was not fitted to, and in what does it fail?

FEMNIST writers and census regions (race, income): a mixture of K components and IID clients, both fitted to 70% of the
clients, judged by the other 30%: the AUC of a classifier (`fidelity`) and the clients' self-scores (`self_score`);
their misfit is a total variation distance with its 95% interval.
"""

from __future__ import annotations

import copy

from fedscape import MixtureOfDirichletMultinomials, datasets
from fedscape.simulate import fidelity, self_score
from table import arguments, report


def main() -> None:
    args = arguments(__doc__)
    rows = []
    for name, numbers in {"femnist-labels": (3,), "acs-race": (3, 7), "acs-income": (3, 7)}.items():
        train, held = datasets.load(name).split_clients(test=0.3, seed=args.seed)
        if args.quick:
            held = held.take(slice(0, 150))
        models = {
            f"K = {k}": MixtureOfDirichletMultinomials(k, seed=args.seed).fit(train, progress=False) for k in numbers
        }
        iid = copy.copy(MixtureOfDirichletMultinomials(1).fit(train, progress=False))
        pool = train.counts("y").sum(axis=0) + 0.5
        iid.concentrations_ = 1e10 * (pool / pool.sum())[None]
        for kind, model in {**models, "IID": iid}.items():
            found = fidelity(held, model.sample(len(held), seed=args.seed + 1), draws=100, seed=args.seed)
            score = self_score(model, held, draws=49, seed=args.seed)
            worst = sorted(score.misfit, key=lambda n: -score.misfit[n])
            said = [
                f"{n} {score.misfit[n]:.2f} [{score.interval[n][0]:.2f}, {score.interval[n][1]:.2f}]" for n in worst
            ]
            rows.append(
                {
                    "clients": name,
                    "model": kind,
                    "AUC": f"{found.auc.value:.3f} [{found.auc.low:.3f}, {found.auc.high:.3f}]",
                    "not represented": f"{found.missing:.0%}",
                    "largest misfits of self-scores": "; ".join(said[:3]),
                    "smallest": said[-1],
                }
            )
    report("simulate_real", rows, note="30% of the clients are held out; intervals are over clients")


if __name__ == "__main__":
    main()
