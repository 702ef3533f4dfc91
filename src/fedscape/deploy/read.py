"""Read the effect of a deployment's files: commands and settings without comments."""

from __future__ import annotations

import ipaddress
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedscape.errors import DataError

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}\.)*(?!\d+\Z){_LABEL}", re.ASCII)
_ENDS = ";&|()\n"
_COMMENT = re.compile(
    r"""('[^']*'|"(?:\\.|[^"\\])*"|\\.)|(?<![^\s;&|()])\#[^\n]*""", re.DOTALL
)  # or inside quotes: not a comment


def commands(text: str) -> list[list[str]]:
    r"""The commands of a shell script, as lists of words; ValueError for an unclosed quote.

    >>> commands("export A=1 # B=2\nexec program \\\n  --name 'a # b'; done")
    [['export', 'A=1'], ['exec', 'program', '--name', 'a # b'], ['done']]
    """
    bare = _COMMENT.sub(lambda match: match[1] or "", text).replace("\\\n", " ")
    words = shlex.shlex(bare, posix=True, punctuation_chars=_ENDS)
    words.whitespace, words.whitespace_split, words.commenters = " \t\r", True, ""
    parts: list[list[str]] = [[]]
    for word in words:
        if word and set(word) <= set(_ENDS):
            parts.append([])
        else:
            parts[-1].append(word)
    return [command for command in parts if command]


def exports(script: list[list[str]]) -> dict[str, str]:
    """The variables that a script exports; the last value counts.

    >>> exports(commands("export A=1 B=2; export A=3; unset B"))
    {'A': '3'}
    """
    variables: dict[str, str] = {}
    for first, *words in script:
        if first == "export":
            variables |= {name: value for name, equals, value in (word.partition("=") for word in words) if equals}
        if first == "unset":
            variables = {name: value for name, value in variables.items() if name not in words}
    return variables


def calls(script: list[list[str]], program: str) -> Iterator[dict[str, str]]:
    """The options of each call of a program, "" for an option without a value.

    >>> list(calls(commands("exec /bin/serve --host ::1 --safe"), "serve"))
    [{'--host': '::1', '--safe': ''}]
    """
    for command in script:
        names = [Path(word).name for word in command]
        if program in names:
            words = command[names.index(program) + 1 :]
            following = [*words[1:], "--"]
            yield {
                word.partition("=")[0]: word.partition("=")[2] or ("" if after.startswith("--") else after)
                for word, after in zip(words, following, strict=True)
                if word.startswith("--")
            }


def shell(path: Path) -> list[list[str]] | None:
    """The commands of a script file; None if it cannot be read."""
    try:
        return commands(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def toml(path: Path) -> dict[str, Any] | None:
    """The settings of a TOML file; None if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def setting(tree: Any, *names: str) -> Any:
    """The value at a path in nested tables, None if there is none.

    >>> setting({"a": {"b": 1}}, "a", "b"), setting({"a": 1}, "a", "b")
    (1, None)
    """
    for name in names:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def check_host(host: str) -> None:
    """Refuse anything but a host name or an address: hosts go into scripts and certificates.

    >>> check_host("fl.example.org")
    """
    try:
        if "%" not in host:  # an address with a zone index is meaningless on other machines
            ipaddress.ip_address(host)
            return
    except ValueError:
        if len(host) <= 253 and _HOST.fullmatch(host):
            return
    raise DataError(
        f"host must be a name of letters, digits, hyphens and dots (others in their xn-- form) or an address without "
        f"port, not {host[:80]!r}"
    )


def address_of(host: str, port: int) -> str:
    """A host with a port.

    >>> address_of("::1", 8000), address_of("localhost", 8000)
    ('[::1]:8000', 'localhost:8000')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """The host of an address with a port.

    >>> host_of("[::1]:8000"), host_of("localhost:8000")
    ('::1', 'localhost')
    """
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
