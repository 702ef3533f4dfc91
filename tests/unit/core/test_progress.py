from __future__ import annotations

import re
import sys
import threading

from fedscape import Federation, Histogram, Local, rounds
from fedscape.core.progress import Work, duration, shown, working

FED = Federation({"y": [0, 1, 1]}, [0, 1, 3])


class Heard:
    """A standard error that says when it was written to."""

    def __init__(self) -> None:
        self.text, self.spoken = "", threading.Event()

    def write(self, text: str) -> None:
        self.text += text
        self.spoken.set()

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


def test_a_bar_is_shown_only_on_a_terminal_or_when_asked(capsys):
    done = list(shown(rounds(Histogram(2), FED, n_rounds=3), n_rounds=3, label="Counting"))
    assert [r.index for r in done] == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
    list(shown(rounds(Histogram(2), FED, n_rounds=3), n_rounds=3, label="Counting", progress=True))
    out, err = capsys.readouterr()
    assert out == ""
    assert "Counting" in err


def test_an_abandoned_round_is_said(capsys):
    loop = rounds(Histogram(2), Local(FED, min_clients=9), n_rounds=2)
    assert [r.abandoned for r in shown(loop, n_rounds=2, label="x", progress=True)] == [True, True]
    assert "abandoned" in capsys.readouterr().err


def test_without_a_terminal_lines_come_while_one_round_still_runs(monkeypatch):
    monkeypatch.setattr(sys, "stderr", heard := Heard())
    with working("FedGMM", total=20, every=0.001) as tell:
        tell(5, "loss 0.3")
        while "5 of 20" not in heard.text:  # on a busy machine a line of before may come first
            heard.spoken.clear()
            assert heard.spoken.wait(60)
    assert re.search(r"^FedGMM: 5 of 20, \d+ s so far, about \d+ s left, loss 0\.3$", heard.text, re.MULTILINE)


def test_only_the_innermost_work_speaks_and_the_outer_goes_on_after_it(monkeypatch):
    monkeypatch.setattr(sys, "stderr", heard := Heard())
    with working("fedscape train", bar=False, every=0.001):
        with working("FedEM", total=9, every=0.001):
            heard.spoken.clear()
            assert heard.spoken.wait(60)
            before = heard.text
            heard.spoken.clear()
            assert heard.spoken.wait(60)
            assert set(heard.text[len(before) :].splitlines()) == {"FedEM: 0 of 9, 0 s so far"}
        before = heard.text
        heard.spoken.clear()
        assert heard.spoken.wait(60)
        assert heard.text[len(before) :].splitlines()[-1] == "fedscape train: 0 s so far"


def test_quiet_work_says_nothing_and_starts_no_thread(monkeypatch):
    monkeypatch.setattr(sys, "stderr", heard := Heard())
    threads = threading.active_count()
    with working("x", total=2, progress=False, every=0.001) as tell:
        tell(1, "half")
        assert threading.active_count() == threads
    assert heard.text == ""


def test_the_rest_is_estimated_at_the_pace_so_far():
    assert Work("a", total=20, done=2).line(seconds=684) == "a: 2 of 20, 11 min so far, about 1 h 43 min left"
    assert Work("a", total=20).line(seconds=61) == "a: 0 of 20, 1 min so far"
    assert Work("study", total=98, done=49, unit="%", remark="5/6 learn").line(seconds=10) == (
        "study: 50%, 10 s so far, about 10 s left, 5/6 learn"
    )
    assert [duration(s) for s in (59.4, 59.6, 3569, 3571)] == ["59 s", "1 min", "59 min", "1 h 0 min"]
