"""The one-pass distribution sketch: histograms of locality-sensitive codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from fedscape.core.arrays import Ragged, offsets_of
from fedscape.core.computation import Computation
from fedscape.core.engine import Engine, as_engine
from fedscape.core.estimator import Estimator, Fit, reading
from fedscape.core.federation import Federation
from fedscape.core.random import Key
from fedscape.core.rounds import rounds
from fedscape.errors import DataError, EngineError, PrivacyError, TooFewClients
from fedscape.privacy.ledger import Ledger
from fedscape.privacy.mechanisms import Privacy
from fedscape.privacy.release import noise_shares
from fedscape.sketches.distances import normalise
from fedscape.sketches.families import HadamardProjections, MinHashes, SignProjections, StableProjections
from fedscape.sketches.features import Features, Spread
from fedscape.sketches.kernels import count_codes
from fedscape.sketches.private import noise_variance
from fedscape.sketches.tokens import token_sets, valid_tokens
from fedscape.types import Array, Arrays, Kept

FAMILIES = ("srp", "hadamard", "minhash", "pstable")
MOST_ROWS = 1000
_MOST_BITS = 16
_MOST_CELLS = 2**28
_BLOCK_CELLS = 2**18  # largest client sketch for which a full block of clients is counted at once
_ABANDONED = "too few clients reported, so that nothing was counted: lower min_clients or wait for more"


class DistributionSketch(Estimator):
    """A distribution as `rows` histograms of 2**bits codes each (Algorithm 1): one pass, additive.

    In row r of the sketch, a row of data has the code h_r, a locality-sensitive hash: similar data share codes. Counts
    are integers, and the sketch of a union is the sum of the sketches. All clients use the same functions, from the
    seed. The squared distance of two sketches, divided by the rows, estimates the squared maximum mean discrepancy
    under the kernel "probability of sharing a code".

    Parameters
    ----------
    rows
        Number of histograms; by default the square root of the total number of rows of data (rounded up, at most
        1,000), as the paper suggests. More rows lower the error, like 1 / sqrt(rows); under privacy few are better
        (`choose_rows`).
    bits
        Each histogram has 2**bits cells; more bits resolve finer, and need more data.
    family
        "srp": the angle between rows of numbers; "hadamard": the same by structured projections, faster in many
        dimensions; "pstable": their Euclidean distance; "minhash": how much sets of tokens overlap (texts, sequences of
        codes, indicators).
    column
        The column to read.
    centre, scale
        Numbers become (x - centre) / scale: a number, one per feature, or "mean" and "deviation", computed in one round
        of sums. Angles are measured from the centre; "mean" separates best.
    width
        For "pstable": the bucket width, about the distance that should count as near.
    shingle
        For "minhash": the number of consecutive codes or characters in a token, or "words" of texts.
    embed
        A function from [rows, ...] to [rows, d], shared by all clients and applied first. It must map each row
        independently of the others, and must not fail on any row.
    seed
        Seed of the hash functions.

    Learns `total_` [rows, 2**bits], the normalised sketch of all clients' rows; `counts_`, its counts; `n_rows_`, the
    number of rows; `noise_`, the variance of the noise in a count (0 without privacy).

    >>> fed = Federation({"x": [[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]]}, [0, 1, 3])
    >>> sketch = DistributionSketch(rows=200, bits=2).fit(fed)
    >>> sketch.transform(fed).shape, sketch.n_rows_
    ((2, 200, 4), 3.0)
    """

    name = "distribution-sketch"

    block_clients = 64  # a client sends a whole sketch
    total_clients = 4096

    def __init__(
        self,
        rows: int | None = None,
        *,
        bits: int = 4,
        family: str = "srp",
        column: str = "x",
        centre: npt.ArrayLike | str = 0.0,
        scale: npt.ArrayLike | str = 1.0,
        width: float = 4.0,
        shingle: int | Literal["words"] = 1,
        embed: Callable[[Array], Array] | None = None,
        seed: int = 0,
    ) -> None:
        self.rows = rows
        self.bits = bits
        self.family = family
        self.column = column
        self.centre = centre
        self.scale = scale
        self.width = width
        self.shingle = shingle
        self.embed = embed
        self.seed = seed
        cells = (rows or 0) * 2 ** min(max(bits, 0), _MOST_BITS)
        if cells > _BLOCK_CELLS:
            self.block_clients = max(1, self.block_clients * _BLOCK_CELLS // cells)

    # -- counting ------------------------------------------------------------------------------------------------------

    def start(self, seed: int) -> Arrays:
        return {"server.counts": np.zeros(self._shape(), dtype=np.int64)}  # clients need only the seed

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        counts = np.zeros((len(clients), *self._shape()), dtype=np.int32)
        self._count(self._prepared(clients), clients.client_of_row, counts)
        return {"counts": counts}, {}

    def total(self, state: Arrays, clients: Federation, key: Key) -> Arrays | None:
        counts = np.zeros((1, *self._shape()), dtype=np.int64)
        self._count(self._prepared(clients), np.zeros(clients.n_rows, dtype=np.int64), counts)
        return {"counts": counts[0]}

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {"server.counts": total["counts"]}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        """One row of data moves one count in each row of the sketch by one."""
        rows = self._shape()[0]
        return float(rows if norm == 1 else np.sqrt(rows))

    def count(self, x: npt.ArrayLike) -> Array:
        """Count these rows of data, [rows, 2**bits] integers: the counts of a stream are the sum over its parts.

        >>> sketch = DistributionSketch(rows=50)
        >>> x = np.random.default_rng(0).normal(size=(100, 3))
        >>> np.array_equal(sketch.count(x[:30]) + sketch.count(x[30:]), sketch.count(x))
        True
        """
        fed = _one_client(x, self.column)
        sums = self._ready().total({}, fed, Key(0))
        return np.asarray(sums["counts"]) if sums is not None else np.empty(0)

    def counts(
        self,
        data: Engine | Federation,
        *,
        allow: Sequence[str] = (),
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
    ) -> Array:
        """The counts of each client, [clients, rows, 2**bits], in the order of the clients.

        A server that compares clients must see these. With privacy (place "local") every client adds noise to its own
        counts first. Its number of rows is then secret too; `sizes` of the counts estimates it.

        Parameters
        ----------
        data
            A Federation, or an Engine that runs the clients.
        allow
            For an Engine: ("counts",), to allow the server to see these client by client.
        privacy
            How clients protect their counts: unit "row" with clip=rows (Laplace) protects each row of data.
        ledger
            Where the release is booked in advance.
        """
        if privacy is not None:
            self._check_chosen()
        work, engine = self._ready(), as_engine(data)
        if privacy is None and isinstance(data, Federation):
            parts = [work.step({}, part, Key(0))[0]["counts"] for part in data.batches(work.block_clients)]
            return np.concatenate(parts) if parts else np.zeros((0, *work._shape()), dtype=np.int32)
        if privacy is not None and privacy.place != "local":
            raise PrivacyError(f"the server sees counts client by client: use place='local', not {privacy.place!r}")
        sketches = ClientSketches(work)
        allow = sketches.reveals if isinstance(data, Federation) else allow
        loop = rounds(sketches, engine, n_rounds=1, allow=allow, privacy=privacy, ledger=ledger, measure=0)
        done = next(loop)
        loop.close()
        if done.abandoned:
            raise TooFewClients(_ABANDONED)
        state = done.state
        ids = np.asarray(getattr(engine.clients, "ids", state["server.ids"]))
        row_of = {client: i for i, client in enumerate(state["server.ids"].tolist())}
        silent = [client for client in ids.tolist() if client not in row_of]
        if silent:
            raise EngineError(
                f"{len(silent)} of {len(ids)} clients did not report, the first of them {silent[0]!s}, and their "
                "counts are unknown: ask again, or leave them out of the engine's clients"
            )
        return np.asarray(state["server.counts"][[row_of[client] for client in ids.tolist()]])

    def transform(
        self,
        data: Engine | Federation,
        *,
        allow: Sequence[str] = (),
        privacy: Privacy | None = None,
        ledger: Ledger | None = None,
    ) -> Array:
        """The sketch of each client, [clients, rows, 2**bits]: counts divided by the number of rows, 0 without rows.

        >>> fed = Federation({"x": [[1.0], [2.0]]}, [0, 1, 2, 2])
        >>> DistributionSketch(rows=2, bits=1).transform(fed)[:, 0].tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
        """
        return normalise(self.counts(data, allow=allow, privacy=privacy, ledger=ledger))

    def codes(self, data: Federation | npt.ArrayLike) -> Array:
        """The code of each row of data in each row of the sketch, [rows of data, rows]."""
        fed = data if isinstance(data, Federation) else _one_client(data, self.column)
        work = self._ready()
        out = np.empty((fed.n_rows, work._shape()[0]), dtype=np.uint16)
        prepared = work._prepared(fed)
        for begin, end, first, codes in work._functions().pieces(prepared):  # type: ignore[arg-type]
            out[begin:end, first : first + codes.shape[1]] = codes
        return out

    def collision(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Array:
        """The probability that x[i] and y[i] share a code, from the family's closed form.

        >>> DistributionSketch(rows=2, bits=4).collision([[1.0, 0.0]], [[0.0, 2.0]])
        array([0.0625])
        """
        work = self._ready()
        a, b = (work._prepared(_one_client(z, self.column)) for z in (x, y))
        if isinstance(a, Features) and isinstance(b, Features):
            return work._functions().collision(a[:], b[:])  # type: ignore[arg-type]
        return work._functions().collision(a, b)  # type: ignore[arg-type]

    # -- fitting -------------------------------------------------------------------------------------------------------

    def _fit(self, engine: Engine, column: str | None, how: Fit) -> None:
        work = reading(self, column)
        work = work._with(self._looked_up(work, engine, how))
        state = self._run(work, engine, how, n_rounds=1, measure=0)
        self._work: DistributionSketch = work
        self.counts_ = state["server.counts"]
        clients = self.history_["clients"][-1]
        shares, enough = noise_shares(how.privacy, engine, clients)
        self.noise_ = noise_variance(how.privacy, clients=round(shares), min_clients=enough, sampler=how.sampler)
        self.n_rows_ = float(self.counts_.sum() / self.counts_.shape[0])  # under privacy the mean of noisy row sums
        self.total_ = normalise(self.counts_)

    def _looked_up(self, work: Self, engine: Engine, how: Fit) -> dict[str, Any]:
        """Compute in one round of sums what hashing needs."""
        from_data = [n for n, v in (("centre", self.centre), ("scale", self.scale)) if isinstance(v, str)]
        if self.rows is not None and not from_data:
            return {}
        if how.privacy is not None:
            self._check_chosen()
        survey = Spread(column=work.column, embed=self.embed, numbers=bool(from_data))
        state = self._run(survey, engine, how.phase(".spread"), n_rounds=1, measure=0)
        parameters: dict[str, Any] = {}
        if self.rows is None:
            parameters["rows"] = int(np.clip(np.ceil(np.sqrt(state["n_rows"])), 1, MOST_ROWS))
        for name, wanted in (("centre", "mean"), ("scale", "deviation")):
            if name in from_data:
                if getattr(self, name) != wanted:
                    raise DataError(f"{name} must be numbers or {wanted!r}, not {getattr(self, name)!r}")
                parameters[name] = np.array(state[wanted])
        return parameters

    def _check_chosen(self) -> None:
        """Refuse a private sketch with a shape or centre chosen from the data."""
        if self.rows is None or isinstance(self.centre, str) or isinstance(self.scale, str):
            raise PrivacyError(
                "under privacy the data must not choose the sketch: give rows (choose_rows) and numbers for centre and "
                "scale"
            )

    def _with(self, parameters: dict[str, Any]) -> Self:
        return type(self)(**{**self.get_params(), **parameters})

    def _ready(self) -> DistributionSketch:
        """The sketch with all parameters for hashing: itself, or as `fit` completed it."""
        if hasattr(self, "_work"):
            return self._work
        if self.rows is None or isinstance(self.centre, str) or isinstance(self.scale, str):
            self._check_fitted("total_")
        return self

    # -- hashing -------------------------------------------------------------------------------------------------------

    def _shape(self) -> tuple[int, int]:
        if self.family not in FAMILIES:
            raise DataError(f"family must be one of {', '.join(FAMILIES)}, not {self.family!r}")
        if self.rows is None:
            raise DataError("rows is not known yet: give it, or call fit(), which chooses it")
        if self.rows < 1 or not 1 <= self.bits <= _MOST_BITS or self.rows * 2**self.bits > _MOST_CELLS:
            raise DataError(
                f"rows must be at least 1 and bits 1 to {_MOST_BITS}, and a sketch at most {_MOST_CELLS:,} cells: "
                f"got rows={self.rows}, bits={self.bits}"
            )
        return int(self.rows), 2**self.bits

    def _functions(self) -> SignProjections | StableProjections | MinHashes:
        rows, _ = self._shape()
        if self.family == "minhash":
            return MinHashes(rows, self.bits, self.seed)
        if self.family == "pstable":
            return StableProjections(rows, self.bits, self.seed, self.width)
        kind = HadamardProjections if self.family == "hadamard" else SignProjections
        return kind(rows, self.bits, self.seed)

    def _prepared(self, clients: Federation) -> Features | Ragged:
        values = self._embedded(clients)
        if self.family == "minhash":
            return token_sets(values, self.shingle, column=self.column, names=self._names(clients))
        return self._features(values)

    def _embedded(self, clients: Federation) -> Array:
        values = clients[self.column]
        return values if self.embed is None else np.asarray(self.embed(values))

    def _names(self, clients: Federation) -> tuple[str, ...] | None:
        return clients.names.get(self.column) if self.embed is None else None

    def _features(self, values: Array) -> Features:
        if isinstance(self.centre, str) or isinstance(self.scale, str):
            raise DataError("centre and scale are not known yet: give numbers, or call fit(), which finds them")
        return Features(values, self.column, np.asarray(self.centre, float), np.asarray(self.scale, float))

    def _count(self, prepared: Features | Ragged, owner: Array, counts: Array) -> None:
        for begin, end, first, codes in self._functions().pieces(prepared):  # type: ignore[arg-type]
            count_codes(codes, owner[begin:end], end - begin, first, counts)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        values = self._embedded(clients)
        if self.family == "minhash":
            return valid_tokens(values, self._names(clients))
        return self._features(values).valid_rows()

    @classmethod
    def examples(cls) -> Sequence[tuple[DistributionSketch, Federation]]:
        rng = np.random.default_rng(3)
        offsets = offsets_of(rng.integers(0, 7, 25))
        n = int(offsets[-1])
        fed = Federation({"x": rng.normal(1.0, 1.0, (n, 2, 2)), "t": rng.integers(-1, 9, (n, 5))}, offsets)
        texts = Federation({"s": rng.choice(["to be", "or not", "", "to see"], n)}, offsets)
        centred = cls(7, bits=3, centre=[1.0, 0.0, 1.0, 2.0], scale=2.0, seed=1)
        codes = cls(6, bits=5, family="minhash", column="t", shingle=2)
        return [
            (cls(9, bits=2), fed),
            (centred, fed),
            (cls(5, bits=4, family="pstable", width=0.5), fed),
            (codes, fed),
            (cls(8, bits=3, family="hadamard"), fed),
            (cls(4, family="minhash", column="s", shingle=2), texts),
        ]


class ClientSketches(Computation):
    """The counts of each client, revealed to the server client by client.

    >>> ClientSketches(DistributionSketch(rows=3)).reveals
    ('counts',)
    """

    name = "client-sketches"

    reveals = ("counts",)
    block_clients = 64

    def __init__(self, sketch: DistributionSketch) -> None:
        self.sketch = sketch
        if sketch.block_clients < self.block_clients:
            self.block_clients = sketch.block_clients

    def start(self, seed: int) -> Arrays:
        shape = self.sketch._shape()
        return {"server.counts": np.zeros((0, *shape)), "server.ids": np.empty(0, dtype=np.int64)}

    def step(self, state: Arrays, clients: Federation, key: Key) -> tuple[Arrays, Kept]:
        return self.sketch.step({}, clients, key)

    def update(self, state: Arrays, total: Arrays, key: Key) -> Arrays:
        return {"server.counts": total["counts"], "server.ids": total["ids"]}

    def row_bound(self, state: Arrays, norm: int, clients: Federation | None = None) -> float | None:
        return self.sketch.row_bound({}, norm, clients)

    def valid_rows(self, state: Arrays, clients: Federation) -> Array | None:
        return self.sketch.valid_rows(state, clients)

    @classmethod
    def examples(cls) -> Sequence[tuple[ClientSketches, Federation]]:
        return [(cls(sketch), fed) for sketch, fed in DistributionSketch.examples()[:1]]


def _one_client(x: npt.ArrayLike, column: str) -> Federation:
    values = np.asarray(x)
    return Federation({column: values}, [0, len(np.atleast_1d(values))])
