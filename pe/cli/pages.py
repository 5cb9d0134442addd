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
    """Return the templates and their filters."""
    from pe.errors import printable, quoted
    from pe.privacy.certificate_text import text_pages

    environment = text_pages("pe.cli")
    environment.filters |= {
        "aligned": lambda rows: "\n".join(aligned(rows)),
        "as": format,
        "bold": lambda text: click.style(text, bold=True),
        "printable": printable,
        "quoted": quoted,
        "wrapped": _wrap,
    }
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
