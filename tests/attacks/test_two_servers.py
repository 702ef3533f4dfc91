"""Two servers that do not collude, one of which lies."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from fedscape.errors import PrivacyError
from fedscape.secure.primitives import verifier_of
from fedscape.secure.two_servers import Package, Round, SecondServer, mask

ROUND = Round(b"run", 0, 2, parties=5, least=3, question=b"a histogram")
KEYS = [os.urandom(32) for _ in range(5)]


def sent_by(keys, helper: SecondServer, round_: Round = ROUND):
    """The masked words (all zeros) and packages of these parties."""
    zeros = np.zeros(round_.length, dtype=np.uint64)
    sent = [mask(zeros, helper.public, round_.context, key) for key in keys]
    return [masked for masked, _ in sent], [package for _, package in sent]


def refused(helper: SecondServer, packages, why: str, round_: Round = ROUND) -> None:
    with pytest.raises(PrivacyError, match=why):
        helper.sum_masks(round_, packages)


# -- a first server that lies ------------------------------------------------------------------------------------------


def test_one_party_or_one_party_many_times_is_refused():
    helper = SecondServer(least=3)
    _, sealed = sent_by(KEYS, helper)
    refused(helper, sealed[:1], "1 packages of 1 different parties, at least 3 are needed")
    refused(helper, sealed[:2], "2 packages of 2 different parties, at least 3 are needed")
    refused(helper, [sealed[0]] * 3, "3 packages of 1 different parties")
    again = sent_by(KEYS[:1], helper)[1]  # the same party with another seed
    refused(helper, [*sealed[:3], *again], "4 packages of 3 different parties")
    assert len(helper.sum_masks(ROUND, sealed)) == 2  # none of this used up the round


def test_two_sets_that_differ_by_one_party_are_not_both_answered():
    helper = SecondServer()
    _, sealed = sent_by(KEYS, helper)
    helper.sum_masks(ROUND, sealed)
    refused(helper, sealed[:4], "answered before")
    refused(helper, sealed, "answered before")
    longer = replace(ROUND, length=3)  # another length is another context, but the same round
    refused(helper, sent_by(KEYS, helper, longer)[1], "answered before", longer)
    other = replace(ROUND, question=b"a mean")
    refused(helper, sent_by(KEYS, helper, other)[1], "answered before", other)


def test_a_restart_and_a_second_process_do_not_answer_again(tmp_path):
    seed = os.urandom(32)
    helpers = [SecondServer(seed, folder=tmp_path) for _ in range(2)]  # both started before anything was answered
    _, sealed = sent_by(KEYS, helpers[0])
    helpers[0].sum_masks(ROUND, sealed)
    for helper in (helpers[1], SecondServer(seed, folder=tmp_path)):
        refused(helper, sealed[:4], "answered before")


def test_many_questions_at_once_get_one_answer():
    helper = SecondServer()
    _, sealed = sent_by(KEYS, helper)
    outcomes, begin = [], threading.Barrier(8)

    def ask(packages) -> None:
        begin.wait()
        try:
            outcomes.append(helper.sum_masks(ROUND, packages))
        except PrivacyError:
            outcomes.append(None)

    threads = [threading.Thread(target=ask, args=(sealed[: 3 + i % 3],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(outcome is not None for outcome in outcomes) == 1


@pytest.mark.parametrize(
    "change",
    [{"index": 1}, {"session": b"another"}, {"question": b"a mean"}, {"least": 2}, {"least": 4}, {"parties": 6}],
    ids=str,
)
def test_packages_of_another_round_question_or_size_are_refused(change):
    """A replay, other words for other parties, a smaller sum than the parties signed for: one signature says all."""
    helper = SecondServer(least=2)
    _, sealed = sent_by(KEYS, helper)
    refused(helper, sealed, "did not sign its seed for this round and question", replace(ROUND, **change))
    _, others = sent_by(KEYS[3:], helper, replace(ROUND, **change))
    refused(helper, [*sealed[:3], *others], "did not sign its seed for this round and question")


def test_noise_split_over_more_parties_than_are_opened_is_refused():
    """Parties are told that 1000 share the noise; the sum of five must then not be opened."""
    helper = SecondServer(least=3)
    told = Round(b"run", 0, 2, parties=1000, least=1000)
    refused(helper, sent_by(KEYS, helper, told)[1], "5 different parties, at least 1000 are needed", told)


def test_more_packages_than_parties_are_refused():
    helper, few = SecondServer(), replace(ROUND, parties=4)
    refused(helper, sent_by(KEYS, helper, few)[1], "5 packages in a round of 4 parties", few)


def test_parties_that_the_server_made_up_are_refused():
    helper = SecondServer(peers=[verifier_of(key) for key in KEYS[:3]])
    _, sealed = sent_by(KEYS, helper)
    refused(helper, [*sealed[:2], sealed[4]], "is not on the helper's roster")
    stolen = Package(sealed[0].identity, sealed[4].sealed, sealed[4].signature)  # a known name on another's seed
    refused(helper, [stolen, *sealed[1:3]], "did not sign")
    helper.sum_masks(ROUND, sealed[:3])


def test_seeds_for_another_helper_are_refused():
    helper = SecondServer()
    refused(helper, sent_by(KEYS, SecondServer())[1], "was not encrypted for this helper and round")


@pytest.mark.parametrize(
    "bad", [{"least": 1}, {"least": 6}, {"parties": -1}, {"index": True}, {"length": 2.0}], ids=str
)
def test_rounds_that_cannot_be_are_refused(bad):
    with pytest.raises(PrivacyError, match=r"not possible|whole numbers from 0"):
        replace(ROUND, **bad)


# -- a helper that lies ------------------------------------------------------------------------------------------------


def test_a_helper_without_words_learns_none_of_them():
    """All that the helper gets for two different inputs has one form and no part in common."""
    helper = SecondServer()
    one, other = (mask(np.full(2, n, dtype=np.uint64), helper.public, ROUND.context, KEYS[0])[1] for n in (0, 7))
    assert len(one.sealed) == len(other.sealed)
    assert one.identity == other.identity
    assert one.sealed != other.sealed
