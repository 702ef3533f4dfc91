"""Turn an exception into one line and an exit code; the traceback goes to a log file, or with --debug to stderr."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Sequence

from fedscape.errors import CheckpointError, DataError, FedscapeError, NotFinite, TooFewClients

BAD_INPUT, FAILURE, STOPPED = 2, 1, 130
_LONGEST = 200  # characters kept of another library's message
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_INPUT = (DataError, CheckpointError, NotFinite, TooFewClients)
_TORCH_MEMORY = ("can't allocate memory", "out of memory")  # RuntimeError on a CPU, OutOfMemoryError on a GPU
_PLACES = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError)


def without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Remove --debug, which may stand anywhere before a bare --; also return whether it was present.

    >>> without_debug(["describe", "d.csv", "--debug"])
    (['describe', 'd.csv'], True)
    """
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    options = [a for a in arguments[:end] if a != "--debug"]
    return [*options, *arguments[end:]], len(options) < end


def one_line(text: object, *, longest: int = _LONGEST) -> str:
    """Strip colours and line breaks, and truncate.

    >>> one_line("a\\n  b")
    'a b'
    """
    joined = " ".join(_COLOUR.sub("", str(text)).split())
    return joined if len(joined) <= longest else f"{joined[: longest - 3]}..."


def say_failure(error: BaseException, *, debug: bool) -> int:
    """Print one line for the exception that ended a command, and return the exit code."""
    line, code, expected = _explain(error)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    elif not expected:
        line += f"; {_log_place(error)}"
    sys.stderr.write(f"fedscape: {line}\n")
    return code


def _explain(error: BaseException) -> tuple[str, int, bool]:
    """The message, the exit code, and whether the exception is one that fedscape raises on purpose."""
    if isinstance(error, FedscapeError):
        return str(error), BAD_INPUT if isinstance(error, _INPUT) else FAILURE, True
    if isinstance(error, KeyboardInterrupt):
        return "stopped", STOPPED, True
    if isinstance(error, MemoryError) or any(words in str(error) for words in _TORCH_MEMORY):
        advice = "use fewer rows or columns, a smaller model, or a machine with more memory"
        return (
            f"not enough memory ({one_line(error) or 'size unknown'}): {advice}",
            BAD_INPUT,
            True,
        )
    if isinstance(error, OSError) and error.strerror is not None:
        what = one_line(error.strerror if error.filename is None else f"{error.filename}: {error.strerror}")
        if isinstance(error, _PLACES):
            return f"{what}: name another path, or change its permissions", BAD_INPUT, True
        return what, FAILURE, True
    kind = one_line(f"{type(error).__name__}: {error}".removesuffix(": "))
    return f"this is a bug in fedscape ({kind})", FAILURE, False


def _log_place(error: BaseException) -> str:
    """Write the traceback to a file that only this user can read, and say where it is."""
    header = f"fedscape {_version()}, Python {platform.python_version()}, {platform.platform()}\n{sys.argv}\n\n"
    try:
        number, path = tempfile.mkstemp(prefix="fedscape-", suffix=".log")  # mode 0600
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(header + "".join(traceback.format_exception(error)))
    except OSError:
        return "no log could be written: --debug shows the traceback"
    return f"the traceback is in {path}, and --debug shows it"


def _version() -> str:
    import fedscape

    return fedscape.__version__
