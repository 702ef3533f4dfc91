"""A process that has imported the large packages and forks one for every call: torch alone takes seconds to import.

Says that it is ready, reads a call a line and answers with its exit code. fedscape itself is imported by each process,
in the order of one that was started by itself. Standard output and error go to the files that the call names.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

PACKAGES = (
    *("numpy", "numpy.testing", "scipy.optimize", "scipy.special", "scipy.stats", "scipy.sparse", "numba", "typer"),
    *("rich.console", "rich.table", "rich.progress", "pyarrow.csv", "pyarrow.parquet", "threadpoolctl", "pandas"),
    *("dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp", "torch", "torch.func", "safetensors.numpy"),
)


def become(call: dict[str, Any]) -> None:
    """Set up what a shell would have."""
    signal.alarm(call["seconds"])
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, call["out"], os.O_WRONLY | os.O_CREAT),
        (2, call["err"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(name, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.path[0] = ""


def run(call: dict[str, Any]) -> None:
    if "code" in call:
        sys.argv = ["-c"]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(call["code"], "<string>", "exec"), main.__dict__)
    else:
        sys.argv = ["fedscape", *call["arguments"]]
        runpy.run_module("fedscape", run_name="__main__", alter_sys=True)


def leave(call: dict[str, Any]) -> None:
    """Run, and end as the interpreter does but for taking down the modules, which takes a second where torch is one."""
    code: Any = 0
    try:
        run(call)
    except SystemExit as stop:
        code = 0 if stop.code is None else stop.code
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 255)


def serve() -> dict[str, Any] | None:
    """Fork for every line, and return in the new process alone what it is to do."""
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            return dict(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    return None


if __name__ == "__main__":
    sys.dont_write_bytecode = False  # or each process compiles fedscape
    for package in PACKAGES:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(package)
    with contextlib.suppress(ImportError):
        from numba.core.registry import cpu_target

        cpu_target.typing_context.refresh()  # what numba does at the first call of a compiled function
        cpu_target.target_context.refresh()
    gc.collect()
    gc.freeze()  # or the collections of each process look at, and so copy, all that is here
    threads = [Path(f"/proc/self/task/{number}/comm").read_text().strip() for number in os.listdir("/proc/self/task")]
    threads.remove(Path("/proc/self/comm").read_text().strip())
    if set(threads) - {"jemalloc_bg_thd"}:  # Arrow's memory knows of forks; other threads might hold a lock
        sys.exit(f"a process with the threads {threads} cannot be forked: which of {PACKAGES} starts them?")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if (call := serve()) is not None:
        become(call)
        leave(call)
