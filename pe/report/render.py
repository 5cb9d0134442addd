"""Fill in the templates. Every page is one file that needs no other file.

Every value in it is escaped.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import floor, log10
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from pe.errors import printable
from pe.privacy.words import factor, found_at_most, guarantee, round_up

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

Line = tuple[str, Sequence[float], Sequence[float]]
"""A curve: its name, its x values, ascending, and as many y values."""

# of the plot in a picture of 560 × 240
_LEFT = 52
_RIGHT = 548
_TOP = 12
_BOTTOM = 200
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def render(template: str, values: Mapping[str, object]) -> str:
    """Return the page that a file of templates/ makes of `values`. A missing value is an error."""
    return environment().get_template(template).render(values) + "\n"


class Link(NamedTuple):
    """A link to another page. `is_hidden` until the page's script shows it."""

    to: str
    text: str
    is_here: bool = False
    is_hidden: bool = False


def link_page(page: str, nonce: str, links: Sequence[Link]) -> str:
    """Return a page as a server sends it, with `links` above it.

    Its one script, which comes last, has `nonce`.
    """
    before, _, script = page.rpartition("<script>")
    nav = environment().get_template("nav.html").render(links=links) if links else ""
    return f'{before.replace("<main>", f"<main>{nav}", 1)}<script nonce="{nonce}">{script}'


@cache
def environment() -> Environment:
    """Return the templates and their filters. Jinja2 is imported only to make a page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_controls,
    )
    environment.globals |= {
        "factor": factor,
        "found_at_most": found_at_most,
        "guarantee": guarantee,
    }
    environment.tests["bytes"] = lambda value: isinstance(value, bytes)
    environment.filters |= {
        "chart": chart,
        "inlined": inline,
        "prose": prose,
        "round_up": round_up,
        "shown": show,
    }
    return environment


def _without_controls(value: object) -> object:
    """Replace control characters, which no page holds, by escapes."""
    if not isinstance(value, str) or not _CONTROL.search(value):
        return value
    return type(value)(_CONTROL.sub(lambda match: printable(match[0]), value))


def prose(text: str) -> Markup:
    """Return plain text as HTML, in which `…` is code and e^ε a power."""
    from markupsafe import Markup, escape

    html = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(html.replace("e^ε", "e<sup>ε</sup>"))  # noqa: S704


def show(value: float | None, form: str = ",") -> str:
    """Return a number in the form of `format`. A dash for None."""
    return "–" if value is None else format(value, form)


def inline(png: bytes) -> tuple[str, int, int]:
    """Return a PNG file in base64, its width and its height."""
    return base64.b64encode(png).decode(), *Image.open(io.BytesIO(png)).size


class Chart(NamedTuple):
    """Places in the picture of a small line chart, which templates/parts.html draws."""

    x_ticks: list[tuple[float, float]]  # places of the horizontal axis, and their numbers
    y_ticks: list[tuple[float, float]]  # places of the vertical axis, and their numbers
    curves: list[
        tuple[str, int, list[tuple[float, float]]]
    ]  # name, per cent of the accent colour, points


def chart(lines: Sequence[Line]) -> Chart:
    """Lay out lines of at least one point each. Colours go from pale to strong in their order."""
    every_x = [x for _, xs, _ in lines for x in xs]
    every_y = [0.0, *(y for *_, ys in lines for y in ys)]
    x_ticks, y_ticks = (
        ticks(min(values), max(values), whole=all(float(value).is_integer() for value in values))
        for values in (every_x, every_y)
    )

    def x(value: float) -> float:
        return round(
            _LEFT + (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (_RIGHT - _LEFT), 1
        )

    def y(value: float) -> float:
        return round(
            _BOTTOM - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (_BOTTOM - _TOP), 1
        )

    last = len(lines) - 1
    curves = [
        (
            name,
            round(35 + 65 * i / last) if last else 100,
            [(x(a), y(b)) for a, b in zip(xs, ys, strict=True)],
        )
        for i, (name, xs, ys) in enumerate(lines)
    ]
    return Chart(
        [(x(value), value) for value in x_ticks], [(y(value), value) for value in y_ticks], curves
    )


def ticks(low: float, high: float, about: int = 5, whole: bool = False) -> list[float]:
    """Return round numbers that span `low` to `high`, at least two and near `about`.

    They are whole if `whole`.
    """
    half = 1.0 if whole else 0.5
    if high <= low:
        low, high = low - half, low + half
    raw = max((high - low) / about, 1.0 if whole else 0.0)
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first = floor(low / step)
    last = -floor(-high / step)
    return [step * i for i in range(first, last + 1)]
