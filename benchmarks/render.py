"""Render the pages of results from `results/*.json`: tables, plots, origins, the front page. `make results` runs it.

`python benchmarks/render.py` rewrites `pages/*.md`, `pages/plots/*.svg`, `README.md`, the numbers of the README of the
repository, the tables of `docs/*.md`, and `results/history/*.jsonl`;
`--check` writes nothing and exits with 1 if something would change; NAME prints the table of results/NAME.json.

A page has a title line (`# question`), prose, and marks. After a mark the script writes what stands there:

- `<!-- results/NAME.json -->` a table. `columns="a; b"` keeps some columns, `rows="a=1; b=x"` some rows, `table="no"`
  writes none. `bars="column"` adds a plot with a bar for each row; `by="a; b"` are the columns of its labels,
  `where="a=1; b=x"` keeps some of its rows, `ours="text"` colours the labels that contain it.
- `<!-- value NAME where="a=1" of="column" as=".1f" -->` one number, in bold.
- `<!-- pages core- -->` links to the pages whose names begin so; `<!-- pages -->` to the others.
- `<!-- failures -->` the sentences of all pages after "**Did not work:**".
- `<!-- history -->` the plots of speed over commits.
- `<!-- made -->` how the results of the page were made; it ends every page.

A guide in `docs/` chooses and words its cells: `<!-- table NAME head="method" rows="method=fedrep => FedRep" columns="
deal=classes => two classes = {best} ± {± 95%}; CPU = {CPU seconds|.1f}" -->`. A line of the table for each of `rows`
(`;` between them); without them for each row of the file, named by its first column. A column may narrow the rows
further, before its arrow, as `where` does for the whole table. A cell is empty where no row fits or has its values.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import history
import plots
from table import RESULTS, cell, markdown

HERE = Path(__file__).parent
PAGES, FRONT, MADE = HERE / "pages", HERE / "README.md", "<!-- made -->"
README = HERE.parent / "README.md"
MARKED = re.compile(
    r'<!-- results/([\w-]+)\.json((?: \w+="[^"]*")*) -->\n(?:\n*(?:\|.*\n)+)?(?:\n*!\[.*\]\(plots/.*\)\n)?\n*'
)
VALUE = re.compile(r'<!-- value ([\w-]+)((?: \w+="[^"]*")*) -->(?:\*\*[^*]*\*\*)?')
WORDED = re.compile(r'<!-- table ([\w-]+)((?: \w+="[^"]*")*) -->\n\n?(?:\|.*\n)*')
FIELD = re.compile(r"{([^{}|]+)(?:\|([^{}]*))?}")  # {column} or {column|.1f}
DOCS = HERE.parent / "docs"
LISTED = re.compile(r"<!-- (pages(?: [a-z]+-)*|failures|history) -->\n(?:\n*(?:- .*\n)+)?\n*")
FAILURE = "**Did not work:** "
#: Results of before dates were recorded: since when the repository has them. `--date` rewrites it from git.
UNDATED = HERE / "undated.json"
#: Versions worth a line: the others are in the file.
TOLD = ("python", "numpy", "scipy", "numba", "torch")

Rows = list[dict[str, Any]]
Files = dict[Path, str]


def load(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def options(text: str | None) -> dict[str, str]:
    """The `key="value"` pairs of a mark."""
    return dict(re.findall(r'(\w+)="([^"]*)"', text or ""))


def split(several: str) -> list[str]:
    """The parts of a "a; b"."""
    return [part.strip() for part in several.split(";")]


def chosen(rows: Rows, where: str) -> Rows:
    """The rows whose columns are as `where` says: "threads=1; what=fedscape, exact"."""
    wanted = [part.split("=", 1) for part in split(where)] if where else []
    return [row for row in rows if all(cell(row.get(column, "")) == value for column, value in wanted)]


def value(name: str, where: str, of: str, form: str = "") -> str:
    """The one number that a mark names; a mark that fits no row, or several, is an error."""
    rows = chosen(load(name)["rows"], where)
    if len(rows) != 1 or of not in rows[0]:
        raise SystemExit(
            f"results/{name}.json has {len(rows)} rows with {where!r} and column {of!r}; a value needs one"
        )
    return format(rows[0][of], form) if form else cell(rows[0][of])


def number(shown: Any) -> tuple[float, float] | None:
    """A value and half of its interval: 0.3, "78.3 ± 0.4", "19%"; None where there is no number."""
    found = re.match(r"\s*([-+]?[\d,]*\.?\d+(?:e[-+]?\d+)?)%?(?:\s*±\s*([\d.]+))?", str(shown))
    return (float(found.group(1).replace(",", "")), float(found.group(2) or 0)) if found else None


def plot(name: str, rows: Rows, wanted: dict[str, str]) -> str:
    """The bars of a mark as SVG."""
    labels, columns = split(wanted["by"]), split(wanted["bars"])
    drawn = []
    for row in chosen(rows, wanted.get("where", "")):
        label = ", ".join(cell(row[label]) for label in labels)
        for column in columns:
            at = number(row.get(column, ""))
            if at is not None:
                drawn.append((label if len(columns) == 1 else f"{label}: {column}", *at, cell(row[column])))
    if not drawn:
        raise SystemExit(f"results/{name}.json has no number in the columns {columns} to plot")
    title = wanted.get("title", wanted["bars"])
    return plots.bars(drawn, title=title, ours=wanted.get("ours", "fedscape"))


def block(found: re.Match[str], files: Files) -> str:
    """A mark of a result, the table and the plot it asks for."""
    name, wanted = found.group(1), options(found.group(2))
    rows = load(name)["rows"]
    parts = [found.group(0).split("\n", 1)[0]]
    if wanted.get("table") != "no":
        columns = (
            split(wanted["columns"]) if "columns" in wanted else list(dict.fromkeys(c for row in rows for c in row))
        )
        kept = chosen(rows, wanted.get("rows", ""))
        parts.append(markdown([{c: row[c] for c in columns if c in row} for row in kept]))
    if "bars" in wanted:
        files[PAGES / "plots" / f"{name}.svg"] = plot(name, rows, wanted)
        parts.append(f"![{wanted.get('title', wanted['bars'])}](plots/{name}.svg)")
    return "\n\n".join(parts) + "\n\n"


def made(names: list[str]) -> Iterator[str]:
    """How each result of a page was made, as its file says it."""
    undated: dict[str, str] = json.loads(UNDATED.read_text())
    for name in names:
        about = load(name)
        if not about.get("made_again", True):
            yield (
                f"- [`{name}.json`](../results/{name}.json): `{about['command']}`; numbers of {about['date']} "
                f"(`{about['commit']}`), older than result files and not made again; machine and versions not recorded."
            )
            continue
        versions = about["versions"]
        told = ", ".join(f"{p} {versions[p]}" for p in TOLD if versions.get(p, "not installed") != "not installed")
        when = f"{about['date']} at `{about['commit']}`" if "date" in about else undated.get(name, "date not recorded")
        machine = about.get("machine", versions.get("machine", "machine not recorded"))
        yield f"- [`{name}.json`](../results/{name}.json): `python {about['command']}`; {when}; {machine}; {told}."
        if about.get("note"):
            yield f"  {about['note'].strip()}"


def page(text: str, files: Files) -> str:
    """One page with its tables, plots and origins as the results are now."""
    text = re.sub(r"\A(?:.*\n)?## ", "# ", text) if not text.startswith("# ") else text
    text = text.split(f"\n{MADE}")[0]
    names = list(dict.fromkeys(name for name, _ in MARKED.findall(text)))
    text = MARKED.sub(lambda found: block(found, files), text)
    text = values(text.rstrip("\n") + "\n")
    if names:
        text += "\n".join(["", MADE, "", "## How these numbers were made", "", *made(names), ""])
    return text


def values(text: str) -> str:
    def shown(found: re.Match[str]) -> str:
        wanted = options(found.group(2))
        text = value(found.group(1), wanted.get("where", ""), wanted["of"], wanted.get("as", ""))
        return f"{found.group(0).split('-->')[0]}-->**{text}**"

    return VALUE.sub(shown, text)


def worded(found: re.Match[str]) -> str:
    """A table of a guide: its lines, heads and cells are worded by the mark, its numbers are the file's."""
    name, wanted = found.group(1), options(found.group(2))
    every = chosen(load(name)["rows"], wanted.get("where", ""))
    lines = [(cell(next(iter(row.values()))), [row]) for row in every]
    if "rows" in wanted:
        lines = [(label, chosen(every, narrow)) for narrow, label in map(_narrowed, split(wanted["rows"]))]
    table = []
    for label, rows in lines:
        if not rows:
            raise SystemExit(f"results/{name}.json has no row for {label!r}")
        shown = {wanted["head"]: label}
        for narrow, column in map(_narrowed, split(wanted["columns"])):
            title, form = column.split(" = {", 1)
            fits = chosen(rows, narrow)
            if len(fits) > 1:
                raise SystemExit(
                    f"results/{name}.json has {len(fits)} rows for {label!r} and {title!r}; a cell needs one"
                )
            shown[title] = _filled("{" + form, fits[0]) if fits else ""
        table.append(shown)
    if not all(any(row[title] for row in table) for title in table[0]):
        raise SystemExit(f"results/{name}.json: a column of {list(table[0])} is empty")
    return f"{found.group(0).split('-->')[0]}-->\n\n{markdown(table)}\n"


def _narrowed(part: str) -> tuple[str, str]:
    """Conditions and the label of "deal=classes & seeds=3 => two classes"; without conditions all rows fit."""
    narrow, _, label = part.rpartition(" => ")
    return narrow.replace(" & ", "; "), label


def _filled(form: str, row: dict[str, Any]) -> str:
    """A cell: its text with the values of a row; empty where the row has none of them."""
    if all(row.get(field, "") in ("", None) for field, _ in FIELD.findall(form)):
        return ""
    return re.sub(r" ± $", "", FIELD.sub(lambda field: _shown(row.get(field[1], ""), field[2]), form))


def _shown(value: Any, form: str | None) -> str:
    """A value, by a format where it is a number (also one that the file has as text)."""
    if not form:
        return cell(value)
    try:
        return format(float(value), form)
    except ValueError:
        return cell(value)


def front(text: str, pages: dict[str, str], drawn: Sequence[str] = ()) -> str:
    """The front page: its numbers, the list of pages, and what did not work."""
    groups = re.findall(r"([a-z]+-)", " ".join(re.findall(r"<!-- pages ([a-z -]+) -->", text)))
    titles = {name: content.split("\n", 1)[0].removeprefix("# ") for name, content in pages.items()}

    def listed(found: re.Match[str]) -> str:
        kind, *prefixes = found.group(1).split()
        if kind == "failures":
            lines = [
                f"- {' '.join(paragraph.removeprefix(FAILURE).split())} ([{titles[name]}](pages/{name}.md))"
                for name, content in sorted(pages.items())
                for paragraph in content.split("\n\n")
                if paragraph.startswith(FAILURE)
            ]
        elif kind == "history":
            lines = [f"- ![{history.KEPT[name][2]}](pages/plots/history_{name}.svg)" for name in drawn]
        else:
            fits = [n for n in sorted(pages) if n.startswith(tuple(prefixes or groups)) == bool(prefixes)]
            lines = [f"- [{titles[name]}](pages/{name}.md)" for name in fits]
        return (
            "\n".join([f"<!-- {found.group(1)} -->", "", *lines, "", ""]) if lines else f"<!-- {found.group(1)} -->\n\n"
        )

    return values(LISTED.sub(listed, text).rstrip("\n") + "\n")


def rendered() -> Files:
    """Every file that results make, with its content."""
    files: Files = dict(history.recorded())
    pages = {path.stem: page(path.read_text(), files) for path in sorted(PAGES.glob("*.md"))}
    files |= {PAGES / f"{name}.md": text for name, text in pages.items()}
    over_time = history.drawn(PAGES / "plots", files)
    drawn = [path.stem.removeprefix("history_") for path in over_time]
    guides = {path: values(WORDED.sub(worded, path.read_text())) for path in sorted(DOCS.glob("*.md"))}
    front_page = front(FRONT.read_text(), pages, drawn)
    return files | over_time | guides | {FRONT: front_page, README: values(README.read_text())}


def since() -> dict[str, str]:
    """The commit that last changed each result without a date."""
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        if "date" not in json.loads(path.read_text()):
            call = ["git", "-C", str(HERE), "log", "-1", "--format=in the repository since %as (`%h`)", "--", str(path)]
            found[path.stem] = subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()
    return {name: text for name, text in found.items() if text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", "--quick", action="store_true")
    parser.add_argument("--date", action="store_true", help="look up since when results without a date are committed")
    args = parser.parse_args()
    if args.date:
        UNDATED.write_text(json.dumps(since(), indent=1) + "\n")
    if args.names:
        for name in args.names:
            print(markdown(load(name)["rows"]))
        return
    changed = {p: text for p, text in rendered().items() if not p.is_file() or p.read_text() != text}
    if args.check and changed:
        raise SystemExit(f"not what results/ says: {', '.join(sorted(p.name for p in changed))}; run make results")
    for path, text in changed.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
