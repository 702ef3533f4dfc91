"""The files of a deployment, as `fedscape deploy init` writes them."""

from __future__ import annotations

ENVIRONMENT = """\
# Read by every script here. Nothing calls home, and nothing is installed while a run starts.
umask 077 # only the owner can read what Flower writes here, its database included
export FLWR_HOME="$here/flower/home"
if [ -f "$here/flower/locate.py" ]; then python3 "$here/flower/locate.py"; fi
export FLWR_TELEMETRY_ENABLED=0
export FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
"""

_HEAD = """\
#!/usr/bin/env bash
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
. "$here/environment.sh"
"""

SUPERLINK = (
    _HEAD
    + """\
cd "$here"
exec flower-superlink --host @BIND@ --port @PORT@ @SECURITY@ \\
  --disable-runtime-dependency-installation --database "$here/superlink.db"
"""
)

SUPERLINK_TLS = """--ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.pem \\
  --ssl-keyfile certificates/server.key --enable-supernode-auth"""

REGISTER = (
    _HEAD
    + """\
# Register the nodes' keys with the SuperLink before they start. Run it again after fedscape deploy add, revoke, renew.
cd "$here"
shopt -s nullglob
for gone in keys/*.old-id; do
  flwr supernode unregister "$(cat "$gone")" deployment && rm "$gone"
done
field() { python3 -c 'import json, sys; d = json.load(sys.stdin); print(d.get("node-id", d.get("error-message")))'; }
for key in keys/*.pub; do
  id="${key%.pub}.id"
  if [ -s "$id" ]; then echo "$key is registered"; continue; fi
  said="$(flwr supernode register "$key" deployment --format json | field)"
  if [[ "$said" =~ ^[0-9]+$ ]]; then
    echo "$said" > "$id"
    echo "$key is registered now"
  elif [[ "$said" == *"already in use"* ]]; then
    echo "$key was registered before, from elsewhere"
  else
    echo "$said" >&2
    exit 1
  fi
done
"""
)

SUPERNODE = (
    _HEAD
    + """\
if [ $# -lt 2 ] || [ $# -gt 3 ] || ! [[ "$1" =~ ^[0-9]+$ ]]; then
  echo "supernode.sh NUMBER DATA [CLIENT_COLUMN]: start node NUMBER with the clients in DATA, a file or folder that" >&2
  echo "'fedscape describe DATA' can read; CLIENT_COLUMN names clients where DATA is a table." >&2
  exit 2
fi
number="$1"
# Report missing or unsafe settings and unreadable data before a run arrives.
fedscape deploy check "$here/nodes/$number" --data "$2" --client "${3:-}"
# The owner's terms must be in nodes/NUMBER/terms.toml: without them this node refuses every request.
config="folder=\\"$here/nodes/$number\\" data=\\"$2\\" client=\\"${3:-}\\" terms=\\"required\\""
# After a crash Flower accepts the same key again only after a minute: retry until then.
until flower-supernode --superlink "@ADDRESS@" @SECURITY@ --host 127.0.0.1 --port "$((9100 + number))" \\
  --node-config "$config"; do
  sleep 5
done
"""
)

SUPERNODE_TLS = """--root-certificates "$here/certificates/ca.crt" \\
  --auth-supernode-private-key "$here/keys/node-$number\""""

RUN = (
    _HEAD
    + """\
if [ $# -lt 1 ]; then
  echo "run.sh OUT [--metrics-port PORT] [SETTINGS]: start a run and wait for its end; exit 0 only if it completed." >&2
  echo "With the OUT of a run that was stopped, resume it. SETTINGS such as 'rounds=5' are in app/pyproject.toml." >&2
  exit 2
fi
mkdir -p "$1"
out="$(cd "$1" && pwd)"
settings="out=\\"$out\\""
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --metrics-port) settings="$settings metrics-port=${2:?a port}"; shift 2 ;;
    *) settings="$settings $1"; shift ;;
  esac
done
field() { python3 -c 'import json, sys; d = json.load(sys.stdin); print(d.get("run-id") or d["runs"][0]["status"])'; }
number="$(flwr run "$here/app" deployment --run-config "$settings" --format json | field)"
while true; do
  sleep 2
  status="$(flwr list deployment --run-id "$number" --format json | field)"
  case "$status" in
    finished:completed) echo "run $number: $status"; exit 0 ;;
    finished:*) flwr log "$number" deployment --show || true; echo "run $number: $status" >&2; exit 1 ;;
  esac
done
"""
)

LOCATE = '''\
"""Write flower/home/config.toml for the current location of this folder: Flower needs an absolute path to the CA."""

import json
from pathlib import Path

here = Path(__file__).resolve().parent
authority = json.dumps(str(here.parent / "certificates" / "ca.crt"))
(here / "home").mkdir(mode=0o700, exist_ok=True)
text = (here / "config.toml").read_text().replace('"@HERE@/certificates/ca.crt"', authority)
(here / "home" / "config.toml").write_text(text)
'''

CONFIG = """\
[superlink]
default = "deployment"

[superlink.deployment]
address = "@ADDRESS@"
@SECURITY@
"""

PYPROJECT = """\
[project]
name = "fedscape-deployment"
version = "1.0.0"
description = "A population of clients, learned privately"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedscape"

[tool.flwr.app.components]
serverapp = "deployed.server:app"
clientapp = "deployed.client:app"

[tool.flwr.app.config]
out = "results"
nodes = @NODES@
min-clients = 10
timeout = 120.0
column = "y"
categories = 10
components = 2
rounds = 3
epsilon = 4.0
delta = 1e-6
clients = 1000
secure = @MASKED@
dropouts = 0.1
colluders = 0.05
helper = "@HELPER@"
helper-key = "@HELPER_KEY@"
least = 3
metrics-port = 0
"""

SERVER = '''\
"""The server: learns privately which kinds of clients there are, then draws clients like them."""

import json
import os
from pathlib import Path

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedscape as fs
from fedscape.engines.flower.monitor import watch
from fedscape.secure.remote_helper import RemoteAggregator

app = ServerApp()


def masks(how):
    """How nodes mask their sums: not at all, among themselves, or with a second server."""
    if not how["secure"]:
        return None
    if not how["helper"]:
        return fs.SecureSum(dropouts=how["dropouts"], colluders=how["colluders"])
    helper = RemoteAggregator(how["helper"], how["helper-key"], certificate="certificates/helper.crt")
    return fs.TwoServers(helper=helper, least=how["least"])


@app.main()
def main(grid: Grid, context: Context) -> None:
    os.umask(0o077)  # only the owner may read the results of a private run
    how = context.run_config
    out = Path(str(how["out"]))
    out.mkdir(parents=True, exist_ok=True)
    watch(metrics_port=how.get("metrics-port", 0))  # JSON lines; /metrics and /health if there is a port
    engine = fs.Flower(
        grid, nodes=how["nodes"], min_clients=how["min-clients"], timeout=how["timeout"], secure=masks(how)
    )
    population = fs.MixtureOfDirichletMultinomials(
        how["components"], n_init=1, rounds=how["rounds"], column=how["column"], n_categories=how["categories"]
    )
    epsilon, delta = how["epsilon"], how["delta"]
    noise = fs.calibrate(epsilon, delta, rounds=population.n_releases(), sampler=fs.All())
    population.fit(
        engine,
        privacy=fs.Gaussian(clip=1.5, multiplier=noise),
        ledger=fs.Ledger(out / "ledger.jsonl", epsilon=epsilon, delta=delta),
        checkpoint=out / "fit",
        progress=False,
    )
    population.save(out / "population.json")
    counts = population.sample(how["clients"], seed=1)
    drawn = fs.Federation({"y": counts}, np.arange(len(counts) + 1))
    fs.datasets.write(drawn, out / "clients.parquet", overwrite=True)
    spent = {" / ".join(group): value for group, value in population.ledger_.spent().items()}
    about = {"spent": spent, "rounds": list(population.history_), "troubles": engine.troubles}
    (out / "result.json").write_text(json.dumps(about, indent=2))
'''

CLIENT = '''\
"""A node and its data."""

from flwr.app import Context

from fedscape import Federation, datasets
from fedscape.engines.flower import client_app


def load(context: Context) -> Federation:
    config = context.node_config
    return datasets.read(str(config["data"]), client=str(config["client"]) or None)


# The owner sets the terms: nodes/NUMBER/terms.toml on the node; `fedscape deploy terms` shows and writes them. An app
# can only be stricter: client_app(load, terms=Terms(...)).
app = client_app(load)
'''

README = """\
# A deployment of fedscape over Flower

`fedscape deploy check .` reports what is missing or unsafe. Every host needs `pip install 'fedscape[flower]'`.

| where | what | needs |
| --- | --- | --- |
| server | `./superlink.sh` | everything here but `keys/node-*` and `nodes/` |
| server | `./register.sh` | `keys/*.pub`; run it again after `fedscape deploy add`, `revoke` or `renew` |
| node N | `./supernode.sh N DATA` | `environment.sh`, `supernode.sh`, `certificates/ca.crt`, `keys/node-N`, `nodes/N` |
| server | `./run.sh OUT` | `app/`, `flower/` |
| second server, if any | `fedscape deploy helper FOLDER --roster roster.txt` | `roster.txt` |

Another organisation must run the second server: whoever runs both servers sees each node's sum.

The owner of a node decides: `fedscape deploy terms nodes/N` shows the terms under which it answers and what is spent.
Options such as `--total-epsilon 4 --column y` change them. `fedscape deploy log nodes/N` shows the requests.

Results are in OUT: `population.json`, `clients.parquet`, `result.json`, `ledger.jsonl`. Start a stopped run with the
same OUT to resume it.

Anyone who reaches the SuperLink's port can register keys and start runs, and so run code on every node: Flower's node
authentication does not cover that. Let only the nodes and the operator through the firewall. `certificates/ca.key` is
needed only to make new certificates: take it off this machine.
"""

GITIGNORE = "# secrets: nothing in this folder belongs into a repository\n*\n"

DOCKERFILE = """\
# One image for the link, the nodes and the operator: docker build -t fedscape-deployment docker
# A wheel of fedscape in docker/ is installed instead of the published one. Build with UID and GID of the user who owns
# the deployment's folder: it has mode 700.
FROM python:3.11-slim
ARG UID=1000
ARG GID=1000
COPY . /wheels/
RUN pip install --no-cache-dir --find-links /wheels 'fedscape[flower]' \\
 && groupadd --gid $GID fedscape && useradd --create-home --uid $UID --gid $GID fedscape
USER fedscape
WORKDIR /deployment
"""

COMPOSE = """\
# The parts of a deployment as containers: docker compose -f docker/compose.yaml up link
# A host runs only its own part, with only the files of its row in README.md.
services:
  link:
    image: fedscape-deployment
    command: ["./superlink.sh"]
    volumes: ["..:/deployment"]
    ports: ["@PORT@:@PORT@"]
    restart: unless-stopped
  app:
    image: fedscape-deployment
    command: ["./run.sh", "/deployment/out"]
    volumes: ["..:/deployment"]
    network_mode: "service:link"
    profiles: ["run"]
  node:
    image: fedscape-deployment
    command: ["./supernode.sh", "${NODE:?which node}", "/data", "${CLIENT_COLUMN:-}"]
    volumes: ["..:/deployment", "${DATA:?path of its data}:/data:ro"]
    restart: unless-stopped
    profiles: ["node"]
"""

LINK_UNIT = """\
# The deployment is in /opt/fedscape, with fedscape installed in /opt/fedscape/venv. As root:
# cp systemd/fedscape-superlink.service /etc/systemd/system/ && systemctl enable --now fedscape-superlink
[Unit]
Description=fedscape SuperLink
After=network-online.target
Wants=network-online.target

[Service]
User=fedscape
Environment=PATH=/opt/fedscape/venv/bin:/usr/local/bin:/usr/bin:/bin
ExecStart=/opt/fedscape/superlink.sh
Restart=on-failure
RestartSec=5
NoNewPrivileges=true
ProtectSystem=strict
ReadWritePaths=/opt/fedscape

[Install]
WantedBy=multi-user.target
"""

NODE_UNIT = """\
# systemctl enable --now fedscape-node@2 starts node 2; its data are named in /etc/fedscape/node-2: DATA=/path and, for
# a table, CLIENT_COLUMN=name. The node's files are in /opt/fedscape, with fedscape installed in /opt/fedscape/venv.
[Unit]
Description=fedscape node %i
After=network-online.target
Wants=network-online.target

[Service]
User=fedscape
Environment=PATH=/opt/fedscape/venv/bin:/usr/local/bin:/usr/bin:/bin
EnvironmentFile=/etc/fedscape/node-%i
ExecStart=/opt/fedscape/supernode.sh %i ${DATA} ${CLIENT_COLUMN}
Restart=on-failure
RestartSec=5
NoNewPrivileges=true
ProtectSystem=strict
ReadWritePaths=/opt/fedscape

[Install]
WantedBy=multi-user.target
"""

#: Files for hosts that run containers or services.
HOSTS = {
    "docker/Dockerfile": DOCKERFILE,
    "docker/compose.yaml": COMPOSE,
    "systemd/fedscape-superlink.service": LINK_UNIT,
    "systemd/fedscape-node@.service": NODE_UNIT,
}
