"""What notebooks show of a federation, a history, a ledger and a study: escaped, without rows and ids."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser

import fedscape as fs
from fedscape.display import table

EVIL = '<script>alert("x")</script>'


class Reader(HTMLParser):
    """Tags in order, and the text of cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def federation() -> fs.Federation:
    columns = {"y": ["secret-a", "secret-b", "secret-a"], EVIL: [[123456.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
    return fs.Federation.from_arrays(columns, clients=["hidden-1", "hidden-1", "hidden-2"])


def test_a_federation_shows_its_columns_and_neither_rows_nor_ids():
    html = federation()._repr_html_()
    shown = Reader(html)
    assert shown.texts[0] == "Federation: 2 clients, 3 rows"
    assert EVIL in shown.texts  # as text
    assert "script" not in shown.tags
    for hidden in ("secret", "hidden", "123456", "123,456"):
        assert hidden not in html


def test_a_history_shows_its_rounds_and_its_notes_escaped():
    history = fs.Histogram(2, column="y").fit(fs.Federation({"y": [0, 1]}, [0, 1, 2])).history_
    history.notes.append(EVIL)
    shown = Reader(history._repr_html_())
    assert shown.texts[0] == "History: 1 round"
    assert "clients" in shown.texts
    assert "script" not in shown.tags


def test_a_long_table_shows_its_first_and_last_rows():
    shown = Reader(table("t", [{"n": n} for n in range(1000, 2001)])).texts
    assert shown[2:4] == ["1,000", "1,001"]
    assert "... 981 more" in shown
    assert shown[-1] == "2,000"
    assert len(shown) == 2 + 20 + 1


def test_a_ledger_shows_what_is_spent_and_warns_of_known_noise():
    fed = fs.Federation({"y": [0, 1, 1]}, [0, 1, 3])
    ledger = fs.Ledger(epsilon=4, delta=1e-6)
    assert "budget epsilon 4" in ledger._repr_html_()
    privacy = fs.Gaussian(clip=1.0, multiplier=8.0, unit="client", noise_seed=1)
    fs.Histogram(2, column="y").fit(fed, privacy=privacy, ledger=ledger)
    shown = Reader(ledger._repr_html_())
    assert shown.texts[0] == "Ledger: 1 releases, budget epsilon 4, delta 1e-06"
    assert "client" in shown.texts
    assert shown.texts[-1].startswith("NOT PRIVATE")


def test_what_notebooks_need_is_loaded_when_they_ask():
    code = "import sys, fedscape as fs; fs.Federation({'y': [0]}, [0, 1]); assert 'fedscape.display' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
