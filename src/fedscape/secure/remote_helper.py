"""The second server over HTTPS: one request per round, JSON with packages in, bytes of the sum out."""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from fedscape.errors import DataError, EngineError, PrivacyError
from fedscape.secure.primitives import SEED, Words
from fedscape.secure.two_servers import Package, Round, SecondServer

_LARGEST = 2**26  # bytes of a question
_MOST_WORDS = 2**30
_BYTES = ("session", "question")  # of a round, as hex in JSON
_PATIENCE = 60.0  # seconds for a request to arrive


class RemoteAggregator:
    """Client of the second server, used by the first.

    Parameters
    ----------
    url
        Its address, such as https://helper.example.org:8443.
    public
        Its public key, as 32 bytes or in hex, from the helper's operator.
    certificate
        The certificate authority of its TLS certificate; by default those that this machine trusts.
    timeout
        Seconds to wait for a sum.
    """

    def __init__(
        self,
        url: str,
        public: bytes | str,
        *,
        certificate: str | os.PathLike[str] | None = None,
        timeout: float = 300.0,
    ) -> None:
        self.url, self.timeout = url.rstrip("/"), timeout
        self.public = bytes.fromhex(public) if isinstance(public, str) else public
        if len(self.public) != SEED or not self.url.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
            raise PrivacyError(f"a helper needs a key of {SEED} bytes and an https address, not {url!r}")
        encrypted = self.url.startswith("https://")
        self._context = ssl.create_default_context(cafile=certificate) if encrypted else None

    def sum_masks(self, round_: Round, packages: Sequence[Package]) -> Words:
        """Ask for the sum of these parties' masks."""
        length = round_.length
        sealed = [[p.identity.hex(), p.sealed.hex(), p.signature.hex()] for p in packages]
        about = asdict(round_) | {name: getattr(round_, name).hex() for name in _BYTES} | {"packages": sealed}
        request = urllib.request.Request(f"{self.url}/masks", data=json.dumps(about).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout, context=self._context) as answer:
                content = answer.read(8 * length + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise PrivacyError(error.read(500).decode(errors="replace").strip()) from None
        except OSError as error:
            raise EngineError(f"the second server at {self.url} does not answer: {error}") from None
        if len(content) != 8 * length:
            raise EngineError(f"the second server at {self.url} sent {len(content)} bytes, not {8 * length}")
        return np.frombuffer(content, dtype="<u8").astype(np.uint64)


def serve(
    helper: SecondServer,
    port: int,
    *,
    host: str = "127.0.0.1",
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> ThreadingHTTPServer:
    """The HTTP server of a helper; `serve_forever()` runs it.

    Parameters
    ----------
    helper
        The second server that answers.
    port, host
        The address to listen on.
    certificate, key
        Its TLS certificate and key; without them it listens on this machine only.
    """
    if certificate is None and host not in ("127.0.0.1", "localhost", "::1"):
        raise DataError(f"a helper on {host} needs a certificate: plain text is for this machine alone")
    server = ThreadingHTTPServer((host, port), _page(helper))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        # the handshake is left to each connection's thread: one that says nothing must not block the others
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def _page(helper: SecondServer) -> type[BaseHTTPRequestHandler]:
    class Page(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_GET(self) -> None:
            """Answer /health."""
            self._say(200 if self.path == "/health" else 404, b"ok\n" if self.path == "/health" else b"")

        def do_POST(self) -> None:
            """Answer a request for masks, or say in one line why not."""
            try:
                size = int(self.headers.get("Content-Length", 0))
                if self.path != "/masks" or not 0 < size <= _LARGEST:
                    raise ValueError("not a question")
                total = helper.sum_masks(*_question(self.rfile.read(size)))
            except PrivacyError as error:
                self._say(403, str(error).encode())
            except (ValueError, KeyError, TypeError):
                self._say(400, b"not a request for masks")
            else:
                self._say(200, total.astype("<u8").tobytes())

        def _say(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do not log requests: the folder of answered rounds has them."""

    return Page


def _question(content: bytes) -> tuple[Round, list[Package]]:
    about = json.loads(content)
    packages = [Package(*(bytes.fromhex(text) for text in package)) for package in about.pop("packages")]
    round_ = Round(**about | {name: bytes.fromhex(about[name]) for name in _BYTES})
    if round_.length > _MOST_WORDS:
        raise ValueError("too many words")
    return round_, packages
