"""The second server over HTTPS: the same sums, one answer a round, nothing but one line for what it refuses."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request

import numpy as np
import pytest

import fedscape as fs
from fedscape.deploy.keys import write_certificates
from fedscape.errors import DataError, EngineError, PrivacyError
from fedscape.secure.remote_helper import RemoteAggregator, serve
from fedscape.secure.two_servers import SecondServer


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
    with pytest.raises(PrivacyError, match="0 different parties are named in 0 packages, at least 3 must be"):
        helper.sum_masks(b"run", 0, 4, [])
    request = urllib.request.Request(f"{helper.url}/masks", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="400"), urllib.request.urlopen(request, context=helper._context):
        pass
    with urllib.request.urlopen(f"{helper.url}/health", context=helper._context) as said:
        assert said.read() == b"ok\n"


def test_plain_text_beyond_this_machine_and_a_helper_that_is_away_are_refused():
    with pytest.raises(PrivacyError, match=r"an https address, not 'http://helper\.example\.org'"):
        RemoteAggregator("http://helper.example.org", bytes(32))
    with pytest.raises(DataError, match="plain text is for this machine alone"):
        serve(SecondServer(), 0, host="0.0.0.0")
    with pytest.raises(EngineError, match="does not answer"):
        RemoteAggregator("http://127.0.0.1:9", bytes(32), timeout=2).sum_masks(b"run", 0, 4, [])
