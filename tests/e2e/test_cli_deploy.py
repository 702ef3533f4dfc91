"""fedscape deploy: what it writes is safe from the start, and check finds what was made unsafe."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest
from shell import fedscape, ok, refused, serving, started

from fedscape import DataError, EngineError, Federation, Flower, Histogram, Laplace
from fedscape.deploy import init as deploy
from fedscape.deploy import keys
from fedscape.engines.flower import LocalGrid, client_app


def test_init_writes_a_deployment_that_check_finds_no_error_in(tmp_path):
    made = json.loads(started("deploy", "init", tmp_path / "d", "--nodes", 2, "--host", "fl.example.org", "--json"))
    assert made["address"] == "fl.example.org:8000"
    found = json.loads(started("deploy", "check", tmp_path / "d", "--json"))
    assert {finding["level"] for finding in found} == {"warning", "note"}
    assert any("listens to the network" in finding["what"] for finding in found)
    secrets = [*(tmp_path / "d").glob("keys/node-?"), *(tmp_path / "d").glob("certificates/*.key")]
    assert len(secrets) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    for name in ("keys", "certificates", "nodes"):
        assert "*" in (tmp_path / "d" / name / ".gitignore").read_text().split()
    for script in (tmp_path / "d").glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
    assert "known gaps" in ok("deploy", "check", "--help")


def test_bad_input_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    assert "not an empty folder" in refused(2, "deploy", "init", tmp_path)
    assert "is not a deployment" in refused(2, "deploy", "check", tmp_path)
    assert "must be at least 1" in refused(2, "deploy", "init", tmp_path / "d", "--nodes", 0)
    said = refused(2, "deploy", "init", tmp_path / "d", "--host", "fl.example.org", "--plain-text-on-loopback")
    assert "plain text is for this machine alone, not for fl.example.org" in said


HOSTS = ["fl.example.org; touch x", "$(id)", "bücher.example", "a b", "", "-x", "::1%eth0", "[::1]", "10.0.0.1:80"]


@pytest.mark.parametrize("host", [*HOSTS, "1.2.3", f"{'a' * 64}.org", ".".join(["a" * 60] * 5), "a\nb"])
def test_a_host_that_is_none_is_refused_before_anything_is_written(host, tmp_path):
    with pytest.raises(DataError, match="host must be a name of letters, digits, hyphens and dots") as error:
        deploy.init(tmp_path / "d", hosts=["127.0.0.1", host])
    assert "\n" not in str(error.value)
    assert not (tmp_path / "d").exists()


def test_what_is_wrong_leaves_no_folder_and_is_said_in_one_line(tmp_path):
    for wrong in (["--host", "bücher.example"], ["--host", "x;y"], ["--days", 10**9], ["--port", 0]):
        said = refused(2, "deploy", "init", tmp_path / "d", *wrong)
        assert len(said.splitlines()) == 1
        assert not (tmp_path / "d").exists()


def test_a_host_may_be_longer_than_a_common_name(tmp_path):
    host = f"{'a' * 40}.{'b' * 40}.example.org"
    assert deploy.init(tmp_path / "d", nodes=1, hosts=[host])["address"] == f"{host}:8000"
    assert not [finding for finding in deploy.check(tmp_path / "d") if finding.level == "error"]


@pytest.mark.parametrize(("host", "bind"), [("::1", "::1"), ("2001:db8::7", "::")])
def test_an_address_of_version_6_is_in_brackets_where_a_port_follows(host, bind, tmp_path):
    assert deploy.init(tmp_path / "d", nodes=1, hosts=[host])["address"] == f"[{host}]:8000"
    assert not [finding for finding in deploy.check(tmp_path / "d") if finding.level == "error"]
    assert f"--host {bind} --port 8000" in (tmp_path / "d" / "superlink.sh").read_text()
    assert f'--superlink "[{host}]:8000"' in (tmp_path / "d" / "supernode.sh").read_text()
    assert f'address = "[{host}]:8000"' in (tmp_path / "d" / "flower" / "config.toml").read_text()


def test_plain_text_works_on_the_loopback_of_version_6(tmp_path):
    deploy.init(tmp_path / "d", nodes=1, hosts=["::1"], plain=True)
    assert not [finding for finding in deploy.check(tmp_path / "d") if finding.level == "error"]


def test_a_folder_of_any_name_gives_readable_settings(tmp_path):
    deploy.init(tmp_path / 'a "b" é', nodes=1)
    text = (tmp_path / 'a "b" é' / "flower" / "config.toml").read_text()
    found = tomllib.loads(text)["superlink"]["deployment"]["root-certificates"]
    assert found == "@HERE@/certificates/ca.crt"  # written anew by every script, so that the folder can move
    moved = (tmp_path / 'a "b" é').rename(tmp_path / 'c "d" é')
    subprocess.run(["bash", "-c", 'here="$PWD"; . ./environment.sh'], cwd=moved, check=True)
    written = tomllib.loads((moved / "flower" / "home" / "config.toml").read_text())
    assert written["superlink"]["deployment"]["root-certificates"] == str(moved / "certificates" / "ca.crt")


@pytest.mark.parametrize(
    "text",
    ["{", "", "[]", "{}", '{"address": 5, "plain_text": false}', '{"address": "$(id):1", "plain_text": false}', "\xff"],
)
def test_a_damaged_description_is_said_in_one_line(text, tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    (tmp_path / "d" / "deployment.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"deployment.json is damaged \(.*\): recreate the deployment") as error:
        deploy.check(tmp_path / "d")
    assert "\n" not in str(error.value)


def _expired(folder):
    for path in (folder / "certificates").glob("*.*"):
        path.unlink()
    with pytest.MonkeyPatch.context() as patch:
        real = deploy.datetime.datetime

        class Past(real):
            @classmethod
            def now(cls, tz=None):
                return real.now(tz) - deploy.datetime.timedelta(days=400)

        patch.setattr(deploy.datetime, "datetime", Past)
        keys.write_certificates(folder / "certificates", ["127.0.0.1"], 365)


def _replace(name, old, new):
    def change(folder):
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


GAPS = {
    "the folder can be read by others (mode 755)": lambda folder: folder.chmod(0o755),
    "superlink.db can be read by others (mode 640)": lambda folder: _touch(folder / "superlink.db", 0o640),
    "others could read what Flower writes, including its database": _replace(
        "environment.sh", "umask 077", "umask 022"
    ),
    "can be read by others (mode 644)": lambda folder: (folder / "keys" / "node-0").chmod(0o644),
    "could end up in a repository": lambda folder: (folder / "keys" / ".gitignore").unlink(),
    "telemetry or update checks are on": _replace("environment.sh", "TELEMETRY_ENABLED=0", "TELEMETRY_ENABLED=1"),
    "packages would be installed": _replace("superlink.sh", "--disable-runtime-dependency-installation", ""),
    "any node is served": _replace("superlink.sh", "--enable-supernode-auth", ""),
    "supernode.sh asks for plain text": _replace("supernode.sh", "--root-certificates", "--insecure"),
    "has expired": _expired,
    "is not signed by this CA": lambda folder: _other_ca(folder),
    "the certificate is not for": _replace("deployment.json", "127.0.0.1", "10.0.0.7"),
    "is not an EC key in OpenSSH form": lambda folder: (folder / "keys" / "node-1").write_text("no key"),
    "superlink.sh is missing": lambda folder: (folder / "superlink.sh").unlink(),
    "cannot be read": lambda folder: (folder / "certificates" / "server.pem").write_text("no certificate"),
}


def _commented(name, start):
    def change(folder):
        path = folder / name
        lines = path.read_text().splitlines()
        assert any(line.startswith(start) for line in lines)
        path.write_text("".join(f"# {line}\n" if line.startswith(start) else f"{line}\n" for line in lines))

    return change


COMMENTS = {
    "telemetry or update checks are on": _commented("environment.sh", "export FLWR_TELEMETRY_ENABLED"),
    "packages would be installed": _commented("environment.sh", "export FLWR_DISABLE_RUNTIME"),
    "superlink.sh starts no flower-superlink": _commented("superlink.sh", "exec "),
    "superlink.sh does not read environment.sh": _commented("superlink.sh", ". "),
    "any node is served": _replace(
        "superlink.sh", "--enable-supernode-auth \\\n", "\\\n  # --enable-supernode-auth \\\n"
    ),
    "superlink.sh asks for plain text": _replace(
        "superlink.sh", "exec flower-superlink", "# the certificates come first \\\nexec flower-superlink --insecure"
    ),
    "flower/config.toml asks for plain text": _replace("flower/config.toml", "root-cert", "insecure=true\nroot-cert"),
    "superlink.sh cannot be read": _replace("superlink.sh", 'cd "$here"', 'cd "$here'),
    "app/pyproject.toml cannot be read": _replace("app/pyproject.toml", "[project]", "[project"),
}


@pytest.mark.parametrize("gap", COMMENTS)
def test_check_looks_at_commands_and_not_at_comments(gap, tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    COMMENTS[gap](tmp_path / "d")
    errors = [finding.what for finding in deploy.check(tmp_path / "d") if finding.level == "error"]
    assert any(gap in what for what in errors), errors


def test_a_comment_that_names_a_risk_is_none(tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    for name in ("superlink.sh", "supernode.sh", "flower/config.toml"):
        path = tmp_path / "d" / name
        path.write_text(f"{path.read_text()}# never --insecure, nor\n# insecure = true\n")
    assert not [finding for finding in deploy.check(tmp_path / "d") if finding.level == "error"]


def test_a_superlink_that_listens_to_the_network_is_seen_whatever_its_address(tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    assert not any("listens to the network" in finding.what for finding in deploy.check(tmp_path / "d"))
    _replace("superlink.sh", "--host 127.0.0.1", "--host 0.0.0.0")(tmp_path / "d")
    assert any("listens to the network" in finding.what for finding in deploy.check(tmp_path / "d"))


PLAIN = {
    "the address in deployment.json is 192.0.2.1": _replace("deployment.json", "127.0.0.1", "192.0.2.1"),
    "the address in flower/config.toml is 192.0.2.1": _replace("flower/config.toml", "127.0.0.1", "192.0.2.1"),
    "--host in superlink.sh is 0.0.0.0": _replace("superlink.sh", "--host 127.0.0.1", "--host=0.0.0.0"),
    "--superlink in supernode.sh is fl.example.org": _replace(
        "supernode.sh", '--superlink "127.0.0.1', '--superlink "fl.example.org'
    ),
}


@pytest.mark.parametrize("gap", PLAIN)
def test_plain_text_that_leaves_this_machine_is_an_error(gap, tmp_path):
    deploy.init(tmp_path / "d", nodes=1, plain=True)
    assert not [finding for finding in deploy.check(tmp_path / "d") if finding.level == "error"]
    PLAIN[gap](tmp_path / "d")
    errors = [finding.what for finding in deploy.check(tmp_path / "d") if finding.level == "error"]
    assert any(gap in what for what in errors), errors


def _touch(path, mode):
    path.touch()
    path.chmod(mode)


@pytest.mark.parametrize("plain", [False, True])
def test_a_deployment_and_what_is_written_there_are_for_its_owner_alone(plain, tmp_path):
    (tmp_path / "there").mkdir(mode=0o755)
    for folder in (tmp_path / "new", tmp_path / "there"):
        deploy.init(folder, nodes=1, plain=plain)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        call = "umask 022; here=.; . ./environment.sh; : > superlink.db; stat -c %a superlink.db"
        done = subprocess.run(["bash", "-c", call], cwd=folder, check=True, capture_output=True, text=True)
        assert done.stdout == "600\n"
        assert not [finding for finding in deploy.check(folder) if finding.level == "error"]
        folder.chmod(0o750)
        errors = [finding.what for finding in deploy.check(folder) if finding.level == "error"]
        assert errors == ["the folder can be read by others (mode 750)"]


def _other_ca(folder):
    deploy.init(folder / "other")
    (folder / "certificates" / "ca.crt").write_bytes((folder / "other" / "certificates" / "ca.crt").read_bytes())


@pytest.mark.parametrize("gap", GAPS)
def test_check_finds_what_was_made_unsafe(gap, tmp_path):
    deploy.init(tmp_path / "d", nodes=2)
    assert not [f for f in deploy.check(tmp_path / "d") if f.level == "error"]
    GAPS[gap](tmp_path / "d")
    errors = [finding.what for finding in deploy.check(tmp_path / "d") if finding.level == "error"]
    assert any(gap in what for what in errors), errors


def test_check_exits_with_an_error_and_warns_before_expiry(tmp_path):
    deploy.init(tmp_path / "d", days=9)
    levels = {f.what: f.level for f in deploy.check(tmp_path / "d")}
    assert levels["certificates/server.pem expires in 8 days"] == "warning"
    (tmp_path / "d" / "superlink.sh").unlink()
    done = fedscape("deploy", "check", tmp_path / "d")
    assert done.returncode == 1
    assert "superlink.sh is missing" in done.stdout


def test_plain_text_is_only_for_loopback_and_said_so(tmp_path):
    deploy.init(tmp_path / "d", plain=True)
    assert "--insecure" in (tmp_path / "d" / "superlink.sh").read_text()
    assert any("plain text" in finding.what for finding in deploy.check(tmp_path / "d"))
    with pytest.raises(DataError, match="plain text is for this machine alone"):
        deploy.init(tmp_path / "e", plain=True, hosts=["192.0.2.1"])


# -- what the owner of a node does -------------------------------------------------------------------------------------


def test_every_node_has_terms_of_its_own_which_its_script_demands(tmp_path):
    deploy.init(tmp_path / "d", nodes=2)
    deploy.init(tmp_path / "s", nodes=1, strict=True)
    for path in (tmp_path / "d").glob("nodes/*/terms.toml"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        about = tomllib.loads(path.read_text())
        assert (about["epsilon"], about["total_epsilon"], about["unnoised"]) == (8.0, 8.0, 0)
        assert about["places"] == ["central", "distributed", "local"]
    assert len(list((tmp_path / "d").glob("nodes/*/terms.toml"))) == 2
    strict = tomllib.loads((tmp_path / "s" / "nodes" / "0" / "terms.toml").read_text())
    assert (strict["places"], strict["units"], strict["unnoised"]) == (["local"], ["client"], 0)
    assert r"terms=\"required\"" in (tmp_path / "d" / "supernode.sh").read_text()
    assert "terms=" not in (tmp_path / "d" / "app" / "deployed" / "client.py").read_text().split("app = ")[1]


def test_terms_are_shown_and_written_term_by_term(tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    node = tmp_path / "d" / "nodes" / "0"
    shown = json.loads(ok("deploy", "terms", node, "--json"))
    assert (shown["in_force"], shown["terms"]["epsilon"], shown["spent"]) == ("terms.toml", 8.0, [])
    options = ["--epsilon", 2, "--unit", "client", "--column", "y", "--column", "z", "--computation", "histogram"]
    written = json.loads(ok("deploy", "terms", node, *options, "--clear", "total-epsilon", "--json"))["terms"]
    assert (written["epsilon"], written["total_epsilon"], written["unnoised"]) == (2.0, None, 0)
    assert (written["units"], written["columns"], written["computations"]) == (["client"], ["y", "z"], ["histogram"])
    assert stat.S_IMODE((node / "terms.toml").stat().st_mode) == 0o600
    said = started("deploy", "terms", node)
    assert "no limit" in said
    assert "y, z" in said
    assert "0 of 64 failed runs" in said
    assert json.loads(ok("deploy", "terms", tmp_path / "d" / "nodes" / "1", "--epsilon", 1, "--json"))["terms"]


def test_wrong_terms_are_refused_in_one_line_and_change_nothing(tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    node = tmp_path / "d" / "nodes" / "0"
    before = (node / "terms.toml").read_text()
    assert "epsilon must be a positive number, not -1.0" in refused(2, "deploy", "terms", node, "--epsilon", -1)
    assert "epsilon must be a positive number, not inf" in refused(2, "deploy", "terms", node, "--epsilon", "inf")
    assert "units must be among" in refused(2, "deploy", "terms", node, "--unit", "house")
    assert "there is no term 'epsilom'" in refused(2, "deploy", "terms", node, "--clear", "epsilom")
    assert "is a deployment; terms and logs are its nodes'" in refused(2, "deploy", "terms", tmp_path / "d")
    assert "there is no folder" in refused(2, "deploy", "log", tmp_path / "none")
    assert "last must be at least 1" in refused(2, "deploy", "log", node, "--last", 0)
    assert (node / "terms.toml").read_text() == before
    (node / "terms.toml").write_text("epsilom = 1")
    assert "there is no term 'epsilom'" in refused(2, "deploy", "terms", node)
    errors = [finding.what for finding in deploy.check(tmp_path / "d") if finding.level == "error"]
    assert len(errors) == 1
    assert "terms.toml: there is no term 'epsilom'" in errors[0]


def test_the_owner_reads_what_was_asked_and_what_is_spent(tmp_path):
    fed = Federation({"y": [0, 1, 2], "salary": [7, 8, 9]}, [0, 3], ids=["a"])
    deploy.init(tmp_path / "d", nodes=1)
    node = tmp_path / "d" / "nodes" / "0"
    ok("deploy", "terms", node, "--column", "y")
    grid = LocalGrid(client_app(lambda context: fed, folder=node), [{}])
    engine = Flower(grid, min_clients=1, poll=0.001)
    privacy = Laplace(clip=5.0, epsilon=0.5, place="local")
    Histogram(3).fit(engine, privacy=privacy)
    with pytest.raises(EngineError, match="on the column 'salary', which the owner does not allow"):
        Histogram(10, column="salary").fit(engine, privacy=privacy)
    lines = json.loads(ok("deploy", "log", node, "--json"))
    assert [(line["outcome"], line["columns"]) for line in lines] == [("answered", ["y"]), ("refused", ["salary"])]
    assert json.loads(ok("deploy", "log", node, "--last", 1, "--json")) == lines[-1:]
    said = started("deploy", "log", node)
    assert "answered" in said
    assert "salary" in said
    spent = json.loads(ok("deploy", "terms", node, "--json"))["spent"]
    (group,) = spent
    assert (group["unit"], group["relation"], group["place"]) == ("client", "replace-one", "local")
    assert group["epsilon"] == pytest.approx(1.0, rel=1e-4)
    assert stat.S_IMODE((node / "log.jsonl").stat().st_mode) == 0o600


# -- secure sums, and nodes that come and go ---------------------------------------------------------------------------


def test_a_secure_deployment_gives_every_node_a_key_and_the_roster_of_all(tmp_path):
    folder = tmp_path / "d"
    assert json.loads(started("deploy", "init", folder, "--secure", "--json"))["secure"] is True
    rosters = {(folder / "nodes" / str(i) / "roster.txt").read_text() for i in range(3)}
    assert len(rosters) == 1
    assert len(rosters.pop().splitlines()) == 3
    secrets = [folder / "nodes" / str(i) / "signing.key" for i in range(3)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert len({path.read_text() for path in secrets}) == 3
    assert "secure = true" in (folder / "app/pyproject.toml").read_text()
    found = deploy.check(folder)
    assert not [f for f in found if f.level == "error" or "not masked" in f.what]
    (folder / "nodes/1/roster.txt").write_text("")
    assert "nodes have different roster.txt, or none" in {f.what for f in deploy.check(folder) if f.level == "error"}
    assert "at least 3 nodes, not 2" in refused(2, "deploy", "init", tmp_path / "e", "--secure", "--nodes", 2)


def test_nodes_are_added_revoked_and_renewed(tmp_path):
    folder = tmp_path / "d"
    deploy.init(folder, nodes=3, secure=True)
    (folder / "keys/node-1.id").write_text("77")  # as register.sh leaves it
    assert not [finding for finding in deploy.check(folder) if finding.level == "error"]
    added = json.loads(started("deploy", "add", folder, "--json"))
    assert added["node"] == 3
    assert {"keys/node-3", "nodes/3", "nodes/0/roster.txt"} <= set(added["copy"])
    before = (folder / "roster.txt").read_text().splitlines()
    assert [line.split()[1] for line in before] == ["0", "1", "2", "3"]
    assert json.loads(started("deploy", "revoke", folder, 1, "--json"))["revoked"] == 1
    assert not list((folder / "keys").glob("node-1")) + list((folder / "keys").glob("node-1.pub"))
    assert (folder / "keys/node-1.old-id").read_text() == "77"  # the SuperLink is told when register.sh runs
    for path in (folder / "roster.txt", folder / "nodes/2/roster.txt"):
        assert [line.split()[1] for line in path.read_text().splitlines()] == ["0", "2", "3"]
    keys.add(folder)  # which must not bring back who was revoked
    keys.revoke(folder, 4)
    assert "1" not in {line.split()[1] for line in (folder / "nodes/0/roster.txt").read_text().splitlines()}
    assert not [finding for finding in deploy.check(folder) if finding.level == "error"]
    old, terms = (folder / "keys/node-2.pub").read_text(), (folder / "nodes/2/terms.toml").read_text()
    assert json.loads(started("deploy", "renew", folder, 2, "--json"))["node"] == 2
    assert (folder / "keys/node-2.pub").read_text() != old
    assert (folder / "nodes/2/terms.toml").read_text() == terms
    after = {line.split()[1]: line.split()[0] for line in (folder / "nodes/0/roster.txt").read_text().splitlines()}
    assert after["2"] != before[2].split()[0]
    assert after["0"] == before[0].split()[0]
    assert "no keys/node-9.pub" in refused(2, "deploy", "renew", folder, 9)
    assert "is not a deployment" in refused(2, "deploy", "add", tmp_path)


def test_a_node_is_checked_with_its_data_before_a_run_arrives(tmp_path):
    folder = tmp_path / "d"
    deploy.init(folder, nodes=3, secure=True)
    Federation({"y": [0, 1, 1]}, [0, 1, 3]).save(tmp_path / "data")
    about = json.loads(ok("deploy", "check", folder / "nodes/0", "--data", tmp_path / "data", "--client", "", "--json"))
    assert (about["clients"], about["rows"], about["peers"]) == (2, 3, 3)
    said = refused(2, "deploy", "check", folder / "nodes/0", "--data", tmp_path / "none")
    assert str(tmp_path / "none") in said
    ok("deploy", "terms", folder / "nodes/0", "--column", "z")
    said = refused(2, "deploy", "check", folder / "nodes/0", "--data", tmp_path / "data")
    assert "the terms allow the column 'z', which" in said
    (folder / "nodes/1/roster.txt").write_text("\n".join(["00" * 32] * 3))
    said = refused(2, "deploy", "check", folder / "nodes/1", "--data", tmp_path / "data")
    assert "does not name this node's own key" in said
    (folder / "nodes/2/terms.toml").unlink()
    said = refused(2, "deploy", "check", folder / "nodes/2", "--data", tmp_path / "data")
    assert "has no terms.toml" in said


def test_the_script_of_a_node_tells_its_arguments(tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    for arguments in ([], ["0"], ["zero", "data"], ["0", "data", "client", "more"]):
        done = subprocess.run(["./supernode.sh", *arguments], cwd=tmp_path / "d", capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("supernode.sh NUMBER DATA [CLIENT_COLUMN]")


def test_the_script_of_a_node_checks_its_data_before_it_waits_for_runs(tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    call = ["./supernode.sh", "0", str(tmp_path / "none.csv")]
    done = subprocess.run(call, cwd=tmp_path / "d", capture_output=True, text=True, env=path)
    assert done.returncode == 2
    assert "none.csv" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_script_of_a_run_tells_its_arguments_and_passes_the_port_on(tmp_path):
    deploy.init(tmp_path / "d", nodes=1)
    done = subprocess.run(["./run.sh"], cwd=tmp_path / "d", capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("run.sh OUT [--metrics-port PORT] [SETTINGS]")
    fake = tmp_path / "bin" / "flwr"  # only says what it was called with
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@" >> "$CALLS"\necho \'{"runs": [{"status": "finished:completed"}]}\'\n')
    fake.chmod(0o755)
    calls = {**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    arguments = [str(tmp_path / "out"), "--metrics-port", "9464", "rounds=5 clients=7"]
    subprocess.run(["./run.sh", *arguments], cwd=tmp_path / "d", check=True, capture_output=True, env=calls)
    first = (tmp_path / "calls").read_text().splitlines()[0]
    assert f'--run-config out="{tmp_path / "out"}" metrics-port=9464 rounds=5 clients=7 --format json' in first


def test_the_doctor_checks_a_node(tmp_path):
    deploy.init(tmp_path / "d", nodes=3, secure=True)
    Federation({"y": [0, 1, 1]}, [0, 1, 3]).save(tmp_path / "data")
    node = tmp_path / "d/nodes/0"
    assert json.loads(ok("doctor", "--node", node, "--data", tmp_path / "data", "--json"))["node"]["clients"] == 2
    (node / "roster.txt").unlink()
    said = json.loads(ok("doctor", "--node", node, "--json"))["node"]
    assert said.startswith("cannot answer: ")
    assert "no roster.txt" in said


def test_units_and_containers_are_written_for_the_port_of_the_deployment(tmp_path):
    deploy.init(tmp_path / "d", nodes=1, port=8123)
    assert '"8123:8123"' in (tmp_path / "d/docker/compose.yaml").read_text()
    for name in ("docker/Dockerfile", "systemd/fedscape-superlink.service", "systemd/fedscape-node@.service"):
        assert (tmp_path / "d" / name).read_text()


def test_the_second_server_prints_its_key_and_serves(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serving("deploy", "helper", tmp_path / "second", "--port", port) as process:
        public = process.stdout.readline().strip()  # printed once the port is bound
        assert len(bytes.fromhex(public)) == 32
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
            assert answer.read() == b"ok\n"
    said = refused(2, "deploy", "helper", tmp_path / "second", "--port", port, "--host", "0.0.0.0")
    assert "plain text is for this machine alone" in said


def test_a_deployment_with_a_second_server_knows_its_key_and_its_certificate(tmp_path):
    second, folder = tmp_path / "second", tmp_path / "d"
    about = json.loads(started("deploy", "helper", second, "--new", "helper.example.org", "--port", 9443, "--json"))
    assert about["url"] == "https://helper.example.org:9443"
    assert {stat.S_IMODE((second / name).stat().st_mode) for name in ("signing.key", "server.key")} == {0o600}
    assert not (second / "ca.key").exists()
    assert "exists: its key is known to nodes" in refused(2, "deploy", "helper", second, "--new", "x.example.org")
    made = json.loads(started("deploy", "init", folder, "--helper", second / "helper.json", "--json"))
    assert made["secure"] is True
    assert made["helper"] == {"url": about["url"], "public": about["public"]}
    assert {(folder / f"nodes/{i}/helper.pub").read_text().strip() for i in range(3)} == {about["public"]}
    assert (folder / "certificates/helper.crt").read_text() == (second / "ca.crt").read_text()
    settings = tomllib.loads((folder / "app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (settings["helper"], settings["helper-key"], settings["secure"]) == (about["url"], about["public"], True)
    compile((folder / "app/deployed/server.py").read_text(), "server.py", "exec")
    assert not [finding for finding in deploy.check(folder) if finding.level == "error"]
    added = keys.add(folder)
    assert (folder / "nodes/3/helper.pub").read_text().strip() == about["public"]
    assert "roster.txt (to the helper, and restart it)" in added["copy"]
    assert "roster.txt (to the helper, and restart it)" in keys.revoke(folder, 3)["copy"]
    (folder / "nodes/1/helper.pub").write_text("00" * 32)
    errors = [finding.what for finding in deploy.check(folder) if finding.level == "error"]
    assert errors == ["nodes/1/helper.pub is not the key of the second server"]
    (second / "helper.json").write_text("{}")
    assert "is not a helper.json" in refused(2, "deploy", "init", tmp_path / "e", "--helper", second / "helper.json")
    assert not (tmp_path / "e").exists()
