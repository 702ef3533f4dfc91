"""Clients on real devices and in silos, reached through Flower: https://flower.ai.

`Flower(grid)` runs in a ServerApp and is an Engine; `client_app(load)` is the ClientApp of its nodes. A node holds one
client or many and sends the sum of its clients. A node with one client sends that client's arrays, in as few bytes as
possible. Without `secure=` sums are not masked: the server sees each node's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscape.core import codec
from fedscape.core.arrays import Ragged
from fedscape.core.blocks import Reply, broadcast, on_host
from fedscape.core.computation import Computation
from fedscape.core.random import Key
from fedscape.engines.flower import computations, wire
from fedscape.engines.flower.client import client_app
from fedscape.engines.flower.library import Message
from fedscape.engines.flower.local_grid import LocalGrid
from fedscape.engines.flower.replies import (
    FAULTS,
    Answer,
    Asked,
    Refused,
    Roster,
    agree,
    header_of,
    joined,
    read_answer,
    summed,
    whole,
)
from fedscape.engines.flower.terms import Terms
from fedscape.engines.flower.wire import Away, Unreadable
from fedscape.errors import CheckpointError, DataError, EngineError, PrivacyError, TooFewClients
from fedscape.privacy.release import Release
from fedscape.types import Array, Arrays

if TYPE_CHECKING:
    from fedscape.engines.flower.secure_server import Keyring, MaskedRound
    from fedscape.secure.sums import Masked

__all__ = ["Flower", "LocalGrid", "Terms", "client_app"]

_LATE = 10_000  # unanswered messages that are polled in later rounds


class Flower:
    """Clients on the nodes of a Flower grid.

    In every round each node gets the state and the ids of its clients that take part, and answers with their sum.
    Answers are added in the order of the nodes' first clients, in whatever order they arrive. A node that times out or
    sends a bad answer is retried and then left out. With fewer than `min_clients` clients the round is abandoned.
    Faults are counted in `faults` of the round and the history, and described in `troubles`.

    Kept arrays stay on the clients' nodes. A request names the last round in which the node's answer was counted; the
    node resumes from there. Clients and server agree after a lost answer, or a restart from the last checkpoint.

    Parameters
    ----------
    grid
        Flower's Grid, as a ServerApp gets it; or a LocalGrid.
    min_clients
        A round with fewer clients is abandoned before anything is released.
    nodes
        Number of nodes to wait for at the start; a node that fails to report its clients is left out.
    wait
        Seconds to wait for them.
    timeout
        Seconds that a node has to answer each request. Flower notices after 60 seconds that a node is gone.
    attempts
        Number of attempts for a node that does not answer, or sends a bad answer.
    poll
        Seconds between polls for answers.
    largest
        The largest allowed answer, in bytes.
    secure
        How nodes mask their sums, `SecureSum()` or `TwoServers(...)`: the server then sees only the total of a cohort.
        Without it, it sees the sum of each node.

    >>> import tempfile
    >>> from fedscape import Federation, Histogram
    >>> fed = Federation({"y": [0, 1, 1, 1]}, [0, 1, 2, 4])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     app = client_app(lambda c: fed.take([c.node_id - 1]), folder=lambda c: f"{folder}/{c.node_id}")
    ...     Histogram(2).fit(Flower(LocalGrid(app, [{}] * 3), min_clients=2)).counts_
    array([1, 3])
    """

    def __init__(
        self,
        grid: Any,
        *,
        min_clients: int = 10,
        nodes: int = 1,
        wait: float = 60.0,
        timeout: float = 120.0,
        attempts: int = 2,
        poll: float = 0.3,
        largest: int = 2**30,
        secure: Masked | None = None,
    ) -> None:
        if min_clients < 1 or nodes < 1 or attempts < 1 or not timeout > 0 or not poll > 0:
            raise DataError("min_clients, nodes and attempts must be at least 1, timeout and poll above 0")
        self.grid, self.min_clients, self.timeout, self.attempts = grid, min_clients, timeout, attempts
        self.poll, self.largest, self.secure = poll, largest, secure
        self._keys: Keyring | None = None
        if secure is not None:
            from fedscape.engines.flower.secure_server import Keyring

            self._keys = Keyring(secure)
        self.troubles: list[str] = []
        self._late: dict[str, int] = {}  # messages that nobody waits for any more, and their round
        self._begin_life(0)
        self.roster = self._gathered(nodes, wait)
        self.forget()

    #: Answers cross a network: noise that clients add counts as released when they send it.
    remote = True

    @property
    def clients(self) -> Roster:
        return self.roster

    def fingerprint(self) -> str:
        return "flower " + hashlib.sha256(self.roster.keys.tobytes()).hexdigest()

    def kept(self) -> Mapping[str, Ragged]:
        """Not the kept arrays, which never leave their nodes, but the version to which each node must go back."""
        state = np.array([self._life, self._number, *self._closed], dtype=np.int64)
        run = np.frombuffer(bytes.fromhex(self._run), dtype=np.uint8)
        return {"flower.run": whole(run), "flower.versions": whole(state)}

    def restore(self, kept: Mapping[str, Ragged]) -> None:
        if set(kept) != {"flower.run", "flower.versions"}:
            raise CheckpointError("this checkpoint was not made over Flower: it holds kept arrays itself")
        versions = kept["flower.versions"].flat
        if len(versions) != 2 + len(self.roster.node_ids):
            raise CheckpointError(
                f"the checkpoint knows {len(versions) - 2} nodes, here are {len(self.roster.node_ids)}: wait for all"
            )
        self._run = kept["flower.run"].flat.tobytes().hex()
        self._number, self._closed = int(versions[1]), [int(v) for v in versions[2:]]
        self._begin_life(int(versions[0]) + 1)

    def forget(self) -> None:
        self._run = os.urandom(16).hex()
        self._begin_life(0)
        self._number = 0
        self._closed = [-1] * len(self.roster.node_ids)
        self._refusing: set[int] = set()  # places of nodes that refused the last request

    def _begin_life(self, number: int) -> None:
        """Start a new life: its requests are newer than all before."""
        self._life, self._name, self._requests = number, os.urandom(8).hex(), 0

    def run(
        self,
        computation: Computation,
        state: Arrays,
        cohort: Array,
        key: Key,
        *,
        measure: bool = False,
        release: Release | None = None,
        measure_release: Release | None = None,
    ) -> Reply:
        computations.check_sendable(computation)
        least = 1 if release is not None and release.counted else self.min_clients  # a secret count has no noise yet
        self._enough(len(cohort), least, key.round, {})
        masked = self._begin_masked(computation, cohort, key.round)
        sent = broadcast(state)
        header = {
            "format": wire.FORMAT,
            "op": "run",
            "run": self._run,
            "number": self._number,
            "computation": computations.described(computation),
            "key": [int(key.seed), int(key.round), key.purpose],
            "measure": measure,
            "release": wire.release_written(release),
            "measure_release": wire.release_written(measure_release),
        }
        places = np.unique(self.roster.nodes[cohort]) if masked is None else masked.places
        how = {} if masked is None else {place: {"secure": masked.about(place)} for place in places}
        requests = [self._request({**header, **how.get(place, {})}, sent, place, cohort) for place in places]
        reveals = frozenset(computation.reveals)
        if masked is not None:
            masked.ask(requests)

        def check(one: Asked, blob: bytes) -> Answer:
            if masked is not None:
                return masked.read(one, blob, reveals)
            return read_answer(one, self.roster.ids[one.clients], blob, reveals, release, measure_release)

        self._requests += 1
        faults = self._exchange(requests, check, key.round)
        agree(requests, reveals)
        valid = [one for one in requests if one.answer is not None]
        self._count(requests, faults, key.round)
        noted = joined({} if masked is None else masked.faults, faults)
        self._note_refusals(requests, key.round)
        reported = np.sort(np.concatenate([one.clients for one in valid])) if valid else np.empty(0, dtype=np.int64)
        self._enough(len(reported), least, key.round, noted)
        if masked is not None:
            masked.faults = noted
            valid = [masked.open(valid, (release, measure_release), len(reported))]
            noted = joined(masked.faults, {})
        releases = (release, measure_release)
        reply = summed(valid, self.roster.keys[reported], len(cohort), sent, noted, reveals, releases)
        for one in requests:
            if one.answer is not None and one.answer.keeps:
                self._closed[one.place] = self._number
        self._number += 1
        return reply

    def _begin_masked(self, computation: Computation, cohort: Array, index: int) -> MaskedRound | None:
        """Let the nodes of a cohort agree on masks, if sums are masked."""

        def ask(requests: Sequence[Asked], check: Callable[[Asked, bytes], Answer]) -> dict[str, int]:
            faults = self._exchange(requests, check, index)
            self._count(requests, faults, index)
            return faults

        return None if self._keys is None else self._keys.begin(computation, self.roster, cohort, ask)

    def _count(self, requests: Sequence[Asked], faults: dict[str, int], index: int) -> None:
        for one in requests:
            if one.answer is None:
                faults[one.fault] += 1
                self._tell(index, one)

    def parties(self, cohort: Array) -> int:
        """Number of parties that each add a share of distributed noise: clients, or nodes if sums are masked."""
        return len(cohort) if self.secure is None else len(np.unique(self.roster.nodes[cohort]))

    def noise_clients(self, cohort: Array) -> int:
        """Number of noise shares in the smallest sum that can be opened."""
        return self.min_clients if self.secure is None else self.secure.smallest(self.parties(cohort))

    def _note_refusals(self, requests: Sequence[Asked], index: int) -> None:
        """Raise if all nodes refused their last request; a few refusals only leave too few clients."""
        for one in requests:
            refused = one.answer is None and one.fault == "refused"
            self._refusing = self._refusing | {one.place} if refused else self._refusing - {one.place}
        if len(self._refusing) == len(self.roster.node_ids):
            raise EngineError(f"round {index}: every node refused; {self.troubles[-1]}")

    # -- requests ------------------------------------------------------------------------------------------------------

    def _gathered(self, nodes: int, wait: float) -> Roster:
        """Wait for the nodes, and ask each for the ids of its clients."""
        end = time.monotonic() + wait
        while len(online := sorted(self.grid.get_node_ids())) < nodes:
            if time.monotonic() > end:
                raise EngineError(
                    f"{len(online)} nodes are online after {wait:g} s, {nodes} are needed: start the others"
                )
            time.sleep(min(self.poll, 1.0))
        about = {"format": wire.FORMAT, "op": "who", "salt": os.urandom(8).hex()}
        blob = codec.pack({}, about if self._keys is None else {**about, "session": self._keys.session})
        self.roster = Roster(np.empty(0), np.empty(0), tuple(online), np.empty(0))
        requests = [Asked(place, np.empty(0), blob) for place in range(len(online))]
        who: dict[int, Array] = {}

        def check(one: Asked, answer: bytes) -> Answer:
            arrays, header = header_of(one, answer)
            ids = arrays.get("ids", np.empty(()))
            if ids.ndim != 1 or ids.dtype.kind not in "iuU" or len(np.unique(ids)) != len(ids):
                raise Unreadable("not a list of different ids")
            if self._keys is not None:
                self._keys.take(online[one.place], header)
            who[online[one.place]] = ids
            return Answer({}, {}, None, False, {}, {}, 0)

        self._exchange(requests, check, 0)
        for one in requests:
            if one.answer is None:
                self._tell(0, one)
        if not who:  # nodes that do not answer are left out, as in any round
            raise EngineError(f"no node reported its clients: {'; '.join(self.troubles[-3:])}")
        return Roster.of(who)

    def _request(self, header: Mapping[str, Any], state: Arrays, place: int, cohort: Array) -> Asked:
        mine = cohort[self.roster.nodes[cohort] == place]
        ids, arrays = self.roster.ids[mine], {n: v for n, v in state.items() if not n.startswith("of_client.")}
        if "of_client.ids" in state:  # a node gets only the rows of its own clients
            rows = np.isin(state["of_client.ids"], ids)
            arrays |= {n: v[rows] for n, v in state.items() if n.startswith("of_client.")}
        content = {**{f"state/{n}": v for n, v in on_host(arrays).items()}, "cohort": ids}
        return Asked(int(place), mine, codec.pack(content, {**header, "closed": self._closed[place]}))

    def _exchange(self, sent: Sequence[Asked], check: Callable[[Asked, bytes], Answer], index: int) -> dict[str, int]:
        """Send requests, wait, and retry nodes without a valid answer; count the faults."""
        faults = dict.fromkeys(FAULTS, 0)
        open_: dict[str, Asked] = {}
        for _ in range(self.attempts):
            retries = [o for o in sent if o.answer is None and not o.away and o.fault in ("missing", "corrupt")]
            if not retries:
                break
            for one in retries:  # wait for the retry as if nothing had arrived
                one.fault, one.reason = "missing", ""
            open_ |= self._push(retries, index)
            self._pull(open_, retries, check, faults)
        self._late = dict([*self._late.items(), *dict.fromkeys(open_, index).items()][-_LATE:])
        return faults

    def _push(self, requests: Sequence[Asked], index: int) -> dict[str, Asked]:
        online = set(self.grid.get_node_ids())
        able = []
        for one in requests:
            if self.roster.node_ids[one.place] in online:
                able.append(one)
            else:
                one.fault, one.reason = "failed", "the node is offline"
        life = 60.0 + 2 * self.attempts * self.timeout
        order = wire.Order(self._life, self._name, self._requests)
        messages = [
            Message(
                wire.enclose(one.blob, order),
                dst_node_id=self.roster.node_ids[one.place],
                message_type=f"query.{wire.ACTION}",
                group_id=str(index),
                ttl=life,
            )
            for one in able
        ]
        numbers = [*self.grid.push_messages(messages)] if messages else []
        pushed = {}
        for one, number in zip(able, [*numbers, *[""] * (len(able) - len(numbers))], strict=True):
            if number:
                pushed[number] = one
            else:
                one.fault, one.reason = "failed", "Flower did not take the message"
        return pushed

    def _pull(
        self,
        open_: dict[str, Asked],
        sent: Sequence[Asked],
        check: Callable[[Asked, bytes], Answer],
        faults: dict[str, int],
    ) -> None:
        end = time.monotonic() + self.timeout
        failed: set[int] = set()
        while True:
            for message in self.grid.pull_messages({*open_, *self._late}):
                number = message.metadata.reply_to_message_id
                if number in self._late:
                    del self._late[number]
                    faults["late"] += not message.has_error()
                elif number not in open_ or open_[number].answer is not None:
                    faults["duplicate"] += 1  # a second answer, or one to a message already answered
                else:
                    one = open_[number]
                    self._take(one, message, check)
                    if one.answer is None:
                        failed.add(id(one))
                    del open_[number]
            waiting = [one for one in sent if one.answer is None and id(one) not in failed and one.fault == "missing"]
            if not waiting or time.monotonic() > end:
                return
            time.sleep(self.poll)

    def _take(self, one: Asked, message: Any, check: Callable[[Asked, bytes], Answer]) -> None:
        if message.has_error():
            one.fault, one.reason = "failed", f"Flower says code {message.error.code}"
            return
        try:
            one.answer = check(one, wire.disclose(message.content, self.largest))
        except Refused as refused:
            one.fault, one.reason = "refused", str(refused)
        except Away as away:
            one.fault, one.reason, one.away = "missing", str(away), True
        except (Unreadable, PrivacyError) as error:
            one.fault, one.reason = "corrupt", f"its answer is {error}"[:300]
        except Exception as error:  # no answer of a node may end the run
            one.fault, one.reason = "corrupt", f"its answer cannot be read ({type(error).__name__})"

    def _enough(self, number: int, least: int, index: int, faults: Mapping[str, int]) -> None:
        if number < least:
            why = f" ({', '.join(f'{n} {name}' for name, n in faults.items())})" if faults else ""
            raise TooFewClients(
                f"round {index}: {number} clients reported, min_clients is {self.min_clients}{why}", faults=faults
            )

    def _tell(self, index: int, one: Asked) -> None:
        node = self.roster.node_ids[one.place]
        self.troubles.append(f"round {index}, node {node}: {one.fault}{': ' + one.reason if one.reason else ''}")
        about = {"event": "node", "round": index, "node": str(node), "fault": one.fault, "said": one.reason}
        logging.getLogger("fedscape.flower").warning(json.dumps(about))
