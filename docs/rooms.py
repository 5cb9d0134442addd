"""The picture of the rooms, drawn from the code's own imports: `python docs/rooms.py` writes
docs/images/rooms.svg.

A room stands above all that it imports. An arrow stands for imports, and is left out where a way
over other rooms leads there, too. The tests compare the file with what is drawn here.
"""

from __future__ import annotations

from graphlib import TopologicalSorter
from itertools import pairwise
from math import fsum
from pathlib import Path

import grimp

PICTURE = Path(__file__).parent / "images" / "rooms.svg"

PACKAGES = ("pe", "adapters", "embeddings")
BELOW_ALL = {"errors", "version", "progress"}
"""Files that nearly every room imports: drawn on the ground, without arrows."""

_WIDTH, _HEIGHT, _GAP, _ROW, _MARGIN = 118, 34, 22, 78, 24
_STYLE = (
    "text{font:13px system-ui,sans-serif;text-anchor:middle;dominant-baseline:central;fill:#1b1f24}"
    "rect{fill:#eef2f7;stroke:#8c9bb0}.file rect{fill:#fff7e6;stroke:#d0a647}.plugin "
    "rect{fill:#eaf6ec;stroke:#7fb489}"
    "path{fill:none;stroke:#8c9bb0;stroke-width:1.2;marker-end:url(#end)}"
)

Graph = dict[str, set[str]]


def rooms() -> tuple[Graph, set[str]]:
    """Each room's imports of other rooms, and which rooms are single files."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports: Graph = {}
    for module in graph.modules:
        room = _room(module)
        others = {_room(each) for each in graph.find_modules_directly_imported_by(module)}
        imports.setdefault(room, set()).update(others - {room, "pe"})
    del imports["pe"]  # the face: it hands names on
    return imports, {
        room for room in imports.keys() - set(PACKAGES) if not graph.find_children(f"pe.{room}")
    }


def _room(module: str) -> str:
    package, *inner = module.split(".")
    return inner[0] if package == "pe" and inner else package


def reduced(imports: Graph) -> Graph:
    """Without the arrows whose two ends another way joins, and without those to the ground."""
    kept = {room: others - BELOW_ALL for room, others in imports.items() if room not in BELOW_ALL}
    reach: Graph = {}
    for room in TopologicalSorter(kept).static_order():
        reach[room] = (
            set().union(*({other} | reach[other] for other in kept[room])) if kept[room] else set()
        )
    return {
        room: {other for other in others if not any(other in reach[third] for third in others)}
        for room, others in kept.items()
    }


def floors(arrows: Graph) -> tuple[list[list[str]], list[list[str]]]:
    """The rooms from the top floor down, and the arrows, each as the places that it passes.

    An arrow that passes floors has a place of its own on each, `room>other`, so that it runs beside
    the rooms.
    """
    height: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():
        height[room] = 1 + max((height[other] for other in arrows[room]), default=-1)
    rows = [
        sorted(room for room in height if height[room] == floor)
        for floor in range(max(height.values()) + 1)
    ]
    ways = []
    for room in sorted(arrows):
        for other in sorted(arrows[room]):
            passed = [
                f"{room}>{other}>{floor}" for floor in range(height[room] - 1, height[other], -1)
            ]
            for floor, place in zip(
                range(height[room] - 1, height[other], -1), passed, strict=True
            ):
                rows[floor].append(place)
            ways.append([room, *passed, other])
    rows.reverse()
    _untangle(rows, [pair for way in ways for pair in pairwise(way)])
    return rows, ways


def _untangle(rows: list[list[str]], steps: list[tuple[str, str]]) -> None:
    """Order each floor by where its neighbours above, then below, stand; the plug-ins' packages to
    the right.
    """
    above: Graph = {}
    below: Graph = {}
    for upper, lower in steps:
        above.setdefault(lower, set()).add(upper)
        below.setdefault(upper, set()).add(lower)
    for neighbours, order in (
        (above, rows),
        (below, rows[::-1]),
        (above, rows),
        (below, rows[::-1]),
        (above, rows),
    ):
        place = {name: x / max(1, len(row) - 1) for row in rows for x, name in enumerate(row)}
        for row in order:
            centre = {
                name: fsum(place[each] for each in near) / len(near)
                if (near := neighbours.get(name))
                else place[name]
                for name in row
            }
            row.sort(key=lambda name: (name in PACKAGES, centre[name], name))
            place |= {
                name: x / max(1, len(row) - 1) if len(row) > 1 else 0.5
                for x, name in enumerate(row)
            }


def draw() -> str:
    """The picture, as SVG."""
    imports, files = rooms()
    rows, ways = floors(reduced(imports))
    rows.append(sorted(BELOW_ALL & imports.keys()))
    width = 2 * _MARGIN + max(sum(_wide(name) + _GAP for name in row) - _GAP for row in rows)
    at: dict[str, tuple[float, float]] = {}
    for y, row in enumerate(rows):
        x = (width - sum(_wide(name) + _GAP for name in row) + _GAP) / 2
        for name in row:
            at[name] = x + _wide(name) / 2, _MARGIN + y * _ROW
            x += _wide(name) + _GAP
    height = 2 * _MARGIN + len(rows) * _ROW - (_ROW - _HEIGHT)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}">',
            f"<style>{_STYLE}</style>",
            '<marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto">'
            '<polygon points="0,0 8,4 0,8" fill="#8c9bb0"/></marker>',
            f'<rect width="{width}" height="{height}" style="fill:#fff;stroke:none"/>',
            *(_arrow([at[place] for place in way]) for way in ways),
            *(_box(name, *at[name], name in files) for name in sorted(at) if ">" not in name),
            "</svg>\n",
        ]
    )


def _wide(name: str) -> int:
    return 0 if ">" in name else _WIDTH


def _arrow(places: list[tuple[float, float]]) -> str:
    bend = (_ROW - _HEIGHT) * 0.7
    path = f"M{places[0][0]:g},{places[0][1] + _HEIGHT:g}"
    for (x, y), (to_x, to_y) in pairwise(places):
        path += f" C{x:g},{y + _HEIGHT + bend:g} {to_x:g},{to_y - bend:g} {to_x:g},{to_y:g}"
        if (to_x, to_y) != places[-1]:
            path += f" L{to_x:g},{to_y + _HEIGHT:g}"
    return f'<path d="{path}"/>'


def _box(room: str, x: float, y: float, file: bool) -> str:
    kind = "plugin" if room in PACKAGES else "file" if file else "room"
    name = f"{room}/" if kind != "file" else f"{room}.py"
    return (
        f'<g class="{kind}"><rect x="{x - _WIDTH / 2:g}" y="{y:g}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" rx="6"/>'
        f'<text x="{x:g}" y="{y + _HEIGHT / 2:g}">{name}</text></g>'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
