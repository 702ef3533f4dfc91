"""Write a ready deployment over Flower, and check it for known gaps."""

from __future__ import annotations

import datetime
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscape.deploy import files as files
from fedscape.deploy import keys as keys
from fedscape.deploy import node as node
from fedscape.deploy import read as read
from fedscape.deploy.helper import give_to_nodes, read_helper
from fedscape.engines.flower.secure_node import HELPER, KEY, PEERS, verifying_key
from fedscape.errors import DataError, require

_SWITCHES = ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1")
_NO_INSTALLS = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1"
_SCRIPTS = ("environment.sh", "superlink.sh", "register.sh", "supernode.sh", "run.sh")
_TABLES = ("app/pyproject.toml", "flower/config.toml")
_SOON = 30
Options = dict[str, str]


@dataclass(frozen=True)
class Finding:
    """A result of `check`: an error, a warning, or a note on a gap that no file can close."""

    level: str
    what: str
    remedy: str


def init(
    folder: str | os.PathLike[str],
    *,
    nodes: int = 3,
    hosts: Sequence[str] = ("127.0.0.1", "localhost"),
    port: int = 8000,
    days: int = 365,
    plain: bool = False,
    strict: bool = False,
    secure: bool = False,
    helper: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Write a ready Flower app with certificates, node keys, the nodes' terms and scripts into a new folder.

    Parameters
    ----------
    folder
        The folder; it must be empty or not exist.
    nodes
        Number of node keys to create.
    hosts
        Names and addresses under which nodes reach the server; nodes use the first one.
    port
        The SuperLink's port.
    days
        How long the certificates are valid.
    plain
        Plain text instead of TLS, and so no node authentication: only if the first host is this machine.
    strict
        Terms that trust no server: nodes answer only if they add all of the noise themselves.
    secure
        Sums leave nodes only masked (`SecureSum`): a signing key for every node, and a roster of all.
    helper
        The `helper.json` of a second server, as its operator handed it over: masked sums with `TwoServers`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     init(folder, nodes=2)["nodes"]
    2
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} exists and is not an empty folder: choose another")
    if nodes < 1 or not 1 <= days <= 36500 or not 0 < port < 65536 or not hosts:
        raise DataError(
            "nodes must be at least 1, days 1 to 36500, port 1 to 65535 and hosts not empty, "
            f"got {nodes}, {days}, {port} and {list(hosts)}"
        )
    for host in hosts:
        read.check_host(host)
    if plain and not read.is_loopback(hosts[0]):
        raise DataError(f"plain text is for this machine alone, not for {hosts[0]}: leave it out and TLS is used")
    if not plain:
        require("cryptography", extra="flower")  # before anything is written
    second = None if helper is None else read_helper(helper)
    secure = secure or second is not None
    if secure and nodes < 3:
        raise DataError(f"secure sums need at least 3 nodes, not {nodes}: the sum of fewer shows one to another")
    if secure:
        require("cryptography", extra="flower")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.chmod(0o700)  # it may have existed
    for name in ("certificates", "keys", "nodes"):
        (target / name).mkdir(mode=0o700)
        (target / name / ".gitignore").write_text(files.GITIGNORE, "utf-8")
    if not plain:
        keys.write_certificates(target / "certificates", hosts, days)
        keys.write_keys(target / "keys", range(nodes))
    node.write_first_terms(target, range(nodes), strict=strict, secure=secure)
    if secure:
        keys.write_rosters(target, range(nodes))
    if second is not None:
        give_to_nodes(target, second["public"])
        (target / "certificates" / "helper.crt").write_text(second["certificate"], "utf-8")
    _write_texts(target, hosts[0], port, nodes=nodes, plain=plain, secure=secure, helper=second or {})
    about: dict[str, Any] = {"address": read.address_of(hosts[0], port), "nodes": nodes, "plain_text": plain}
    about |= {"strict": strict, "secure": secure}
    if second is not None:
        about["helper"] = {name: second[name] for name in ("url", "public")}
    (target / "deployment.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    return {"folder": str(target), **about}


def _write_texts(
    target: Path, host: str, port: int, *, nodes: int, plain: bool, secure: bool, helper: Mapping[str, str]
) -> None:
    loopback, everywhere = ("::1", "::") if ":" in host else ("127.0.0.1", "0.0.0.0")
    values = {
        "ADDRESS": read.address_of(host, port),
        "BIND": loopback if read.is_loopback(host) else everywhere,
        "PORT": str(port),
        "NODES": str(nodes),
        "MASKED": str(secure).lower(),
        "HELPER": helper.get("url", ""),
        "HELPER_KEY": helper.get("public", ""),
    }
    security = {
        "superlink.sh": "--insecure" if plain else files.SUPERLINK_TLS,
        "supernode.sh": "--insecure" if plain else files.SUPERNODE_TLS,
        "flower/config.toml": "insecure = true" if plain else 'root-certificates = "@HERE@/certificates/ca.crt"',
    }
    texts = {
        "environment.sh": files.ENVIRONMENT,
        "superlink.sh": files.SUPERLINK,
        "register.sh": files.REGISTER,
        "supernode.sh": files.SUPERNODE,
        "run.sh": files.RUN,
        "flower/config.toml": files.CONFIG,
        "flower/locate.py": files.LOCATE,
        "app/pyproject.toml": files.PYPROJECT,
        "app/deployed/__init__.py": "",
        "app/deployed/server.py": files.SERVER,
        "app/deployed/client.py": files.CLIENT,
        "README.md": files.README,
        **files.HOSTS,
    }
    for name, text in texts.items():
        text = text.replace("@SECURITY@", security.get(name, ""))
        for word, value in values.items():
            text = text.replace(f"@{word}@", value)
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        if path.suffix == ".sh":
            path.chmod(0o755)


# -- check -------------------------------------------------------------------------------------------------------------


def check(folder: str | os.PathLike[str]) -> list[Finding]:
    """Check a deployment for known gaps: errors first, then warnings, then gaps that no file can close.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = init(folder)
    ...     [finding.level for finding in check(folder)]
    ['warning', 'note', 'note', 'note']
    """
    target = Path(folder)
    if not (target / "deployment.json").is_file():
        raise DataError(f"{target} is not a deployment: fedscape deploy init {target} makes one")
    about = _about(target / "deployment.json")
    findings = [*_files(target), *_switches(target, about), *_readable(target)]
    if not about["plain_text"]:
        findings += [*_secrets(target), *_certificates(target, about), *_keys(target)]
    findings += _gaps(target, about)
    return sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding.level))


def _about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        read.check_host(read.host_of(about["address"]))
        if not isinstance(about["plain_text"], bool):
            raise DataError(f"plain_text must be true or false, not {about['plain_text']!r}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"{path} is damaged ({reason}): recreate the deployment with fedscape deploy init") from None
    return dict(about)


def _files(target: Path) -> Iterator[Finding]:
    for name in (*_SCRIPTS, *_TABLES):
        if not (target / name).is_file():
            yield Finding("error", f"{name} is missing", "recreate the deployment with fedscape deploy init")
        elif (read.shell if name in _SCRIPTS else read.toml)(target / name) is None:
            yield Finding("error", f"{name} cannot be read", "an unclosed quote? deploy init shows the original")


def _switches(target: Path, about: dict[str, Any]) -> Iterator[Finding]:
    scripts = {name: read.shell(target / name) or [] for name in _SCRIPTS}
    app, config = (read.toml(target / name) or {} for name in _TABLES)
    links = list(read.calls(scripts["superlink.sh"], "flower-superlink"))
    nodes = list(read.calls(scripts["supernode.sh"], "flower-supernode"))
    exported = {f"{name}={value}" for name, value in read.exports(scripts["environment.sh"]).items()}
    for name in _SCRIPTS[1:]:
        if not any(c[0] in (".", "source") and c[-1].endswith("environment.sh") for c in scripts[name]):
            yield Finding("error", f"{name} does not read environment.sh", "put '. \"$here/environment.sh\"' into it")
    for name, program, started in (("superlink.sh", "superlink", links), ("supernode.sh", "supernode", nodes)):
        if not started:
            yield Finding("error", f"{name} starts no flower-{program}", "deploy init shows the original")
    for switch in _SWITCHES:
        if switch not in exported:
            yield Finding("error", "telemetry or update checks are on", f"put 'export {switch}' into environment.sh")
    if _NO_INSTALLS not in exported or not all("--disable-runtime-dependency-installation" in link for link in links):
        remedy = f"'export {_NO_INSTALLS}' and flower-superlink --disable-runtime-dependency-installation"
        yield Finding("error", "packages would be installed whenever a run starts", remedy)
    if read.setting(app, "project", "dependencies") != []:
        yield Finding("warning", "the app names dependencies", "install them on every host, and leave the list empty")
    places = [("superlink.sh", links), ("supernode.sh", nodes)]
    plain = [name for name, calls in places if any("--insecure" in call for call in calls)]
    if read.setting(config, "superlink", "deployment", "insecure"):
        plain.append(_TABLES[1])
    if about["plain_text"]:
        yield from _leaks(about, config, links, nodes)
        return
    for name in plain:
        yield Finding("error", f"{name} asks for plain text", "give it the certificates, as deploy init does")
    if not all("--enable-supernode-auth" in link for link in links):
        yield Finding("error", "any node is served", "start flower-superlink with --enable-supernode-auth")


def _leaks(about: dict[str, Any], config: Any, links: Sequence[Options], nodes: Sequence[Options]) -> Iterator[Finding]:
    """Report hosts to which plain text would leave this machine."""
    configured = read.setting(config, "superlink", "deployment", "address")
    hosts = [("the address in deployment.json", read.host_of(about["address"]))]
    hosts += [("the address in flower/config.toml", read.host_of(str(configured)))]
    hosts += [("--host in superlink.sh", link.get("--host", "")) for link in links]
    hosts += [("--superlink in supernode.sh", read.host_of(node.get("--superlink", ""))) for node in nodes]
    for where, host in hosts:
        if not read.is_loopback(host):
            problem = f"plain text, and {where} is {host or 'not given'}, which is not this machine alone"
            yield Finding("error", problem, "use 127.0.0.1, or TLS: deploy init without --plain-text-on-loopback")


def _readable(target: Path) -> Iterator[Finding]:
    """Report files that others on this machine could read, now or later, and terms that nodes cannot read."""
    secret = [*target.glob("certificates/*.key"), *(p for p in target.glob("keys/node-*") if not p.suffix)]
    for path in [
        target,
        *secret,
        *target.glob("superlink.db*"),
        *target.glob("nodes/*/terms.toml"),
        *target.glob(f"nodes/*/{KEY}"),
    ]:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            where = "the folder" if path == target else path.relative_to(target)
            remedy = f"chmod {'700' if path == target else '600'} {path}"
            yield Finding("error", f"{where} can be read by others (mode {mode:o})", remedy)
    for problem in node.damaged_terms(target):
        yield Finding("error", problem, "the node refuses everything: fix it, or use fedscape deploy terms")
    masks = [c[-1] for c in read.shell(target / "environment.sh") or [] if c[0] == "umask"]
    if masks[-1:] not in (["077"], ["0077"]):
        problem = "others could read what Flower writes, including its database"
        yield Finding("error", problem, "put 'umask 077' into environment.sh")


def _secrets(target: Path) -> Iterator[Finding]:
    for name in ("certificates", "keys", "nodes"):
        ignored = target / name / ".gitignore"
        if not ignored.is_file() or "*" not in ignored.read_text("utf-8").split():
            yield Finding("error", f"{name}/ could end up in a repository", f"put '*' into {name}/.gitignore")
    if (target / "certificates" / "ca.key").exists():
        yield Finding(
            "warning", "certificates/ca.key is here", "take it off this machine: a running deployment does not need it"
        )


def _certificates(target: Path, about: dict[str, Any]) -> Iterator[Finding]:
    require("cryptography", extra="flower")
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    certificates = {}
    for name in ("ca.crt", "server.pem"):
        try:
            certificates[name] = x509.load_pem_x509_certificate((target / "certificates" / name).read_bytes())
        except (OSError, ValueError):
            yield Finding("error", f"certificates/{name} cannot be read", "recreate the deployment")
    for name, certificate in certificates.items():
        left = (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days
        if left < _SOON:
            level, what = ("error", "has expired") if left < 0 else ("warning", f"expires in {left} days")
            yield Finding(level, f"certificates/{name} {what}", "make new certificates and restart the SuperLink")
    if len(certificates) < 2:
        return
    try:
        certificates["server.pem"].verify_directly_issued_by(certificates["ca.crt"])
    except (InvalidSignature, ValueError, TypeError):
        yield Finding(
            "error", "certificates/server.pem is not signed by this CA", "nodes would refuse it: recreate both"
        )
    host = read.host_of(about["address"])
    try:
        names = list(certificates["server.pem"].extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (x509.ExtensionNotFound, ValueError):
        names = []
    if keys.alternative(host) not in names:
        yield Finding("error", f"the certificate is not for {host}", "deploy init with --host for every name nodes use")


def _keys(target: Path) -> Iterator[Finding]:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    for path in sorted(p for p in target.glob("keys/node-*") if not p.suffix):
        try:
            sound = isinstance(load_ssh_private_key(path.read_bytes(), None), ec.EllipticCurvePrivateKey)
        except (OSError, ValueError, TypeError):
            sound = False
        if not sound:
            remedy = "ssh-keygen -t ecdsa -b 384 without a passphrase"
            yield Finding("error", f"keys/{path.name} is not an EC key in OpenSSH form", remedy)


def _gaps(target: Path, about: dict[str, Any]) -> Iterator[Finding]:
    links = read.calls(read.shell(target / "superlink.sh") or [], "flower-superlink")
    hosts = [read.host_of(about["address"]), *(link.get("--host", "") for link in links)]
    if about["plain_text"]:
        yield Finding(
            "warning", "plain text and no node authentication, on this machine alone", "for anything else: TLS"
        )
    elif not all(map(read.is_loopback, hosts)):
        remedy = "let only the nodes and the operator reach it: a firewall, or a proxy that passes /v1/fleet/* alone"
        yield Finding("warning", "the SuperLink listens to the network", remedy)
    yield Finding(
        "note",
        "node authentication covers the Fleet calls only: anyone who reaches the port can register keys and start runs",
        "a firewall is part of the deployment",
    )
    yield Finding(
        "note",
        "a run brings its own app: whoever starts a run chooses the code that nodes execute; terms.toml binds an app "
        "that uses client_app, and no other",
        "let only the operator reach the port, and read app/deployed/client.py before a run",
    )
    if about.get("secure"):
        yield from _rosters(target)
        if about.get("helper"):
            yield from _helper_keys(target, about["helper"])
        return
    yield Finding(
        "note",
        "sums are not masked: the server sees what each node sends",
        "deploy init --secure, put several clients on a node, or use place='local' or 'distributed'",
    )


def _rosters(target: Path) -> Iterator[Finding]:
    """Check that all nodes here have the same peers, and are among them."""
    listed = keys.on_roster(target)
    texts = {number: _text(target / "nodes" / str(number) / PEERS) for number in listed}
    present = [number for number in listed if (target / "nodes" / str(number)).is_dir()]  # they may be on their hosts
    if not listed or len({texts[number] for number in present} | {_text(target / PEERS)}) > 1:
        yield Finding("error", f"nodes have different {PEERS}, or none", "they refuse each other: copy one to all")
    for number in present:
        path = target / "nodes" / str(number)
        if (path / KEY).is_file() and verifying_key(path).hex() != listed[number]:
            yield Finding("error", f"nodes/{number} is not on its own {PEERS}", "fedscape deploy renew gives it keys")


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


def _helper_keys(target: Path, helper: Mapping[str, str]) -> Iterator[Finding]:
    """Check that all nodes here know the second server of this deployment."""
    for number in keys.on_roster(target):
        path = target / "nodes" / str(number)
        if path.is_dir() and _text(path / HELPER).strip() != helper.get("public"):
            problem = f"nodes/{number}/{HELPER} is not the key of the second server"
            yield Finding("error", problem, "the node refuses its sums: write the key in deployment.json into it")
    yield Finding(
        "note",
        "the second server must be run by another organisation: whoever runs both servers sees each node's sum",
        "have them run fedscape deploy helper, with roster.txt",
    )
