"""The second server over HTTPS: the same sums, one answer a round, nothing but one line for what it refuses."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest

import fedscape as fs
from fedscape.deploy.keys import write_certificates
from fedscape.errors import DataError, EngineError, PrivacyError
from fedscape.secure.remote_helper import RemoteAggregator, serve
from fedscape.secure.two_servers import Round, SecondServer

ROUND = Round(b"run", 0, 4, parties=5, least=3)


@pytest.fixture
def helper(tmp_path):
    write_certificates(tmp_path, ["127.0.0.1"], 2)
    own = SecondServer(folder=tmp_path)
    server = serve(own, 0, certificate=tmp_path / "server.pem", key=tmp_path / "server.key")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"https://127.0.0.1:{server.server_address[1]}"
    yield RemoteAggregator(url, own.public.hex(), certificate=tmp_path / "ca.crt")
    server.shutdown()
    server.server_close()
    thread.join()


def test_sums_shared_with_a_server_elsewhere_are_the_plain_ones(helper):
    fed = fs.Federation({"y": np.arange(40) % 3}, np.arange(0, 41, 8))
    masked = fs.Histogram(3).fit(fs.Local(fed, secure=fs.TwoServers(helper=helper)))
    assert np.array_equal(masked.counts_, fs.Histogram(3).fit(fed).counts_)


def test_what_the_helper_refuses_is_said_in_one_line(helper):
    with pytest.raises(PrivacyError, match="0 packages of 0 different parties, at least 3 are needed"):
        helper.sum_masks(ROUND, [])
    for bad in (b"{}", b"[]", b"\xff", b'{"packages": [[]]}'):
        request = urllib.request.Request(f"{helper.url}/masks", data=bad, method="POST")
        with (
            pytest.raises(urllib.error.HTTPError, match="400"),
            urllib.request.urlopen(request, context=helper._context),
        ):
            pass
    with urllib.request.urlopen(f"{helper.url}/health", context=helper._context) as said:
        assert said.read() == b"ok\n"


def test_plain_text_beyond_this_machine_and_a_helper_that_is_away_are_refused():
    with pytest.raises(PrivacyError, match=r"an https address, not 'http://helper\.example\.org'"):
        RemoteAggregator("http://helper.example.org", bytes(32))
    with pytest.raises(DataError, match="plain text is for this machine alone"):
        serve(SecondServer(), 0, host="0.0.0.0")
    with pytest.raises(EngineError, match="does not answer"):
        RemoteAggregator("http://127.0.0.1:9", bytes(32), timeout=2).sum_masks(ROUND, [])


def test_a_connection_that_says_nothing_does_not_block_the_others(helper):
    address = urllib.parse.urlsplit(helper.url)
    with (
        socket.create_connection((address.hostname, address.port)),
        urllib.request.urlopen(f"{helper.url}/health", context=helper._context, timeout=20) as said,
    ):
        assert said.read() == b"ok\n"
