"""What a page says about single clients, and what it hides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.errors import plural
from fedscape.report.words import safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result

_OTHER = "(all other)"


def _sites(result: Result) -> bool:
    """Whether every site has a row of its own."""
    return "joining" in result.get("learn", {})


def hidden(result: Result) -> list[str]:
    """What a page that is made to be shared leaves out, one line each; empty for one that names clients."""
    if result["about"]["show_clients"]:
        return []
    clients, learn = result["describe"]["clients"], result.get("learn")
    lines = [
        f"The ids of {plural(clients, 'client')}: on the map they have numbers, in the order of their places there.",
        "How many rows a single client has: sizes are ranges between powers of two, also that of the largest.",
        "The labels of single clients: only sums over all, means of kinds, and places on a map, which say roughly who "
        "is like whom.",
        "The smallest and largest value of a column, and the values of single rows that a remark is about.",
    ]
    if _OTHER in result["describe"]["categories"]["names"]:
        lines.append(f"Categories that fewer than five clients have: they are together as {_OTHER!r}.")
    if learn is not None and not learn["sites"]:
        lines.append(
            f"The accuracy of each of {plural(learn['clients'], 'client')}: only means, the worst tenth and kinds of "
            "five or more."
        )
        withheld = len(result["model"]["components"]) - len(learn["by_kind"])
        if withheld:
            lines.append(
                f"The accuracy of {plural(withheld, 'kind')} of clients with fewer than five in the tournament."
            )
    if "images" in result:
        lines.append("Every image: only means of categories over five clients and 50 images or more, in coarse tiles.")
    if "sequences" in result:
        lines.append("Every text: only how well the next character is predicted, mean over clients.")
    if _sites(result):
        lines.append("The names of the sites: they are numbered, those that gain the most first.")
    if (periods := result.get("time")) and periods["withheld"]:
        lines.append(f"{plural(periods['withheld'], periods['period']).capitalize()} with fewer than five clients.")
    if "presence" in result:
        lines.append(
            "When a single client was there: only shares of all and of kinds of five or more, by hour of the day."
        )
    return lines


def sharing_line(result: Result) -> str:
    """One line at the top: whether the page is made to be shared, with a link to what it hides."""
    if result["about"]["show_clients"]:
        return (
            '<p class="card warn">This report names clients and has a row for each: it was made with '
            "<code>--show-clients</code> and is not meant to be shared. Without it the same study makes a page that "
            "hides them.</p>"
        )
    what = "no ids or exact sizes of clients" + ("" if _sites(result) else ", no accuracy of a single one")
    return f'<p class="shared">Made to be shared: {what}. <a href="#hidden">What this page hides</a></p>'


def sharing_card(result: Result) -> str:
    """What is hidden, line by line, and what is not."""
    lines = hidden(result)
    if not lines:
        text = "<p>Nothing: ids, sizes and accuracies of all clients are in this file. Do not share it.</p>"
    else:
        items = "".join(f"<li>{safe(line)}</li>" for line in lines)
        sites = "each site's accuracy is shown, under its number; " if _sites(result) else ""
        text = (
            f'<ul class="notes">{items}</ul><p class="reading">Not hidden: {sites}everything else is exact, without '
            "noise. With few clients, or kinds of one client, sums are still about few people: look before you share."
            "</p>"
        )
    return f'<div class="card" id="hidden"><h3>What this page hides</h3>{text}</div>'
