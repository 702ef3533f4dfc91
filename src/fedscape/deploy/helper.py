"""The second server of `TwoServers`: its folder, the file that its operator hands over, and its process.

FOLDER/signing.key    the seed of the helper's key
FOLDER/helper.json    its address, public key and certificate authority, for `fedscape deploy init --helper`
FOLDER/server.pem     its TLS certificate, with server.key
FOLDER/answered/      one file per answered round
"""

from __future__ import annotations

import json
import os
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedscape.deploy import keys as keys
from fedscape.deploy import read as read
from fedscape.engines.flower.secure_node import HELPER, Keys, read_peers
from fedscape.errors import DataError, PrivacyError, require
from fedscape.secure.primitives import public_of
from fedscape.secure.remote_helper import RemoteAggregator, serve
from fedscape.secure.two_servers import SecondServer

FILE = "helper.json"


def write_helper(folder: str | os.PathLike[str], host: str, port: int, *, days: int = 365) -> dict[str, Any]:
    """Create a helper's key and certificate, and write the file that its operator hands to the deployment's.

    Parameters
    ----------
    folder
        The helper's folder; it must not have a helper yet.
    host, port
        The name or address, and the port, at which the deployment's server reaches it.
    days
        How long the certificate is valid.
    """
    require("cryptography", extra="flower")
    read.check_host(host)
    if not 0 < port < 65536 or not 1 <= days <= 36500:
        raise DataError(f"port must be 1 to 65535 and days 1 to 36500, got {port} and {days}")
    path = Path(folder)
    if (path / FILE).exists():
        raise DataError(f"{path / FILE} exists: its key is known to nodes; choose another folder for a new helper")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    keys.write_certificates(path, [host], days)
    about = {
        "url": f"https://{read.address_of(host, port)}",
        "public": public_of(Keys(path).identity()).hex(),
        "certificate": (path / "ca.crt").read_text("utf-8"),
    }
    (path / "ca.key").unlink()  # it has signed the one certificate that it is for
    (path / FILE).write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return {"folder": str(path), "url": about["url"], "public": about["public"], "hand over": str(path / FILE)}


def read_helper(path: str | os.PathLike[str]) -> dict[str, str]:
    """A helper's address, public key and certificate authority, as its operator wrote them."""
    try:
        about = json.loads(Path(path).read_text(encoding="utf-8"))
        helper = {name: str(about[name]) for name in ("url", "public", "certificate")}
        RemoteAggregator(helper["url"], helper["public"])
    except (OSError, ValueError, KeyError, TypeError, PrivacyError):
        raise DataError(f"{path} is not a {FILE}: fedscape deploy helper FOLDER --new HOST writes one") from None
    return helper


def give_to_nodes(deployment: Path, public: str) -> None:
    """Write the helper's public key into the folder of every node here."""
    for path in (deployment / "nodes").iterdir():
        if path.is_dir():
            (path / HELPER).write_text(f"{public}\n", "utf-8")


def helper_server(
    folder: str | os.PathLike[str],
    port: int,
    *,
    host: str,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    roster: str | os.PathLike[str] | None,
    least: int,
) -> tuple[ThreadingHTTPServer, str]:
    """The helper's server and its public key; by default with the certificate in its folder, if there is one."""
    path = Path(folder)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if certificate is None and (path / "server.pem").is_file():
        certificate, key = path / "server.pem", path / "server.key"
    peers = None if roster is None else read_peers(Path(roster))
    own = SecondServer(Keys(path).identity(), peers=peers, least=least, folder=path)
    return serve(own, port, host=host, certificate=certificate, key=key), own.public.hex()
