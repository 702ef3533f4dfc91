"""Lazy loading of the public names of a package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def loader(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: from modules to the names that each has; one without names is itself public.

    Modules are the package's own, or of another with their whole name.

    >>> loader("fedscape.core", {"random": ["Key"]})("Key").__name__
    'Key'
    """
    module_of = {name: module for module, listed in names.items() for name in listed or [module]}

    def load(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path = module_of[name]
        module = import_module(path if path.startswith("fedscape.") else f"{package}.{path}")
        return getattr(module, name) if names[path] else module

    return load
