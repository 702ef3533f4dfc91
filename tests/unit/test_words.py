"""Names and words: variables name the thing, prose uses the field's terms, a glossary word has one meaning."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedscape
from fedscape import Computation
from fedscape.privacy.mechanisms import Privacy

ROOT = Path(fedscape.__file__).parent
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"

#: Packages whose names and prose were read through. More may come, none may go.
CLEANED = (
    "core",
    "privacy",
    "statistics",
    "formats",
    "datasets",
    "engines",
    "mixtures",
    "sketches",
    "learning",
    "trained",
    "simulate",
    "temporal",
    "personal",
    "report",
    "deploy",
    "papers",
    "methods",
    "cli",
    "studies",
    "tabular",
)
#: Variables that do not say what they hold.
VAGUE = {"made", "found", "given", "told", "known", "said", "seen", "asked", "gone", "there", "here", "again"}
#: Modules of those packages that still have some. They may only become fewer.
VAGUE_IN = {
    "personal/novelty.py",  # `known` rows against new ones
    "studies/schema.py",  # keys of result.json
    "studies/schema_learn.py",  # likewise
    "studies/schema_numbers.py",  # likewise
    "temporal/priors.py",  # `seen`, a keyword of Soft.follow
    "trained/model.py",  # `known`, a field of a public result
}
#: Turns of phrase that engineers do not use, and what they say instead.
IDIOMS = {
    r"\bso many\b": "this many, a cap on, a number of",
    r"\bin vain\b": "padding",
    r"\bby turns\b": "round-robin",
    r"\bunmade\b": "as low-rank factors",
    r"\bfound out\b": "detected, tested",
    r"\bthat there is not\b": "unknown",
    r"\bbeyond measure\b": "name the limit",
    r"\bmade anew\b": "built, rebuilt",
    r"\bin one piece\b": "contiguous",
    r"\bnothing but\b": "only",
    r"\bwritten out here\b": "hand-written",
    r"\bwhose a row is\b": "the client of each row",
    r"\bwith commas between\b": "comma-separated",
    r"\bcan be foretold\b": "predictable",
    r"\bcompiled anew\b": "recompiled",
    r"\bbegins? anew\b": "starts over",
    r"\bstands? in for the constructor\b": "override",
    r"\bis no result of\b": "is not",
    r"\ba fault of fedscape\b": "a bug in fedscape",
    r"\bgo on with the (run|sweep)\b": "resume",
}
#: Modules of those packages that still use one. They may only become fewer.
IDIOMS_IN: set[str] = set()
#: Words that say nothing about a class.
EMPTY = ("Manager", "Handler", "Factory", "Base", "Utils", "Mixin", "Helper")


def modules(packages: tuple[str, ...] = CLEANED) -> Iterator[tuple[str, str]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def variables(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every variable that is bound, parameters included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every comment and string."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], " ".join(token.string.split())


def test_variables_name_the_thing():
    vague = {where: [(n, name) for n, name in variables(source) if name in VAGUE] for where, source in modules()}
    bad = {where: names for where, names in vague.items() if names and where not in VAGUE_IN}
    assert not bad, f"name the thing: {bad}"


def test_prose_uses_the_words_of_the_field():
    for where, source in modules():
        for line, text in prose(source):
            for idiom, better in IDIOMS.items():
                hit = re.search(idiom, text)
                assert hit is None or where in IDIOMS_IN, f"{where}:{line}: {hit and hit.group()!r}; write: {better}"


def test_the_idioms_are_found_where_they_are():
    assert [n for n, text in prose("x = 1\n# rows computed in vain\n") if re.search(r"\bin vain\b", text)] == [2]
    assert {name for _, name in variables("def f(told):\n    made = told\n") if name in VAGUE} == {"told", "made"}


def test_classes_are_nouns_that_say_something():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                assert not node.name.endswith(EMPTY), f"{path.relative_to(ROOT)}: {node.name}"


# -- the glossary ------------------------------------------------------------------------------------------------------


def glossary() -> list[tuple[str, str]]:
    rows = [line.strip("| ").split(" | ") for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    return [(word, meaning) for word, meaning in rows[2:]]


def test_the_glossary_is_short_sorted_and_says_each_word_once():
    words = [word for word, _ in glossary()]
    assert words == sorted(words)
    assert len(words) == len(set(words)) <= 25


@pytest.mark.parametrize("word", [word for word, _ in glossary()])
def test_a_word_of_the_glossary_is_used(word):
    text = " ".join(source for _, source in modules())
    assert all(re.search(rf"\b{part}s?\b", text) for part in word.split(", "))


def test_words_that_the_glossary_excludes_are_not_used():
    """A client is never a user or party, a round never an iteration; formats name what files of others call so."""
    for where, source in modules(("core", "privacy", "statistics", "mixtures", "sketches")):
        for line, text in prose(source):
            banned = " " in text and re.search(r"\b(users?|party|parties|iterations?)\b", text)  # no mere identifier
            assert not banned, f"{where}:{line}: {text}"


#: Modules in which a variable `place` is not where noise is added. They may only become fewer.
OTHER_PLACES = {
    "cli/audit.py",
    "cli/deploy.py",
    "cli/train.py",
    "cli/training.py",
    "core/arrays.py",
    "core/blocks.py",
    "core/random.py",
    "core/validate.py",
    "datasets/readers.py",
    "engines/flower/replies.py",
    "engines/flower/secure_server.py",
    "engines/flower/server.py",
    "engines/ray/engine.py",
    "engines/ray/shard.py",
    "formats/grouping.py",
    "formats/opening.py",
    "learning/batches.py",
    "learning/fast/program.py",
    "learning/optimisers.py",
    "learning/sweeps.py",
    "mixtures/dirichlet_multinomial/likelihood.py",
    "mixtures/latent_class/baselines.py",
    "mixtures/latent_class/kernels.py",
    "sketches/kernels.py",
    "studies/against.py",
    "studies/compare.py",
    "studies/kinds.py",
    "studies/learn.py",
    "studies/prepare.py",
    "studies/schema.py",
    "studies/validate.py",
    "tabular/growing.py",
    "tabular/intercepts.py",
    "tabular/personal_trees.py",
    "tabular/sites.py",
    "tabular/splits.py",
    "tabular/xgboost_json.py",
}


def test_place_means_where_noise_is_added():
    assert "place" in Privacy.__dataclass_fields__
    others = {where for where, source in modules() if any(name == "place" for _, name in variables(source))}
    assert {where for where in others if not where.startswith("privacy/")} <= OTHER_PLACES


# -- state and contract ------------------------------------------------------------------------------------------------

#: Caches that live as long as the process, and why none is state of an immutable object.
PROCESS_CACHES = {
    "core/progress.py:_UNDER_WAY": "bars that are shown now, innermost last",
    "datasets/loading.py:_alive": "loaded data sets that someone still holds",
    "engines/ray/cluster.py:_JOINED": "the one cluster of this process",
    "learning/device.py:_ON_DEVICE": "columns on a GPU, as long as the column lives",
    "learning/trainer.py:_TRAINERS": "the trainer of each LocalSGD, as long as the settings live",
}
#: Functions that set fields of an immutable object while it is built.
BUILDERS = {"core/clients.py", "learning/local.py", "temporal/availability.py"}


def test_immutable_objects_hold_no_hidden_state():
    """A derived value is functools.cached_property; a cache is an object with a lifetime, or listed above."""
    for where, source in modules((".",)):
        tree = ast.parse(source)
        names = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
        assert "object.__setattr__" not in names or where in BUILDERS, f"{where} sets fields of a frozen object"
        for node in tree.body:
            value = getattr(node, "value", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and value is not None and is_empty_container(value):
                name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
                assert f"{where}:{name}" in PROCESS_CACHES, f"{where}:{name} is a cache without a lifetime"


def is_empty_container(value: ast.AST) -> bool:
    literal = isinstance(value, ast.Dict | ast.List) and not (
        getattr(value, "keys", None) or getattr(value, "elts", [])
    )
    call = (
        isinstance(value, ast.Call)
        and not value.args
        and ast.unparse(value.func).endswith(("Dictionary", "dict", "list"))
    )
    return literal or call


def test_the_contract_has_fewer_than_twenty_members():
    members = [name for name in vars(Computation) if not name.startswith("_")]
    assert len(members) < 20, sorted(members)
