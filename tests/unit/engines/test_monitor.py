"""One JSON line per event, numbers for Prometheus, a health address."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request

import pytest

import fedscape as fs
from fedscape.engines.flower.monitor import Metrics, watch


@pytest.fixture
def lines():
    """What is logged, as JSON."""
    seen: list[dict] = []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append(json.loads(record.getMessage()))

    logger, handler = logging.getLogger("fedscape"), Keep()
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield seen
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_every_round_is_one_line_and_an_abandoned_one_a_warning(lines):
    fed = fs.Federation({"y": [0, 1, 1]}, [0, 1, 3])
    list(fs.rounds(fs.Histogram(2), fed, n_rounds=2))
    assert [line["round"] for line in lines] == [0, 1]
    assert lines[0]["computation"] == "histogram"
    assert (lines[0]["clients"], lines[0]["abandoned"], lines[0]["faults"]) == (2, False, {})
    list(fs.rounds(fs.Histogram(2), fs.Local(fed, min_clients=9), n_rounds=1))
    assert lines[-1]["abandoned"] is True


def test_numbers_are_served_in_the_form_of_prometheus():
    logger = logging.getLogger("fedscape")
    before = list(logger.handlers)
    level = logger.level
    server = watch(metrics_port=0) or watch(metrics_port=_free())
    try:
        logging.getLogger("fedscape.rounds").info(
            json.dumps({"event": "round", "clients": 7, "abandoned": False, "faults": {"late": 1}, "seconds": 0.5})
        )
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{url}/health") as said:
            assert said.read() == b"ok\n"
        with urllib.request.urlopen(f"{url}/metrics") as said:
            text = said.read().decode()
        assert "fedscape_rounds_total 1\n" in text
        assert "fedscape_clients 7\n" in text
        assert 'fedscape_faults_total{kind="late"} 1\n' in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other")
    finally:
        server.shutdown()
        server.server_close()
        for handler in [h for h in logger.handlers if h not in before]:
            logger.removeHandler(handler)
        logger.setLevel(level)


def _free() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_other_lines_of_a_log_are_left_alone():
    metrics = Metrics()
    metrics.emit(logging.LogRecord("x", logging.INFO, "", 0, "no json", (), None))
    metrics.emit(logging.LogRecord("x", logging.INFO, "", 0, "[1]", (), None))
    assert "fedscape_rounds_total 0" in metrics.text()
