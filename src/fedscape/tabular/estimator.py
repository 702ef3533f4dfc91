"""What models of a table share: `fit` with features and a target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from fedscape.core.estimator import Estimator
from fedscape.core.federation import Federation

if TYPE_CHECKING:
    from fedscape.core.engine import Engine
    from fedscape.core.sampling import Sampler
    from fedscape.privacy.ledger import Ledger
    from fedscape.privacy.mechanisms import Privacy


class TableEstimator(Estimator):
    """An estimator that predicts a target column from feature columns.

    >>> from fedscape import GLM
    >>> fed = Federation({"a": [0.0, 1.0, 2.0], "b": [1.0, 3.0, 5.0]}, [0, 2, 3])
    >>> GLM().fit(fed, features="a", target="b").target
    'b'
    """

    name = "table-estimator"

    features: str | Sequence[str]
    target: str

    def fit(
        self,
        data: Engine | Federation,
        *,
        features: str | Sequence[str] | None = None,
        target: str | None = None,
        column: str | None = None,
        sampler: Sampler | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        every: int = 1,
        allow: Sequence[str] = (),
        progress: bool | None = None,
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
        measure_privacy: Privacy | None = None,
    ) -> Self:
        """Learn from the rows; `features` and `target` replace the constructor's, also for later use.

        The other parameters are those of every `fit`; `column` is another word for `target`.
        """
        self.features = self.features if features is None else features
        self.target = target or column or self.target
        return super().fit(
            data,
            sampler=sampler,
            checkpoint=checkpoint,
            every=every,
            allow=allow,
            progress=progress,
            privacy=privacy,
            ledger=ledger,
            measure_privacy=measure_privacy,
        )

    @classmethod
    def examples(cls) -> Sequence[tuple[TableEstimator, Federation]]:
        return []  # no computation of its own


def feature_names(clients: Federation, columns: Sequence[str]) -> tuple[str, ...]:
    """What single features are called; those of a column of arrays are numbered.

    >>> feature_names(Federation({"a": [1.0], "x": [[1.0, 2.0]]}, [0, 1]), ("a", "x"))
    ('a', 'x.0', 'x.1')
    """
    names: list[str] = []
    for name in columns:
        width = int(np.prod(clients[name].shape[1:]))
        names += [name] if clients[name].ndim == 1 else [f"{name}.{i}" for i in range(width)]
    return tuple(names)
