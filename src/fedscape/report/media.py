"""Sections on images and sequences: what is inside them, by sums; no row is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscape.errors import plural
from fedscape.report import figures as draw
from fedscape.report.parts import card
from fedscape.report.words import About, between, number, percent, safe

if TYPE_CHECKING:
    from fedscape.studies.schema import Result

_TILE = 6  # pixels of a tile
_SHADES = 10


def tiles(shades: list[list[int]], label: str) -> str:
    """A mean image as squares, one path for each shade: black to white, in a dark page too."""
    size = _TILE * len(shades)
    paths = []
    for shade in range(1, _SHADES):
        squares = "".join(
            f"M{_TILE * j} {_TILE * i}h{_TILE}v{_TILE}h-{_TILE}z"
            for i, row in enumerate(shades)
            for j, value in enumerate(row)
            if value == shade
        )
        if squares:
            paths.append(f'<path d="{squares}" fill="#fff" fill-opacity="{shade / (_SHADES - 1):.2f}"/>')
    return (
        f'<svg class="tiles" role="img" aria-label="{safe(label)}" viewBox="0 0 {size} {size}" width="{size}" '
        f'height="{size}"><path d="M0 0h{size}v{size}h-{size}z"/>{"".join(paths)}</svg>'
    )


def images(result: Result) -> tuple[str, str, str] | None:
    """Brightness, contrast and mean images, where the data are images."""
    about: About = result.get("images", {})
    if not about:
        return None
    shape = " x ".join(str(n) for n in about["shape"])
    rows = [{"name": name, "about": about[name.lower()], "kind": 0} for name in ("Brightness", "Contrast")]
    reading = (
        "Mean over clients of the mean and of the standard deviation of an image's pixels, where the brightest pixel "
        f"is 1. Of the differences between images, {percent(about['alike'][0])} in brightness and "
        f"{percent(about['alike'][1])} in contrast lie between clients: other cameras, pens or light."
    )
    cards = [card("Light", draw.forest(rows, low=0.0, high=1.0), reading, path="images", anchor="light")]
    if about["means"]:
        pictures = "".join(
            f"<figure>{tiles(m['shades'], 'Mean image of ' + m['category'])}<figcaption>{safe(m['category'])}"
            f"</figcaption></figure>"
            for m in about["means"]
        )
        reading = (
            f"The {plural(len(about['means']), 'commonest category', 'commonest categories')}; the brightest tile of "
            "all is white. Each is a mean over five clients or more, at least 50 images, at most half of them "
            "of one client. No image of a single row is in this file."
        )
        grid = f'<div class="means">{pictures}</div>'
        cards.append(card("Mean image of a category", grid, reading, path="images.means", anchor="means"))
    content = f"<h2>Images</h2><p>The column {safe(about['column'])}: images of {shape}.</p>"
    return "images", "Images", f"{content}<div class='grid'>{''.join(cards)}</div>"


def sequences(result: Result) -> tuple[str, str, str] | None:
    """How well the next character is predicted, where the data are texts."""
    about: About = result.get("sequences", {})
    if not about:
        return None
    rows = [
        {
            "name": model["called"],
            "about": model["bits"],
            "kind": 0,
            "note": f"perplexity {2 ** model['bits']['value']:.1f}",
        }
        for model in about["models"]
    ]
    low, high = draw.span([row["about"] for row in rows], 0.0)
    best = min(about["models"], key=lambda model: model["bits"]["value"])
    own, common = about["models"][2]["bits"], about["models"][1]["bits"]
    more = common["value"] - own["value"]
    reading = (
        "Bits per character on rows held out, mean over clients. The perplexity beside it is 2 to that power: the "
        "number of equally likely characters that are as hard to guess. "
        f"Best: {best['called']}, {number(best['bits']['value'], 2)} bits "
        f"({between(best['bits'])}). A client's own habits say {f'{more:.2f} bits' if more >= 0.005 else 'no'} more "
        "than how common a character is among all."
    )
    figure, title = draw.forest(rows, low=low, high=high), "How well is the next character predicted?"
    content = (
        f"<h2>Sequences</h2><p>The column {safe(about['column'])}: the {plural(about['context'], 'character')} before "
        f"the one to predict, of an alphabet of {about['letters']}. Counts are sums over clients; no text is in this "
        f"file.</p><div class='grid'>{card(title, figure, reading, path='sequences', wide=True, anchor='bits')}</div>"
    )
    return "sequences", "Sequences", content
