"""Small line charts as inline SVG: they take their colours from the page, so they follow light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

_WIDTH, _HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 40


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        name: in the legend.
        xs: ascending.
        ys: as many.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


def line_chart(
    title: str, lines: Sequence[Line], x_name: str, y_name: str, *, level: tuple[str, float] | None = None
) -> str:
    """An SVG figure with a legend.

    Args:
        title: what it shows, also for those who cannot see it.
        lines: at least one, each of at least one point; colours go from pale to strong in their order.
        x_name: of the horizontal axis.
        y_name: of the vertical axis.
        level: a name and a height at which a dashed line lies.
    """
    xs = [x for line in lines for x in line.xs]
    ys = [y for line in lines for y in line.ys] + ([level[1]] if level else [])
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(*ys, 0.0), max(*ys, 0.0))
    frame = _Frame(x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1])
    parts = [_grid(frame, x_ticks, y_ticks)]
    if level:
        y = frame.y(level[1])
        parts.append(f'<line class="level" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="note" x="{_WIDTH - _RIGHT}" y="{y - 5:.1f}" text-anchor="end">{escape(level[0])}</text>'
        )
    for i, line in enumerate(lines):
        parts.append(_curve(frame, line, _strength(i, len(lines))))
    legend = "".join(
        f'<li><span class="swatch" style="--w:{_strength(i, len(lines))}%"></span>{escape(line.name)}</li>'
        for i, line in enumerate(lines)
    )
    across, down = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    axes = (
        f'<text class="axis" x="{across}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x_name)}</text>'
        f'<text class="axis" transform="translate(12 {down}) rotate(-90)" text-anchor="middle">{escape(y_name)}</text>'
    )
    label = escape(title, quote=True)
    return (
        f'<figure class="chart"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(parts)}{axes}</svg><figcaption>{escape(title)}"
        + (f'<ul class="legend">{legend}</ul>' if len(lines) > 1 else "")
        + "</figcaption></figure>"
    )


@dataclass(frozen=True)
class _Frame:
    """From data to the picture's coordinates."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x0) / ((self.x1 - self.x0) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - self.y0) / ((self.y1 - self.y0) or 1) * (_HEIGHT - _TOP - _BOTTOM)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that span from `low` to `high`: at least two."""
    if high <= low:
        low, high = low - 0.5, low + 0.5
    raw = (high - low) / about
    power = 10.0 ** floor(log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    first, last = floor(low / step), -floor(-high / step)
    return [step * i for i in range(first, last + 1)]


def _grid(frame: _Frame, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> str:
    horizontal = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{frame.y(y):.1f}" y2="{frame.y(y):.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{frame.y(y) + 4:.1f}" text-anchor="end">{_number(y)}</text>'
        for y in y_ticks
    )
    vertical = "".join(
        f'<text class="tick" x="{frame.x(x):.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{_number(x)}</text>'
        for x in x_ticks
    )
    return horizontal + vertical


def _curve(frame: _Frame, line: Line, strength: int) -> str:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(line.xs, line.ys, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = ""
    if len(points) <= 20:
        marks = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in points)
    return f'<g class="curve" style="--w:{strength}%"><polyline points="{path}"/>{marks}</g>'


def _strength(i: int, count: int) -> int:
    """How much of the accent colour curve i has, per cent."""
    return 100 if count == 1 else round(35 + 65 * i / (count - 1))


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) >= 1e-9 else "0"
