"""Monitoring of a run: one JSON line per event, metrics for Prometheus, a health endpoint.

Events go through `logging` under the name "fedscape". "fedscape.rounds" has a line for every round, "fedscape.flower"
a warning for every node that failed to answer, "fedscape.node" the requests to a node. Without `watch` or your own
handlers nothing is printed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_TYPES = {
    "fedscape_rounds_total": ("counter", "Rounds that ended, including abandoned ones."),
    "fedscape_rounds_abandoned_total": ("counter", "Rounds in which too few clients reported."),
    "fedscape_faults_total": ("counter", "Faults of nodes, by kind."),
    "fedscape_round_seconds_total": ("counter", "Seconds that rounds took."),
    "fedscape_clients": ("gauge", "Clients of the last round; noisy if their number is secret."),
    "fedscape_bytes_up": ("gauge", "Largest number of bytes sent by a client in the last round."),
}


class Metrics(logging.Handler):
    """Counts events as they are logged.

    >>> metrics = Metrics()
    >>> metrics.count({"event": "round", "abandoned": True, "faults": {"missing": 2}})
    >>> [line for line in metrics.text().splitlines() if line.startswith("fedscape_faults")]
    ['fedscape_faults_total{kind="missing"} 2']
    """

    def __init__(self) -> None:
        super().__init__()
        self._numbers: Counter[str] = Counter(dict.fromkeys((n for n in _TYPES if n != "fedscape_faults_total"), 0))
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Count an event of the log; ignore other lines."""
        try:
            about = json.loads(record.getMessage())
        except ValueError:
            return
        if isinstance(about, dict) and about.get("event") == "round":
            self.count(about)

    def count(self, about: dict[str, Any]) -> None:
        """Count a round."""
        with self._guard:
            self._numbers["fedscape_rounds_total"] += 1
            self._numbers["fedscape_rounds_abandoned_total"] += bool(about.get("abandoned"))
            self._numbers["fedscape_round_seconds_total"] += about.get("seconds", 0)
            for name in ("clients", "bytes_up"):
                self._numbers[f"fedscape_{name}"] = about.get(name, 0)
            for kind, number in about.get("faults", {}).items():
                self._numbers[f'fedscape_faults_total{{kind="{kind}"}}'] += number

    def text(self) -> str:
        """All metrics in the Prometheus text format."""
        with self._guard:
            numbers = dict(self._numbers)
        lines = []
        for name, (kind, words) in _TYPES.items():
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
            lines += [f"{n} {v:g}" for n, v in sorted(numbers.items()) if n == name or n.startswith(name + "{")]
        return "\n".join(lines) + "\n"


def watch(*, metrics_port: int = 0, host: str = "127.0.0.1", level: int = logging.INFO) -> ThreadingHTTPServer | None:
    """Print one JSON line per event, and serve /metrics and /health if a port is given.

    Parameters
    ----------
    metrics_port
        The port; 0 serves nothing.
    host
        The address to listen on; anyone who reaches it can read the numbers of clients and faults.
    level
        The lowest level of events to print.
    """
    logger = logging.getLogger("fedscape")
    logger.setLevel(level)
    printed = logging.StreamHandler()
    printed.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(printed)
    if not metrics_port:
        return None
    metrics = Metrics()
    logger.addHandler(metrics)

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer /metrics and /health."""
            body = {"/metrics": metrics.text(), "/health": "ok\n"}.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do not log requests."""

    server = ThreadingHTTPServer((host, metrics_port), Page)
    threading.Thread(target=server.serve_forever, daemon=True, name="fedscape metrics").start()
    return server
