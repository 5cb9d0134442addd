"""Public images as a recipe names them."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from adapters.trained.public import Public, Source


def source(named: Any) -> Source:
    """What a recipe's `public` says: a path, or a mapping."""
    found: Source = TypeAdapter(Public).validate_python(named)
    return found
