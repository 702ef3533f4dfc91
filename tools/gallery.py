"""The gallery: scripts of `examples/gallery` as pages of the site, executed, and as notebooks.

A script has cells, begun by `# %%` (code) or `# %% [markdown]` (text in comments), as editors and Jupyter know them.
`python tools/gallery.py` writes `examples/notebooks/NAME.ipynb`; `tools/site.py` calls `pages` when it builds the site.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples" / "gallery").glob("*.py"))
NOTEBOOKS = ROOT / "examples" / "notebooks"


class Cell(NamedTuple):
    """One cell: text in Markdown, or code."""

    code: bool
    text: str


class Output(NamedTuple):
    """What a cell of code printed, and its figure as PNG."""

    text: str
    png: bytes | None


def cells(script: str) -> list[Cell]:
    """Split a script at its marks."""
    parts = re.split(r"^# %%( \[markdown\])?\n", script, flags=re.MULTILINE)[1:]
    split = []
    for mark, body in zip(parts[::2], parts[1::2], strict=True):
        text = re.sub(r"^# ?", "", body, flags=re.MULTILINE) if mark else body
        split.append(Cell(not mark, text.strip()))
    return split


def run(script: list[Cell]) -> Iterator[Output | None]:
    """Execute the cells in one namespace, and yield the output of each; None for text."""
    import matplotlib

    matplotlib.use("agg")
    namespace: dict[str, Any] = {"__name__": "__gallery__"}
    for cell in script:
        yield _executed(cell.text, namespace) if cell.code else None


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A script as a page of the site, and the figures of the page by name."""
    script = cells(path.read_text())
    parts, figures = [], {}
    for cell, output in zip(script, run(script), strict=True):
        if output is None:
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if output.text:
            parts.append(f"```text\n{output.text}\n```")
        if output.png is not None:
            name = f"{path.stem}_{len(figures) + 1}.png"
            figures[name] = output.png
            parts.append(f"![{_caption(parts)}]({name})")
    parts.append(f"The script: `examples/gallery/{path.name}`; as a notebook: `examples/notebooks/{path.stem}.ipynb`.")
    return "\n\n".join(parts) + "\n", figures


def pages() -> dict[str, str | bytes]:
    """Every page and figure of the gallery by its path in the site, the overview included."""
    written: dict[str, str | bytes] = {}
    overview = [
        "# Gallery",
        "**What do the figures look like, and which code makes them?** Each page is a script that runs.",
    ]
    for path in SCRIPTS:
        text, figures = page(path)
        written |= {f"gallery/{path.stem}.md": text} | {f"gallery/{name}": png for name, png in figures.items()}
        title, question = _headline(path)
        overview.append(f"## [{title}]({path.stem}.md)\n\n{question}\n\n![{title}]({next(iter(figures))})")
    return {"gallery/index.md": "\n\n".join(overview) + "\n", **written}


def notebook(path: Path) -> str:
    """A script as a notebook without outputs."""
    written = []
    for cell in cells(path.read_text()):
        identity = hashlib.sha256(cell.text.encode()).hexdigest()[:8]
        about = {"cell_type": "code" if cell.code else "markdown", "id": identity, "metadata": {}}
        about |= {"execution_count": None, "outputs": []} if cell.code else {}
        written.append({**about, "source": cell.text.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": written, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(content, indent=1) + "\n"


def main() -> None:
    """Write every notebook."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for path in SCRIPTS:
        (NOTEBOOKS / f"{path.stem}.ipynb").write_text(notebook(path))


def _headline(path: Path) -> tuple[str, str]:
    """Title and question of a script, from its first cell."""
    first = cells(path.read_text())[0].text
    title, question = re.match(r"# (.+)\n\n\*\*(.+?)\*\*", first, re.DOTALL).groups()
    return title, " ".join(question.split())


def _caption(parts: list[str]) -> str:
    """The first sentence of the text before a figure, for readers who do not see it."""
    text = next(part for part in reversed(parts) if not part.startswith("```"))
    return re.split(r"(?<=[.?])\s", " ".join(re.sub(r"[#*`\[\]]", "", text).split()))[0]


def _executed(code: str, namespace: dict[str, Any]) -> Output:
    from matplotlib.figure import Figure

    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(tree, "<gallery>", "exec"), namespace)
        value = None if last is None else eval(compile(ast.Expression(last.value), "<gallery>", "eval"), namespace)  # noqa: S307
    if not isinstance(value, Figure):
        return Output(printed.getvalue().strip(), None)
    buffer = io.BytesIO()
    value.savefig(buffer, format="png", dpi=110)
    return Output(printed.getvalue().strip(), buffer.getvalue())


if __name__ == "__main__":
    main()
