"""A real node that answers badly: run by hand, `pytest tests/e2e/flower_bad_replies.py`; two to five minutes.

One SuperLink, three SuperNodes, one run. Every round the app of one node spoils its answer in another way. Clients keep
a growing list and send its sum, so that an answer counted wrongly, twice or not at all shows in the result, and so does
a step that the node did not take back; the result is compared with a run in one process.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from flower_faults import Fragile, expected, result

# What the node does in each round, which faults the server counts then, and what it says of the node.
ROUNDS = (
    ("honest", {}, ""),
    ("NaN", {"corrupt": 1}, "its answer is not made of finite numbers"),
    ("wrong shape", {"corrupt": 1}, "its answer has other arrays than the other nodes'"),
    ("oversized", {"corrupt": 1}, "its answer is larger than allowed"),
    ("random bytes", {"corrupt": 1}, "its answer is torn, damaged or foreign"),
    # A SuperLink stores one reply to a message and refuses the second, which therefore cannot come as far as the engine
    # and be counted there as `duplicate`: tests/unit/engines/test_flower.py has that, over a grid that lets it through.
    ("two replies", {}, ""),
    ("last round's reply", {"corrupt": 1}, "its answer is to another request"),  # one that was counted
    ("lost", {"missing": 1}, "missing"),
    ("lost once", {}, ""),
    # What a real node can do is to answer twice because it was asked twice: the second answer comes a round late.
    ("slow once", {}, ""),
    ("honest", {"late": 1}, ""),
)

SPOIL = """
import os
import time
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from deployed.honest import app as honest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from flwr.supernode.runtime.run_clientapp import push_message

from fedscape import checkpoint
from fedscape.core import codec
from fedscape.engines import _wire

PLAN = @PLAN@
app = ClientApp()


@app.query("fedscape")
def answer(message: Message, context: Context) -> Message:
    reply, folder = honest(message=message, context=context), Path(context.node_config["folder"])
    if folder.name != "1" or header(message).get("op") != "run":
        return reply
    index = int(message.metadata.group_id)
    blob = wire.disclose(reply.content, 2**30)
    (folder / f"{index}.reply").write_bytes(blob)
    first = not (folder / f"{index}.asked").exists()
    (folder / f"{index}.asked").touch()
    what = PLAN[index]
    if what == "NaN":
        blob = changed(blob, lambda v: v * np.nan)
    elif what == "wrong shape":
        blob = changed(blob, lambda v: np.full(3, v))
    elif what == "oversized":
        blob = changed(blob, lambda v: np.full(10**6, v))
    elif what == "random bytes":
        blob = os.urandom(500)
    elif what == "last round's reply":
        blob = (folder / f"{index - 1}.reply").read_bytes()
    elif what == "two replies":
        send_past_the_supernode(reply, context, folder.parent.parent)
        blob = changed(blob, lambda v: 2 * v)
    elif what == "slow once" and first:
        time.sleep(22)
    elif what == "lost" or (what == "lost once" and first):  # dead when it arrives: the SuperLink throws it away
        return Message(reply.content, reply_to=message, ttl=0.001)
    return Message(wire.enclose(blob), reply_to=message)


def header(message):
    return wire.read(wire.disclose(message.content, 2**30))[1]


def changed(blob, change):
    arrays, about = wire.read(blob)
    return codec.pack({**arrays, "total/sum": change(arrays["total/sum"])}, about)


def send_past_the_supernode(reply, context, home):
    \"\"\"As whoever holds the node's key can: a ClientApp returns one reply, and its SuperNode sends that.\"\"\"
    key = load_ssh_private_key((home / "keys" / "node-1").read_bytes(), None)
    signed = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, key.public_key())]
    trusted = (home / "certificates" / "ca.crt").read_bytes()
    with FleetHttpClient.from_server_address("127.0.0.1:@PORT@", False, trusted, interceptors=signed) as link:

        class Fleet:
            PushObject = link.PushObject

            def PushMessages(self, request):
                parts = {"messages_list": request.messages_list, "message_object_trees": request.message_object_trees}
                return link.PushMessages(PushMessagesRequest(node=Node(node_id=context.node_id), **parts))

        push_message(Fleet(), reply, context)
"""

SERVER = """
import json
from pathlib import Path

import fedscape as fs
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from deployed.work import Remember

PLAN = @PLAN@
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    out = Path(str(context.run_config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    engine = fs.Flower(grid, nodes=3, timeout=20.0, attempts=1, largest=10**5)
    with open(out / "rounds.txt", "a") as table:
        for r in fs.rounds(Remember(), engine, n_rounds=len(PLAN)):
            table.write(json.dumps([r.index, r.clients, dict(r.faults)]) + "\\n")
            table.flush()
            r.save(out / "run.ckpt")
            engine.attempts = 2 if PLAN[r.index + 1 :][:1] in (["lost once"], ["slow once"]) else 1
    (out / "troubles.json").write_text(json.dumps(engine.troubles))
"""


class Spoilt(Fragile):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        app = folder / "app" / "deployed"
        (app / "client.py").rename(app / "honest.py")
        plan = repr([what for what, _, _ in ROUNDS])
        for name, text in (("client.py", SPOIL), ("server.py", SERVER)):
            (app / name).write_text(text.replace("@PLAN@", plan).replace("@PORT@", str(self.port)))


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    with Spoilt(tmp_path_factory.mktemp("replies") / "deployment") as deployed:
        assert deployed.start_run(deployed.out).wait(500) == 0, deployed.log("run")
        yield deployed


def test_the_result_is_that_of_the_answers_that_were_right_each_counted_once(ended):
    lost = {index: 1 for index, (_, faults, _) in enumerate(ROUNDS) if {"corrupt", "missing"} & set(faults)}
    assert result(ended.out) == pytest.approx(expected(ended.fed, lost, len(ROUNDS)), rel=1e-12)


@pytest.mark.parametrize("index", range(len(ROUNDS)), ids=[f"{i} {what}" for i, (what, _, _) in enumerate(ROUNDS)])
def test_each_fault_is_counted_in_its_round_and_named_and_leaves_the_others_alone(ended, index):
    what, faults, said = ROUNDS[index]
    left_out = bool({"corrupt", "missing"} & set(faults))
    assert ended.lines()[index] == [index, 40 if left_out else 60, faults], what
    troubles = json.loads((ended.out / "troubles.json").read_text())
    told = [line for line in troubles if line.startswith(f"round {index}, ")]
    assert len(told) == left_out
    assert all(line.endswith(said) for line in told)


def test_the_replies_that_never_came_were_sent_and_thrown_away_by_the_superlink(ended):
    log = ended.log("superlink")
    assert log.count("Failed to store Message reply") == 1  # the second of two
    assert log.count("Message TTL has expired") == 2  # lost, and lost once
