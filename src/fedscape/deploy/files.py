"""The files of a deployment, as `fedscape deploy init` writes them."""

from __future__ import annotations

ENVIRONMENT = """\
# Read by every script here. Nothing calls home, and nothing is installed while a run starts.
umask 077 # what Flower writes here, its database among it, is for its owner alone
export FLWR_HOME="$here/flower"
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
# Tell the SuperLink which nodes it may serve: once, before they start.
for key in "$here"/keys/*.pub; do flwr supernode register "$key" deployment; done
"""
)

SUPERNODE = (
    _HEAD
    + """\
# supernode.sh NUMBER DATA [CLIENT COLUMN]
number="$1"
# The owner's terms must be in nodes/NUMBER/terms.toml: without them this node refuses every request.
config="folder=\\"$here/nodes/$number\\" data=\\"$2\\" client=\\"${3:-}\\" terms=\\"required\\""
# After a crash Flower takes the same key back only when a minute has passed: try again until then.
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
# run.sh OUT [SETTINGS]: start a run and wait for its end; exit 0 only if it was completed. With the OUT of an earlier
# run that was stopped it goes on there.
mkdir -p "$1"
out="$(cd "$1" && pwd)"
field() { python3 -c 'import json, sys; d = json.load(sys.stdin); print(d.get("run-id") or d["runs"][0]["status"])'; }
number="$(flwr run "$here/app" deployment --run-config "out=\\"$out\\" ${2:-}" --format json | field)"
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

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    os.umask(0o077)  # what a private run leaves is for its owner alone
    how = context.run_config
    out = Path(str(how["out"]))
    out.mkdir(parents=True, exist_ok=True)
    engine = fs.Flower(grid, nodes=how["nodes"], min_clients=how["min-clients"], timeout=how["timeout"])
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
"""A node: whose data it holds."""

from flwr.app import Context

from fedscape import Federation, datasets
from fedscape.engines.flower import client_app


def load(context: Context) -> Federation:
    config = context.node_config
    return datasets.read(str(config["data"]), client=str(config["client"]) or None)


# Terms are the owner's: nodes/NUMBER/terms.toml on the node, which `fedscape deploy terms` shows and writes. An app
# can only be stricter: client_app(load, terms=Terms(...)).
app = client_app(load)
'''

README = """\
# A deployment of fedscape over Flower

`fedscape deploy check .` says what is missing or unsafe. Every host needs `pip install 'fedscape[flower]'`.

| where | what | needs |
| --- | --- | --- |
| server | `./superlink.sh` | everything here but `keys/node-*` and `nodes/` |
| server, once | `./register.sh` | `keys/*.pub` |
| node N | `./supernode.sh N DATA` | `environment.sh`, `supernode.sh`, `certificates/ca.crt`, `keys/node-N`, `nodes/N` |
| server | `./run.sh OUT` | `app/`, `flower/` |

On a node its owner decides: `fedscape deploy terms nodes/N` shows on which terms it answers and what is spent, and with
options such as `--total-epsilon 4 --column y` writes them; `fedscape deploy log nodes/N` shows what was asked.

Results are in OUT: `population.json`, `clients.parquet`, `result.json`, `ledger.jsonl`. A run that was stopped goes on
when it is started with the same OUT.

Who reaches the SuperLink's port can register keys and start runs, which is to run code on every node: Flower's node
authentication does not cover that. Let only the nodes and the operator through the firewall. `certificates/ca.key` is
needed only to make new certificates: take it off this machine.
"""

GITIGNORE = "# secrets: nothing in this folder belongs into a repository\n*\n"
