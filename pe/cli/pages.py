"""What commands print: values as JSON, or as the page that a template makes of the same values."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import aligned

if TYPE_CHECKING:
    from jinja2 import Environment

_WIDTH = 110  # of a paragraph


def print_result(values: Mapping[str, Any], template: str, as_json: bool, **more: Any) -> None:
    """Print `values` as JSON, or as the page of a template, which may use `more` besides."""
    click.echo(json.dumps(values) if as_json else page(template, {**values, **more}))


def page(template: str, values: Mapping[str, Any]) -> str:
    """Return the text that a file of templates/ makes of `values`. A missing value is an error."""
    return _environment().get_template(f"{template}.txt").render(values).rstrip("\n")


@cache
def _environment() -> Environment:
    """Return the templates and their filters. Jinja2 is imported only to print a page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from pe.errors import quoted
    from pe.privacy.words import NO_EPSILON, guarantee, round_up

    # plain text for a terminal, where HTML's escapes would be text
    environment = Environment(  # noqa: S701
        loader=PackageLoader("pe.cli"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "aligned": lambda rows: "\n".join(aligned(rows)),
        "as": format,
        "bold": lambda text: click.style(text, bold=True),
        "quoted": quoted,
        "round_up": round_up,
        "wrapped": _wrap,
    }
    environment.globals |= {"guarantee": guarantee, "no_epsilon": NO_EPSILON}
    return environment


def _wrap(text: str, indent: int = 0, first: str = "") -> str:
    """Break paragraphs into lines.

    A paragraph's first line begins with `first`, and its others are indented.
    """
    spaces = " " * indent
    return "\n\n".join(
        textwrap.fill(
            one, _WIDTH, initial_indent=first, subsequent_indent=spaces, break_on_hyphens=False
        )
        for one in text.split("\n\n")
    )
