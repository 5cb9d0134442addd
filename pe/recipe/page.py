"""Texts for people, which templates make of values."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pe.errors import printable

if TYPE_CHECKING:
    from jinja2 import Environment


def page(package: str, template: str, **values: Any) -> str:
    """Return the text that the file `template` of `package` makes of `values`.

    It is plain text, where HTML's escapes would be text. A missing value is an error.
    """
    return _environment(package).get_template(template).render(values)


@cache
def _environment(package: str) -> Environment:
    """Return a package's templates, which are compiled once."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701
        loader=PackageLoader(package, ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"as": format, "printable": printable}
    return environment
