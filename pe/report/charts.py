"""Small line charts: where everything lies; templates/parts.html draws it."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import NamedTuple

Line = tuple[str, Sequence[float], Sequence[float]]
"""A curve: its name, its x, ascending, and as many y."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 548, 12, 200  # of the plot in a picture of 560 × 240


class Chart(NamedTuple):
    """Where things lie in the picture.

    Attributes:
        x_ticks: places of the horizontal axis, and their numbers.
        y_ticks: likewise of the vertical one.
        curves: of each line its name, how much of the accent colour it has, in per cent, and its points.
    """

    x_ticks: list[tuple[float, float]]
    y_ticks: list[tuple[float, float]]
    curves: list[tuple[str, int, list[tuple[float, float]]]]


def chart(lines: Sequence[Line]) -> Chart:
    """A chart of lines of at least one point each; colours go from pale to strong in their order."""
    every_x, every_y = [x for _, xs, _ in lines for x in xs], [0.0, *(y for *_, ys in lines for y in ys)]
    x_ticks, y_ticks = (ticks(min(each), max(each), whole=_are_whole(each)) for each in (every_x, every_y))

    def x(value: float) -> float:
        return round(_LEFT + (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (_RIGHT - _LEFT), 1)

    def y(value: float) -> float:
        return round(_BOTTOM - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (_BOTTOM - _TOP), 1)

    last = len(lines) - 1
    curves = [
        (name, round(35 + 65 * i / last) if last else 100, [(x(a), y(b)) for a, b in zip(xs, ys, strict=True)])
        for i, (name, xs, ys) in enumerate(lines)
    ]
    return Chart([(x(value), value) for value in x_ticks], [(y(value), value) for value in y_ticks], curves)


def _are_whole(values: Sequence[float]) -> bool:
    return all(float(value).is_integer() for value in values)


def ticks(low: float, high: float, about: int = 5, whole: bool = False) -> list[float]:
    """Round numbers that span from `low` to `high`: at least two; whole ones alone for what is counted."""
    half = 1.0 if whole else 0.5
    if high <= low:
        low, high = low - half, low + half
    raw = max((high - low) / about, 1.0 if whole else 0.0)
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = floor(low / step), -floor(-high / step)
    return [step * i for i in range(first, last + 1)]
