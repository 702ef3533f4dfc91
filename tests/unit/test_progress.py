from __future__ import annotations

from fedscape import Federation, Histogram, Local, rounds
from fedscape.progress import shown

FED = Federation({"y": [0, 1, 1]}, [0, 1, 3])


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
