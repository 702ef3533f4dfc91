"""Categories that many clients have, found without a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core.arrays import offsets_of
from fedscape.core.estimator import Estimator, Fit
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.validate import check_whole
from fedscape.errors import DataError
from fedscape.types import Array, Arrays, Kept

if TYPE_CHECKING:
    from fedscape.core.engine import Engine

_BYTES = 256


class HeavyHitters(Estimator):
    """Texts that many clients have, letter by letter: a prefix tree whose branches few clients share is cut.

    A round counts for each living prefix and each next byte how many clients have such a text; prefixes below the
    threshold die, and with them every text that begins so. A text ends with a byte of its own. A client counts once in
    a cell, however often it has a text (Zhu et al. 2020, without the sampling of letters).

    Parameters
    ----------
    threshold
        How many clients must have a text. Under privacy it is raised, where need be, so that noise alone makes one
        prefix grow with probability 0.05 at most: `threshold_` says to what.
    column
        Texts, or whole numbers, which are taken as their digits.
    length
        How many bytes of a text count; of a longer one the beginning is found.
    most
        How many cells of a round one client may fill, chosen by a keyed draw; None for all. Its arrays then have the
        length sqrt(most) at most: a clip of that shrinks nothing.
    prefixes
        How many prefixes live at most, the most frequent.
    seed
        Of the draw.

    Learns `names_`, the most frequent first, `counts_` of clients, and `threshold_`.

    >>> fed = Federation.from_arrays({"y": ["flu", "flu", "rare", "cold", "flu"]}, clients=[0, 1, 1, 2, 2])
    >>> hitters = HeavyHitters(threshold=2).fit(fed)
    >>> hitters.names_, hitters.counts_.tolist()
    (('flu',), [3.0])
    """

    name = "heavy-hitters"

    block_clients = 64  # a client sends prefixes x 256 numbers

    def __init__(
        self,
        threshold: float = 10,
        *,
        column: str = "y",
        length: int = 32,
        most: int | None = 10,
        prefixes: int = 256,
        seed: int = 0,
    ) -> None:
        self.threshold = threshold
        self.column = column
        self.length = length
        self.most = most
        self.prefixes = prefixes
        self.seed = seed

    def start(self, seed: int) -> Arrays:
        check_whole("length", self.length, least=1)
        check_whole("prefixes", self.prefixes, least=1)
        if self.most is not None:
            check_whole("most", self.most, least=1)
        if not self.threshold > 0:
            raise DataError(f"threshold must be a positive number of clients, not {self.threshold!r}")
        return {
            "living": np.zeros((0, self.length), dtype=np.uint8),
            "depth": np.zeros((), dtype=np.int64),
            "server.found": np.zeros((0, self.length), dtype=np.uint8),
            "server.counts": np.zeros(0),
        }

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        depth, living = int(state["depth"]), self._living(state)
        texts, codes = _texts(clients, self.column, self.length)
        branch_of = {bytes(prefix[:depth]): i for i, prefix in enumerate(living)}
        cells = np.full(len(texts) + 1, -1, dtype=np.int64)  # the last is of rows without a text
        for i, text in enumerate(texts if depth < self.length else ()):
            own = text.ljust(depth + 1, b"\0")
            if (branch := branch_of.get(own[:depth], -1)) >= 0 and (depth == 0 or own[depth - 1]):
                cells[i] = _BYTES * branch + own[depth]
        filled = np.zeros((len(clients), len(living) * _BYTES), dtype=np.int64)
        own_cell, draws = cells[codes], Key(self.seed, key.round, "heavy hitters")
        for i in range(len(clients)):
            mine = np.unique(own_cell[clients.offsets[i] : clients.offsets[i + 1]])
            mine = mine[mine >= 0]
            if self.most is not None and len(mine) > self.most:
                mine = draws.generator(int(clients.keys[i])).permutation(mine)[: self.most]
            filled[i, mine] = 1
        return {"clients_with": filled.reshape(len(clients), len(living), _BYTES)}, {}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        depth, living = int(state["depth"]), self._living(state)
        counts = np.asarray(total["clients_with"], dtype=float)
        if depth >= self.length:
            return dict(state)
        prefix, byte = np.nonzero(counts >= self.threshold)
        number = counts[prefix, byte]
        grown = living[prefix].copy()
        grown[:, depth] = byte
        ended = (byte == 0) | (depth == self.length - 1)
        order = np.flatnonzero(~ended)[np.argsort(-number[~ended], kind="stable")][: self.prefixes]
        finished = int(depth) + 1 if len(order) else self.length  # nothing lives: what is left is found
        return {
            "living": grown[np.sort(order)],
            "depth": np.asarray(finished),
            "server.found": np.concatenate([state["server.found"], grown[ended]]),
            "server.counts": np.concatenate([state["server.counts"], number[ended]]),
        }

    def _living(self, state: Arrays) -> Array:
        """The living prefixes; at first the empty one, in the end none, for which a place is kept all the same."""
        living = state["living"]
        return living if len(living) else np.zeros((1, self.length), dtype=np.uint8)

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """A row fills one cell more; where cells are drawn, another draw may exchange all of them."""
        moved = 1.0 if self.most is None else 2.0 * self.most
        return moved if norm == 1 else float(np.sqrt(moved))

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        params: dict[str, Any] = self.get_params() | ({} if column is None else {"column": column})
        self.start(0)
        if how.privacy is not None:
            params["threshold"] = max(float(self.threshold), self._noise_threshold(engine, how))
        work = type(self)(**params)
        state = self._run(
            work, engine, how, n_rounds=self.length, seed=self.seed,
            done=lambda old, new: int(new["depth"]) >= self.length,
        )  # fmt: skip
        self.threshold_ = work.threshold
        pairs = [(-float(n), _text(row)) for row, n in zip(state["server.found"], state["server.counts"], strict=True)]
        listed = sorted((n, text) for n, text in pairs if text is not None)
        self.names_ = tuple(text for _, text in listed)
        self.counts_ = np.array([-n for n, _ in listed])

    def _noise_threshold(self, engine: Engine, how: Fit) -> float:
        """What noise alone passes in no cell of any round, but with probability 0.05: every cell of a full tree."""
        from fedscape.privacy.mechanisms import Laplace
        from fedscape.privacy.release import noise_sd

        sd = noise_sd(
            how.privacy,
            "clients_with",
            sampler=how.sampler,
            clients=len(engine.clients.keys),
            min_clients=engine.min_clients,
            whole=True,
        )
        tail = 0.05 / (self.length * self.prefixes * _BYTES)
        if isinstance(how.privacy, Laplace):
            return float(sd / np.sqrt(2) * np.log(1 / (2 * tail)))
        from scipy.special import ndtri

        return float(-ndtri(tail) * sd)

    @classmethod
    def examples(cls) -> Sequence[tuple[HeavyHitters, Federation]]:
        rng = np.random.default_rng(9)
        offsets = offsets_of(rng.integers(0, 6, 30))
        words = np.array(["flu", "cold", "flush", "coeliac", "é"])
        texts = words[rng.choice(5, offsets[-1], p=[0.4, 0.3, 0.15, 0.1, 0.05])]
        fed = Federation({"y": texts, "code": rng.integers(0, 30, offsets[-1])}, offsets)
        return [(cls(3, length=8, most=2), fed), (cls(2, column="code", length=4, most=None, prefixes=8), fed)]


def _texts(clients: Federation, column: str, length: int) -> tuple[list[bytes], Array]:
    """The different texts of these clients, cut after whole letters, and which each row has; one beyond is none."""
    values = clients[column]
    if values.ndim != 1 or values.dtype.kind not in "biu":
        raise DataError(f"column {column!r} must hold texts or whole numbers, one a row, not {values.dtype}")
    names = clients.names.get(column)
    if names is not None:
        named = (values >= 0) & (values < len(names))
        used, codes = np.unique(np.where(named, values, -1), return_inverse=True)
        texts = [_cut(names[i], length) if i >= 0 else b"" for i in used.tolist()]
        return texts, np.where(named, codes, len(texts))
    used, codes = np.unique(values, return_inverse=True)
    return [_cut(str(int(v)), length) for v in used.tolist()], codes


def _cut(text: str, length: int) -> bytes:
    return text.encode(errors="replace")[:length].decode(errors="ignore").encode()


def _text(row: Array) -> str | None:
    """A row of bytes as text; None where noise made bytes that are none, or nothing."""
    try:
        return bytes(row).rstrip(b"\0").decode() or None
    except UnicodeDecodeError:
        return None
