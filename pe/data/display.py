"""HTML for notebooks, as `_repr_html_` returns it.

Names and texts in it are escaped: they are others' data.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_CELL = "padding: 4px 10px; text-align: left; vertical-align: top"


class Page(str):
    """A text of several lines, which a notebook shows as `print` does."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return (
            f'<pre dir="auto" style="font-family: monospace; white-space: '
            f'pre-wrap">{escape(self)}</pre>'
        )


def paragraph(text: str) -> str:
    """Return a paragraph of plain text."""
    return f'<p dir="auto">{escape(text)}</p>'


def png(image: Image) -> bytes:
    """Return an image as a PNG file, as small as it gets."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def picture(png: bytes, description: str) -> str:
    """Return an HTML picture that contains a PNG file.

    The `description` is its alternative text.
    """
    content = base64.b64encode(png).decode()
    return (
        f'<img alt="{escape(description)}" style="max-width: 100%" '
        f'src="data:image/png;base64,{content}">'
    )


def thumbnail(image: Image, description: str, side: int = 96) -> str:
    """Return a picture of at most `side` pixels in height and width."""
    small = image.copy()
    small.thumbnail((side, side))
    return picture(png(small), description)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose head is plain text and whose cells are HTML."""
    top = "".join(f'<th style="{_CELL}">{escape(name)}</th>' for name in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
