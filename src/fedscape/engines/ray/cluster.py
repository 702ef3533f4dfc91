"""A connection to a Ray cluster: a running one, or one on this machine alone."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fedscape.core import schedule
from fedscape.errors import EngineError, FedscapeError, require
from fedscape.formats.files import one_line

# no usage reports; errors are raised, not also printed; workers without a GPU keep their environment, and those of a
# cluster started here run at the priority of this process, which waits for them
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",
}
CONNECT_SECONDS = 10.0
TASK_RETRIES = 3
T = TypeVar("T")
_LOCK = threading.Lock()
_ENGINES = {"users": 0, "ours": 0}
_JOINED: dict[str, str | None] = {}  # the cluster started or joined here, and the address it was joined by


class Cluster:
    """The cluster shared by the engines of this process; the last engine leaves a cluster started or joined here.

    Parameters
    ----------
    address
        As for `Ray`.
    workers, threads, gpus, memory
        Requested resources: processes, and for each of them cores, GPUs and bytes.
    """

    def __init__(self, address: str | None, workers: int | None, threads: int, gpus: float, memory: int | None) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        self.ray: ModuleType = require("ray", extra="ray")
        self._each = {"num_cpus": threads, "num_gpus": gpus, **({} if memory is None else {"memory": memory})}
        with _LOCK:
            if not self.ray.is_initialized():
                _connect(self.ray, address, (workers or 1) * threads)
                _ENGINES["ours"] = 1
                _JOINED.clear()
                _JOINED[_connected(self.ray)] = address
            elif address is not None:
                _check_same(self.ray, address)
            _ENGINES["users"] += 1
        try:
            self.workers = workers or self.room()
            self._check_room(threads, gpus)
        except BaseException:
            self.leave()
            raise

    @property
    def address(self) -> str:
        """Address of the cluster to which this process is connected."""
        return _connected(self.ray)

    def room(self) -> int:
        """Number of workers for which the cluster has cores, and GPUs if they take any, now."""
        have = self.ray.cluster_resources()
        fit = [have.get("CPU", 1) / self._each["num_cpus"]]
        if self._each["num_gpus"]:
            fit.append(have.get("GPU", 0) / self._each["num_gpus"])
        return max(1, int(min(fit) + 1e-9))

    def machines(self) -> int:
        """Number of machines in the cluster."""
        return sum(bool(node["Alive"]) for node in self.ray.nodes())

    def _check_room(self, threads: int, gpus: float) -> None:
        have = self.ray.cluster_resources()
        for what, each in (("CPU", threads), ("GPU", gpus)):
            if self.workers * each > have.get(what, 0):
                raise EngineError(
                    f"{self.workers} workers with {each:g} {what}s each do not fit the cluster, which has "
                    f"{have.get(what, 0):g}: ask for fewer workers"
                )

    def actor(self, kind: type, *arguments: Any, guest: bool = False) -> Any:
        """A new process with an object of this type; Ray does not restart it, we do.

        A guest reserves no core and no memory: it shares the cores of a machine that is full.
        """
        each = {"num_cpus": 0, "num_gpus": self._each["num_gpus"]} if guest else self._each
        return self.ray.remote(kind).options(**each, max_restarts=0).remote(*arguments)

    def map(self, work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
        """The results of tasks on any machine, in order; a task that is lost with its machine is run again.

        A few more than there is room for are submitted at a time. After an error or Ctrl-C the others are cancelled.
        """
        task = self.ray.remote(_attempt).options(**self._each, max_retries=TASK_RETRIES)
        shipped = self.ray.put(work)
        flying: dict[Any, int] = {}
        done: dict[int, T] = {}
        waiting = deque(enumerate(items))
        try:
            while waiting or flying:
                while waiting and len(flying) < 2 * max(self.workers, self.room()):
                    i, item = waiting.popleft()
                    flying[task.remote(shipped, item)] = i
                for ref in self.ray.wait(list(flying), num_returns=1)[0]:
                    result = self._result(ref)
                    done[flying.pop(ref)] = result
        finally:
            for ref in flying:
                self.ray.cancel(ref, force=True)
        return [done[i] for i in range(len(items))]

    def _result(self, ref: Any) -> Any:
        try:
            value = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OSError):  # a full disk: the caller names the path
                raise error.cause from None
            raise EngineError(f"a task failed: {type(error.cause).__name__}: {one_line(error.cause)}") from error
        except self.ray.exceptions.RayError as error:
            raise EngineError(f"a task was lost {TASK_RETRIES + 1} times: {one_line(error)}") from error
        if isinstance(value, FedscapeError):
            raise value
        return value

    def leave(self) -> None:
        """Disconnect and stop a cluster started here, unless another engine uses it."""
        with _LOCK:
            _ENGINES["users"] -= 1
            if _ENGINES["users"] == 0 and _ENGINES["ours"]:
                _ENGINES["ours"] = 0
                self.ray.shutdown()


def _attempt(work: Callable[[Any], T], item: Any) -> T | FedscapeError:
    """The result, or an error of ours, which is an answer and not a reason to try again."""
    try:
        return work(item)
    except FedscapeError as error:
        return error


def _connect(ray: ModuleType, address: str | None, cores: int) -> None:
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is not None:
            _knock(address)
            _check_token(address)
            ray.init(address=address, **quiet)
            return
        cores = max(cores, schedule.cores())
        with surroundings():
            ray.init("local", num_cpus=cores, include_dashboard=False, **quiet)
    except EngineError:
        raise
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        where = "no Ray cluster could be started here" if address is None else f"no Ray cluster answers at {address!r}"
        raise EngineError(f"{where}: {one_line(error)}") from error


def _check_token(address: str) -> None:
    """Require the cluster's token before joining: only the token shows that it is the right cluster."""
    named = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if named or os.environ.get("RAY_AUTH_MODE") == "disabled" or (Path.home() / ".ray" / "auth_token").is_file():
        return
    raise EngineError(
        f"a token is needed for the Ray cluster at {address!r}: put what 'ray get-auth-token' prints there into "
        "RAY_AUTH_TOKEN, or set RAY_AUTH_MODE=disabled where it has none"
    )


def _connected(ray: ModuleType) -> str:
    return str(getattr(ray.get_runtime_context(), "gcs_address", "ray://"))  # unknown to a Ray client


def _check_same(ray: ModuleType, address: str) -> None:
    """Refuse a cluster other than the one to which this process is connected."""
    now = _connected(ray)
    if now in _JOINED and _JOINED[now] == address:
        return
    wanted = (os.environ.get("RAY_ADDRESS") or None) if address == "auto" else address
    if wanted is None and now not in _JOINED:  # "auto", and the caller has connected already
        return
    if wanted is None or _place(ray, wanted) != _place(ray, now):
        raise EngineError(
            f"this process is connected to the Ray cluster at {now}, not to {address!r}: leave address out to use that "
            "one, or close its engines and call ray.shutdown() first"
        )


def _place(ray: ModuleType, address: str) -> tuple[str, str]:
    """Host and port, resolved: two names of one address are the same."""
    host, _, port = address.rpartition(":")
    try:
        host = socket.gethostbyname(host)
    except OSError:
        host = host.strip("[]")
    return (ray.util.get_node_ip_address() if host.startswith("127.") or host == "::1" else host), port


def _knock(address: str) -> None:
    """Try the port first: Ray ends the whole process if nobody answers."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


@contextmanager
def surroundings() -> Iterator[None]:
    """Processes started in this context can import what this one can, and write files that only their owner can read.

    One such file holds Ray's token, the only protection against others on the network running code in the cluster.
    """
    before, mask = os.environ.get("PYTHONPATH"), os.umask(0o077)
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    try:
        yield
    finally:
        os.umask(mask)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
