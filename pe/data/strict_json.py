"""JSON that every reader reads alike: no key twice, no infinite number."""

from __future__ import annotations

import json
import math
from typing import Any

_DIGITS = 20
"""Digits of the longest whole number that is read."""


def unlike(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return `pairs` as a mapping, for json's `object_pairs_hook`.

    Raises:
        ValueError: a key comes twice.
    """
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key comes twice")
    return content


def json_object(text: str) -> dict[str, Any]:
    """Return the object that `text` holds.

    Raises:
        ValueError: it is no object, a key comes twice, or a number is infinite or too long.
    """
    try:
        values = json.loads(
            text,
            parse_float=_number,
            parse_int=_whole,
            parse_constant=_number,
            object_pairs_hook=unlike,
        )
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(values, dict):
        raise ValueError("no object")
    return values


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(digits)
    return value


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(digits)
    return int(digits)
