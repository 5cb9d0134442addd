"""Fill in the templates: every page is one file that needs nothing else, and every value in it is escaped."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from PIL import Image

from pe.errors import printable
from pe.privacy.words import guarantee, round_up
from pe.report.charts import chart

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def render(template: str, values: Mapping[str, object]) -> str:
    """The page that a file of templates/ makes of `values`; one that it names and is not given is an error."""
    return environment().get_template(template).render(values) + "\n"


@cache
def environment() -> Environment:
    """The templates and their filters; Jinja2 is imported only where a page is made."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("pe.report")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_controls,
    )
    environment.globals["guarantee"] = guarantee
    environment.tests["bytes"] = lambda value: isinstance(value, bytes)
    environment.filters |= {"chart": chart, "inlined": inlined, "prose": prose, "round_up": round_up, "shown": shown}
    return environment


def _without_controls(value: object) -> object:
    """A value as a page shows it: an escape in place of each control character, which no page holds."""
    if not isinstance(value, str) or not _CONTROL.search(value):
        return value
    return type(value)(_CONTROL.sub(lambda found: printable(found[0]), value))


def prose(text: str) -> Markup:
    """Plain text as HTML, in which `…` is code and e^ε a power."""
    from markupsafe import Markup, escape

    marked = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(marked.replace("e^ε", "e<sup>ε</sup>"))  # noqa: S704


def shown(value: float | None, form: str = ",") -> str:
    """A number in the form of `format`; a dash for None."""
    return "–" if value is None else format(value, form)


def inlined(png: bytes) -> tuple[str, int, int]:
    """A PNG file in base64, its width and its height."""
    return base64.b64encode(png).decode(), *Image.open(io.BytesIO(png)).size
