"""Certificates, the keys of nodes, and the roster of a deployment."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedscape import disk
from fedscape.deploy import node as node
from fedscape.engines.flower.secure_node import HELPER, KEY, PEERS, verifying_key
from fedscape.errors import DataError, require


def write_certificates(folder: Path, hosts: Sequence[str], days: int) -> None:
    """Write a certificate authority, and the server's certificate for these hosts."""
    require("cryptography", extra="flower")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> Any:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    span = now - datetime.timedelta(minutes=5), now + datetime.timedelta(days=days)  # allows for clock skew

    def begun(subject: Any, key: Any, issuer: Any) -> Any:
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), *span)
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = (
        begun(named("fedscape deployment CA"), authority, named("fedscape deployment CA"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .sign(authority, hashes.SHA256())
    )
    certificate = (
        begun(named("fedscape deployment server"), server, ca.subject)
        .add_extension(x509.SubjectAlternativeName([alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    _write_certificate(folder / "ca.crt", ca)
    _write_certificate(folder / "server.pem", certificate)
    _write_secret(folder / "ca.key", authority, openssh=False)
    _write_secret(folder / "server.key", server, openssh=False)


def alternative(host: str) -> Any:
    """A host as a subject alternative name."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_certificate(path: Path, certificate: Any) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    path.write_bytes(certificate.public_bytes(Encoding.PEM))


def write_keys(folder: Path, numbers: Iterable[int]) -> None:
    """Write a key for each of these nodes; the SuperLink identifies it by the key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    for number in numbers:
        key = ec.generate_private_key(ec.SECP384R1())
        _write_secret(folder / f"node-{number}", key, openssh=True)
        kind = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        (folder / f"node-{number}.pub").write_bytes(key.public_key().public_bytes(*kind) + b"\n")


def _write_secret(path: Path, key: Any, *, openssh: bool) -> None:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PrivateFormat.OpenSSH if openssh else serialization.PrivateFormat.PKCS8
    handle = disk.open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(handle, "wb") as file:
        file.write(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


# -- the roster --------------------------------------------------------------------------------------------------------


def write_rosters(deployment: Path, new: Iterable[int]) -> None:
    """Give new nodes a signing key, enter them in the roster, and give the roster to every node on it."""
    verifying = on_roster(deployment)
    verifying |= {number: verifying_key(deployment / "nodes" / str(number)).hex() for number in new}
    text = "".join(f"{verifying[number]} {number}\n" for number in sorted(verifying))
    for path in (deployment, *(deployment / "nodes" / str(number) for number in verifying)):
        if path.is_dir():
            (path / PEERS).write_text(text, "utf-8")


def on_roster(deployment: Path) -> dict[int, str]:
    """The verifying keys on the deployment's roster, by node number."""
    path = deployment / PEERS
    lines = [line.split() for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    return {int(words[1]): words[0] for words in lines if len(words) == 2 and words[1].isdecimal()}


def _strike_off(deployment: Path, number: int) -> None:
    """Remove a node from the roster."""
    for path in (deployment / PEERS, *deployment.glob(f"nodes/*/{PEERS}")):
        if path.is_file():
            lines = [line for line in path.read_text("utf-8").splitlines() if line.split()[1:2] != [str(number)]]
            path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


# -- add and remove nodes ----------------------------------------------------------------------------------------------


def add(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Add a node: its keys, terms and roster entry."""
    deployment, about = _read(folder)
    numbers = [int(path.stem.removeprefix("node-")) for path in (deployment / "keys").glob("node-*.pub")]
    numbers += [int(path.name) for path in (deployment / "nodes").iterdir() if path.is_dir()]
    number = max(numbers, default=-1) + 1
    _write_node(deployment, number, about)
    _write(deployment, {**about, "nodes": about["nodes"] + 1})
    return _copies(deployment, number, about)


def revoke(folder: str | os.PathLike[str], number: int) -> dict[str, Any]:
    """Remove a node's keys and its roster entry; `register.sh` then unregisters it from the SuperLink."""
    deployment, about = _read(folder)
    _drop_keys(deployment, number)
    if about.get("secure"):
        _strike_off(deployment, number)
        for name in (KEY, PEERS):  # here, not on the node: a later roster must not name it again
            (deployment / "nodes" / str(number) / name).unlink(missing_ok=True)
    _write(deployment, {**about, "nodes": max(about["nodes"] - 1, 0)})
    return {"revoked": number, "then": "./register.sh", "copy": _rosters(deployment, about)}


def renew(folder: str | os.PathLike[str], number: int) -> dict[str, Any]:
    """Give a node new keys; its terms, its ledger and its clients' kept arrays stay the same."""
    deployment, about = _read(folder)
    _drop_keys(deployment, number)
    (deployment / "nodes" / str(number) / KEY).unlink(missing_ok=True)
    _write_node(deployment, number, about)
    return _copies(deployment, number, about)


def _drop_keys(deployment: Path, number: int) -> None:
    names = [deployment / "keys" / f"node-{number}{end}" for end in ("", ".pub", ".id")]
    if not names[1].exists():
        raise DataError(f"{deployment} has no keys/node-{number}.pub: fedscape deploy check lists the nodes")
    if names[2].exists():  # the SuperLink still serves it under this id, until register.sh has run
        names[2].rename(names[2].with_suffix(".old-id"))
    for path in names[:2]:
        path.unlink(missing_ok=True)


def _write_node(deployment: Path, number: int, about: dict[str, Any]) -> None:
    write_keys(deployment / "keys", [number])
    if not (deployment / "nodes" / str(number) / "terms.toml").exists():
        node.write_first_terms(deployment, [number], strict=bool(about.get("strict")), secure=bool(about.get("secure")))
    if about.get("secure"):
        write_rosters(deployment, [number])
    if about.get("helper"):
        (deployment / "nodes" / str(number) / HELPER).write_text(f"{about['helper']['public']}\n", "utf-8")


def _copies(deployment: Path, number: int, about: dict[str, Any]) -> dict[str, Any]:
    """The files to copy to each host, and the command to run."""
    return {
        "node": number,
        "then": "./register.sh",
        "copy": [f"keys/node-{number}", f"nodes/{number}", *_rosters(deployment, about)],
    }


def _rosters(deployment: Path, about: dict[str, Any]) -> list[str]:
    """The rosters to copy to the other nodes and, if there is one, to the helper."""
    if not about.get("secure"):
        return []
    paths = sorted(str(path.relative_to(deployment)) for path in deployment.glob(f"nodes/*/{PEERS}"))
    return [*paths, f"{PEERS} (to the helper, and restart it)"] if about.get("helper") else paths


def _read(folder: str | os.PathLike[str]) -> tuple[Path, dict[str, Any]]:
    deployment = Path(folder)
    try:
        about = json.loads((deployment / "deployment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{deployment} is not a deployment: fedscape deploy init {deployment} makes one") from None
    if about.get("plain_text"):
        raise DataError("a deployment in plain text has no keys: any node of this machine may join it")
    return deployment, about


def _write(deployment: Path, about: dict[str, Any]) -> None:
    (deployment / "deployment.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
