"""Secure sums against a server that lies, and clients that do."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from secure_rounds import SESSION, cohort, unmasked, up_to_masked, vectors

from fedscape.errors import PrivacyError, TooFewClients
from fedscape.secure import primitives as p
from fedscape.secure.parameters import derive
from fedscape.secure.protocol import Client, Frame, Roster, Unmasking
from fedscape.secure.server import Server


def test_a_living_client_called_dead_keeps_its_secret():
    """The server has y_0 and wants both seeds of client 0: half of the others are told that it lives, half not."""
    n = 7
    clients, frame = cohort(n, dropouts=0.3)
    x = vectors(n)
    server = up_to_masked(clients, frame, x)
    everyone, t = list(range(n)), frame.parameters.threshold
    for w in range(1, n):
        living = everyone if w % 2 else everyone[1:]
        server.take_unmasking(w, clients[w].unmask(frame, living, sorted(set(everyone) - set(living))))
    opened = server._opened()
    assert len(opened[0].get(0, {})) < t or len(opened[1].get(0, {})) < t
    with pytest.raises(TooFewClients, match="the total stays closed"):
        server.total()


def test_a_client_whose_neighbours_are_all_called_dead_is_not_laid_bare():
    """Each neighbour of 0 is called dead to its own neighbours, but not to itself: without its own mask and without
    pairwise ones y_0 would be x_0. Whose answer can be read is not dead, so never are both opened."""
    clients, frame = cohort(40, dropouts=0.1, colluders=0.0)
    near = set(frame.neighbours(0))
    assert len(near) < 39
    server = up_to_masked(clients, frame, vectors(40))
    everyone = set(range(40))
    for w in range(40):
        dead = (near & set(frame.neighbours(w))) - {w}
        for claimed in (dead, set(sorted(dead)[: frame.parameters.dead]), set()):
            try:
                server.take_unmasking(w, clients[w].unmask(frame, everyone - claimed, claimed))
                break
            except PrivacyError:
                continue
    opened, t = server._opened(), frame.parameters.threshold
    keys = {v for v in near if len(opened[1].get(v, {})) >= t}  # whose pairwise masks are known
    if len(opened[0].get(0, {})) >= t:
        assert len(near - keys) >= frame.parameters.margin
    for v in near:
        assert not (len(opened[0].get(v, {})) >= t and v in keys)


def test_without_acknowledgements_an_answer_stays_sealed():
    clients, frame = cohort(6)
    server = up_to_masked(clients, frame, vectors(6))
    living, dead = server.lists()
    answers = {w: clients[w].unmask(frame, living, dead) for w in living}
    for w, answer in answers.items():  # all neighbours but two keep back that 5 lives
        kept = {v: share for v, share in answer.alive.items() if v != 5 or w in (0, 1)}
        server.take_unmasking(w, Unmasking(kept, answer.sealed))
    assert all(5 not in by for kind in server._opened().values() for by in kind.values())


def test_overlapping_lists_are_refused_and_the_round_can_still_be_ended_honestly():
    clients, frame = cohort(6)
    x = vectors(6)
    server = up_to_masked(clients, frame, x)
    with pytest.raises(PrivacyError, match="the lists of the living and the dead overlap"):
        clients[0].unmask(frame, range(6), [3])
    assert np.array_equal(unmasked(server, clients, frame), x.sum(axis=0, dtype=np.uint64))


@pytest.mark.parametrize(
    ("living", "dead", "why"),
    [
        ([1, 2, 3, 4, 5], [0], "not of this cohort"),  # it is itself alive
        ([0, 1, 2, 3], [], "not of this cohort"),  # neighbours left out
        ([0, 1, 2, 3, 4, 5, 9], [], "not of this cohort"),
        ([0, 1, 2], [3, 4, 5], "3 are said to live, 4 must"),
        ([0], [1, 2, 3, 4, 5], "1 are said to live, 4 must"),
    ],
)
def test_lists_that_cannot_be_true_or_leave_too_few_are_refused(living, dead, why):
    clients, frame = cohort(6)
    up_to_masked(clients, frame, vectors(6))
    with pytest.raises(PrivacyError, match=why):
        clients[0].unmask(frame, living, dead)


def test_asked_twice_a_client_answers_once():
    clients, frame = cohort(6)
    x = vectors(6)
    server = up_to_masked(clients, frame, x)
    with pytest.raises(PrivacyError, match="round 0 was begun before"):
        clients[0].share_keys(frame)
    with pytest.raises(PrivacyError, match="round 0 is already masked: nothing is answered twice"):
        clients[0].masked_input(frame, x[1], server.received_by(0))
    living, dead = server.lists()
    clients[0].unmask(frame, living, dead)
    with pytest.raises(PrivacyError, match="round 0 is already done: nothing is answered twice"):
        clients[0].unmask(frame, [u for u in living if u != 3], [3])
    assert clients[0].turn is not None
    assert not clients[0].turn.held  # nothing is left that could be opened later
    assert clients[0].turn.b == clients[0].turn.s == b""


def test_another_rounds_state_is_refused():
    clients, frame = cohort(6)
    server = up_to_masked(clients, frame, vectors(6))
    other = Frame(frame.roster, 1, frame.cohort, frame.parameters)
    with pytest.raises(PrivacyError, match="round 1 with this roster and cohort was not begun here"):
        clients[0].unmask(other, *server.lists())
    for client in clients:
        client.share_keys(other)
    with pytest.raises(PrivacyError, match="round 0 with this roster and cohort was not begun here"):
        clients[0].unmask(frame, *server.lists())


def test_another_roster_is_refused():
    _, frame = cohort(6)
    entries = frame.roster.entries
    mallory = Client(os.urandom(32), SESSION)
    known = [entry.identity for entry in entries]
    with pytest.raises(PrivacyError, match="who is not on this node's roster"):
        Roster.checked(SESSION, [*entries[:5], mallory.advertise_keys()], peers=known)
    swapped = replace(entries[5], channel=mallory.advertise_keys().channel)
    with pytest.raises(PrivacyError, match="is not signed for this run"):
        Roster.checked(SESSION, [*entries[:5], swapped], peers=known)
    with pytest.raises(PrivacyError, match="is not signed for this run"):
        Roster.checked(b"another run ....", entries, peers=known)
    with pytest.raises(PrivacyError, match="names one client twice"):
        Roster.checked(SESSION, [*entries, entries[0]], peers=known)
    with pytest.raises(PrivacyError, match="the roster has 2 signed peers, at least 3 are needed"):
        Roster.checked(SESSION, entries[:2], peers=known)


def test_clients_that_are_shown_different_rosters_cannot_read_each_others_shares():
    clients, frame = cohort(6)
    turned = Roster.checked(SESSION, frame.roster.entries[::-1])
    other = Frame(turned, 0, frame.cohort, frame.parameters)
    shared = {u: clients[u].share_keys(frame if u < 3 else other) for u in range(6)}
    received = {v: (shared[v].public, shared[v].packages[0]) for v in range(1, 6) if 0 in shared[v].packages}
    with pytest.raises(PrivacyError, match="not for this client, round, roster and cohort"):
        clients[0].masked_input(frame, vectors(6)[0], received)


def test_a_key_that_the_server_puts_in_is_noticed():
    clients, frame = cohort(6)
    server = Server(frame)
    for u, client in enumerate(clients):
        server.take_shares(u, client.share_keys(frame))
    received = server.received_by(0)
    received[1] = (p.public_of(os.urandom(32)), received[1][1])
    with pytest.raises(PrivacyError, match="not for this client, round, roster and cohort"):
        clients[0].masked_input(frame, vectors(6)[0], received)


def test_a_cohort_shrunk_to_one_is_refused():
    clients, frame = cohort(6)
    for few in ((0,), (0, 1)):
        with pytest.raises(PrivacyError, match=f"not safe for a cohort of {len(few)} "):
            Frame(frame.roster, 0, few, derive(len(few), dropouts=0.0, colluders=0.0))
        with pytest.raises(PrivacyError, match="does not fit its roster"):  # another cohort's parameters
            Frame(frame.roster, 0, few, frame.parameters)
    server = Server(frame)
    for u, client in enumerate(clients):
        server.take_shares(u, client.share_keys(frame))
    with pytest.raises(PrivacyError, match="0 of 5 neighbours sent keys, 3 must"):
        clients[0].masked_input(frame, vectors(6)[0], {})
    two = dict(list(server.received_by(0).items())[:2])
    with pytest.raises(PrivacyError, match="2 of 5 neighbours sent keys, 3 must"):
        clients[0].masked_input(frame, vectors(6)[0], two)


def test_a_client_outside_the_cohort_or_the_run_does_not_answer():
    clients, frame = cohort(6)
    with pytest.raises(PrivacyError, match="a cohort without this client"):
        clients[5].share_keys(Frame(frame.roster, 0, (0, 1, 2, 3, 4), derive(5, dropouts=0.0, colluders=0.0)))
    with pytest.raises(PrivacyError, match="a roster of another run"):
        Client(os.urandom(32), b"another run ....").share_keys(frame)
    twin = Client(clients[0].identity, SESSION)  # the same node with a new channel key
    with pytest.raises(PrivacyError, match="another key for this client than its own"):
        twin.share_keys(frame)


@pytest.mark.parametrize("kind", ["alive", "sealed"])
def test_a_client_that_lies_about_a_share_is_found_out_and_the_total_is_right(kind):
    clients, frame = cohort(9, dropouts=0.23)
    x = vectors(9)
    server = up_to_masked(clients, frame, x, late={8})
    living, dead = server.lists()
    for w in living:
        honest = clients[w].turn
        if w == 2 and kind == "sealed":  # before it answers it changes the shares of b and s that it holds
            honest.held = {v: bytes(64) + shares[64:] for v, shares in honest.held.items()}
        answer = clients[w].unmask(frame, living, dead)
        if w == 2 and kind == "alive":
            answer = Unmasking(dict.fromkeys(answer.alive, os.urandom(32)), answer.sealed)
        server.take_unmasking(w, answer)
    assert np.array_equal(server.total(), x[:8].sum(axis=0, dtype=np.uint64))
    assert server.liars == {2}


def test_with_no_share_to_spare_a_lie_closes_the_round():
    clients, frame = cohort(4, dropouts=0.0)
    server = up_to_masked(clients, frame, vectors(4))
    living, dead = server.lists()
    clients[1].turn.held = {v: os.urandom(64) + shares[64:] for v, shares in clients[1].turn.held.items()}
    for w in living:
        server.take_unmasking(w, clients[w].unmask(frame, living, dead))
    with pytest.raises(TooFewClients, match="the total stays closed"):
        server.total()


def test_messages_of_another_form_are_refused_by_the_server():
    clients, frame = cohort(6)
    server = Server(frame)
    shares = clients[0].share_keys(frame)
    for bad in (replace(shares, public=b"short"), replace(shares, packages={}), replace(shares, commitment=b"")):
        with pytest.raises(PrivacyError, match="malformed key shares"):
            server.take_shares(0, bad)
    with pytest.raises(PrivacyError, match="was not asked for"):
        server.take_masked(0, vectors(6)[0])
    with pytest.raises(PrivacyError, match="was not asked for"):
        server.take_unmasking(0, Unmasking({}, b""))
    with pytest.raises(TooFewClients, match="no client sent a masked sum"):
        server.total()
