"""Generated pages of the site: the reference, every option of the command line, what the server sees.

mkdocs calls the functions that begin with `on_`. Nothing generated is kept in the repository, so nothing can be stale.
"""

from __future__ import annotations

import importlib
import inspect
import os
import posixpath
import re
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "pages"
OUTSIDE = {  # written elsewhere in the repository: its path, and its page
    "benchmarks/README.md": "benchmarks/index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    **{f"benchmarks/pages/{page.name}": f"benchmarks/pages/{page.name}" for page in RESULTS.glob("*.md")},
}
SOURCES = {page: path for path, page in OUTSIDE.items()}
GALLERY = runpy.run_path(str(ROOT / "tools" / "gallery.py"))
ROOMS = ("sketches", "mixtures", "simulate", "learning", "personal", "temporal", "datasets", "formats", "sklearn")
INTRODUCTIONS = {
    "reference.md": "Every public name, from its docstring. The examples are run by the tests.",
    "options.md": "What `--help` prints, for every command.",
    "what-the-server-sees.md": (
        "For each method, from the code: what crosses the boundary as a sum over clients, what the server sees client "
        "by client (refused unless the caller allows it by name), and what never leaves. Shapes are those of a small "
        "example."
    ),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the menu of versions where `tools/versioned.py` builds: it needs the versions.json beside the site."""
    if os.environ.get("FEDSCAPE_VERSIONS"):
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, those that live beside docs/, and the gallery, whose scripts are executed here."""
    pages: dict[str, str | bytes] = {
        "reference.md": reference(),
        "options.md": options(),
        "what-the-server-sees.md": seen_by_the_server(),
        **{page: (ROOT / path).read_text() for path, page in OUTSIDE.items()},
        **GALLERY["pages"](),
    }
    plots = {plot.relative_to(ROOT).as_posix(): plot.read_text() for plot in RESULTS.glob("plots/*.svg")}
    for name, text in {**pages, **plots}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between files of the repository to links between pages of the site."""
    at = page.file.src_uri
    real = SOURCES.get(at, f"docs/{at}")

    def moved(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        if "://" in target or not target:
            return link.group(0)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(real), target))
        page_of = OUTSIDE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if page_of is None:  # a file of the repository that the site does not carry
            return f"{text} (`{path}`)"
        return f"[{text}]({posixpath.relpath(page_of, posixpath.dirname(at) or '.')}{anchor or ''})"

    def drawn(image: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(real), image[2]))
        return f"![{image[1]}]({posixpath.relpath(path, posixpath.dirname(at) or '.')})"

    plots = r"!\[([^\]]*)\]\(((?:\.\./)+benchmarks/pages/plots/[^)\s]+)\)"
    markdown = re.sub(plots, drawn, markdown) if real.startswith("docs/") else markdown
    return re.sub(r"(?<!!)\[([^\]\[]+)\]\(([^)#\s]*)(#[^)\s]*)?\)", moved, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Load the search from the site itself: the offline plugin would ask another host for it."""
    return _from_here(output, page.file.dest_uri)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for 404.html, which is no page."""
    return _from_here(output, template_name)


def _from_here(output: str, where: str) -> str:
    own = posixpath.relpath("offline.js", posixpath.dirname(where) or ".")
    return re.sub(r'https://[^"]+/iframe-worker/shim', own, output)


def reference() -> str:
    """One page with every public name."""
    import fedscape

    top = [name for name in fedscape.__all__ if not inspect.ismodule(getattr(fedscape, name))]
    parts = ["# Reference", INTRODUCTIONS["reference.md"], "## fedscape", *entries(fedscape, top)]
    for room in ROOMS:
        try:
            module = importlib.import_module(f"fedscape.{room}")
        except ModuleNotFoundError:
            continue
        names = [n for n in module.__all__ if n not in top and not inspect.ismodule(getattr(module, n))]
        parts += [f"## fedscape.{room}", first_line(module), *entries(module, names)]
    return "\n\n".join(parts) + "\n"


def first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def entries(module: Any, names: list[str]) -> Iterator[str]:
    for name in names:
        thing = getattr(module, name)
        if not callable(thing):
            yield f"### {name}\n\n`{name} = {thing!r}`" if len(repr(thing)) < 200 else f"### {name}"
            continue
        yield f"### {name}"
        if not (inspect.isclass(thing) and issubclass(thing, Exception)):
            yield f"```python\n{name}{signature(thing)}\n```"
        yield from rendered(inspect.getdoc(thing) or "")


def signature(thing: Any) -> str:
    try:
        parsed = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    parts = [re.sub(r"'", "", str(p)) if "'" in str(p.annotation) else str(p) for p in parsed.parameters.values()]
    plain = [p.split(":")[0] + (" = " + p.split(" = ")[1] if " = " in p else "") for p in parts]
    starred = next((i for i, p in enumerate(parsed.parameters.values()) if p.kind is p.KEYWORD_ONLY), None)
    if starred is not None and not any(p.kind is p.VAR_POSITIONAL for p in parsed.parameters.values()):
        plain.insert(starred, "*")
    line = f"({', '.join(plain)})"
    return (
        line
        if len(line) < 90
        else "(\n" + textwrap.fill(", ".join(plain), 100, initial_indent="    ", subsequent_indent="    ") + "\n)"
    )


def rendered(doc: str) -> Iterator[str]:
    """Render a docstring as Markdown: its text, its parameters as a list, its example as a session."""
    words, _, session = doc.partition("\n>>> ")
    words, _, parameters = words.partition("Parameters\n----------\n")
    yield words.strip()
    if parameters.strip():
        lines = []
        for line in parameters.rstrip().splitlines():
            if line and not line.startswith(" "):
                if re.fullmatch(r"[\w, *]+", line):
                    lines.append(f"- `{line}`:")
                else:
                    lines.append(f"\n{line}")
            elif line.strip() and lines:
                lines[-1] += " " + line.strip()
        yield "\n".join(lines)
    if session:
        yield f"```pycon\n>>> {session.strip()}\n```"


def options() -> str:
    """The help of every command."""
    from typer.main import get_command
    from typer.testing import CliRunner

    from fedscape.cli import app

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, sub in sorted(getattr(command, "commands", {}).items()):
            yield from walk(sub, (*path, name))

    os.environ["NO_COLOR"], os.environ["TERMINAL_WIDTH"], os.environ["COLUMNS"] = "1", "100", "100"
    parts = ["# Every option", INTRODUCTIONS["options.md"]]
    for path in walk(get_command(app), ()):
        shown = CliRunner().invoke(app, [*path, "--help"], prog_name="fedscape").output
        text = "\n".join(line.rstrip() for line in shown.splitlines()).strip("\n")
        parts += [f"## {' '.join(('fedscape', *path))}", f"```text\n{text}\n```"]
    return "\n\n".join(parts) + "\n"


def seen_by_the_server() -> str:
    """What `fedscape explain` finds for every method: one table, then the arrays."""
    from fedscape.studies.explain import explain, names

    methods = [explain(name) for name in names()]
    lines = ["| method | summed | revealed, client by client | kept by the client | bytes up | bytes down |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    detail = []
    for about in methods:
        phases = about["phases"]
        summed = sorted({a["name"] for p in phases for a in p["sent"] if a["seen"] == "as a sum"})
        kept = sorted({name for p in phases for name in p["kept"]})
        heaviest = max(phases, key=lambda p: p["bytes_up"])
        cells = [coded(summed), coded(about["reveals"]), coded(kept), f"{heaviest['bytes_up']:,}"]
        anchor = about["method"].replace("+", "")
        lines.append(f"| [{about['method']}](#{anchor}) | {' | '.join(cells)} | {heaviest['bytes_down']:,} |")
        detail += [f"## {about['method']} {{ #{anchor} }}", about["words"], sent_by(phases), about["privacy"]]
    head = ["# What the server sees", INTRODUCTIONS["what-the-server-sees.md"], f"Example: {methods[0]['reference']}."]
    return "\n\n".join([*head, "\n".join(lines), *detail]) + "\n"


def coded(names: list[str]) -> str:
    """Names in code, those of a network's layers as one."""
    short = dict.fromkeys(f"{name.split('.')[0]}.*" if "." in name else name for name in names)
    return ", ".join(f"`{name}`" for name in short) or "nothing"


def sent_by(phases: list[dict[str, Any]]) -> str:
    lines = ["| phase | array | shape | bytes | seen |", "| --- | --- | --- | --- | --- |"]
    for phase in phases:
        for a in phase["sent"]:
            lines.append(f"| {phase['phase']} | `{a['name']}` | {a['shape']} | {a['bytes']:,} | {a['seen']} |")
    return "\n".join(lines)
