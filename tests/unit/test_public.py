"""The public face: few names, each documented with an example, and a light import."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys

import fedscape

PROTOCOLS = {"Engine", "Sampler"}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_public_names_exist_and_are_few():
    assert len(fedscape.__all__) <= 60
    assert fedscape.__all__ == sorted(fedscape.__all__, key=lambda name: (not name.isupper(), name))
    for name in fedscape.__all__:
        assert hasattr(fedscape, name)


def test_every_public_class_and_function_has_a_docstring_with_an_example():
    bare = []
    for name in fedscape.__all__:
        thing = getattr(fedscape, name)
        if inspect.ismodule(thing) or name in PROTOCOLS or (inspect.isclass(thing) and issubclass(thing, Exception)):
            assert thing.__doc__, name
            continue
        if not doctest.DocTestParser().get_examples(inspect.getdoc(thing) or ""):
            bare.append(name)
    assert not bare


def test_import_loads_no_heavy_package():
    code = "import fedscape, sys; print([m for m in ('torch', 'ray', 'flwr', 'pandas', 'numba') if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_help_loads_no_heavy_package():
    code = (
        "import sys; from typer.testing import CliRunner; from fedscape.cli import app; "
        "r = CliRunner().invoke(app, ['--help']); assert r.exit_code == 0, r.output; "
        "print([m for m in ('torch', 'ray', 'flwr', 'pandas', 'numba') if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_a_missing_extra_says_what_to_install():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from fedscape.errors import require, MissingExtraError\n"
        "try: require('torch', extra='learn')\n"
        "except MissingExtraError as e: print(e)"
    )
    assert "pip install 'fedscape[learn]'" in run(code)
