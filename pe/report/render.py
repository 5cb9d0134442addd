"""Fill in the templates. Every page is one file that needs no other file.

Every value in it is escaped.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import ceil, floor, log10
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image

from pe.errors import printable
from pe.privacy.certificate_text import factor, found_at_most, guarantee, round_up

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

Line = tuple[str, Sequence[float], Sequence[float]]
"""A curve: its name, its x values, ascending, and as many y values."""

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
        "inlined": inline,
        "prose": prose,
        "round_up": round_up,
        "shown": show,
        "ticks": ticks,
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


def ticks(values: Sequence[float]) -> list[float]:
    """Return round numbers that span `values`, at least two and near five.

    They are whole if all values are.
    """
    low = min(values)
    high = max(values)
    is_whole = all(float(value).is_integer() for value in values)
    if low == high:  # an axis needs a length
        low -= 1 if is_whole else 0.5
        high += 1 if is_whole else 0.5
    raw = (high - low) / 5
    if is_whole:
        raw = max(raw, 1.0)
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    return [step * i for i in range(floor(low / step), ceil(high / step) + 1)]
