"""Compare each room with its budget of lines and files: `python docs/budgets.py`, part of `make check`.

A room that outgrows its budget fails the check. Whoever raises a budget does so in a commit of its own that says what
for.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("pe", "adapters", "embeddings")
BUDGETS: dict[str, tuple[int, int]] = {
    "pe": (1410, 10),
    "pe/cli": (1925, 11),
    "pe/cluster": (480, 3),
    "pe/data": (3280, 18),
    "pe/dispatch": (1010, 5),
    "pe/engine": (3355, 14),
    "pe/evaluation": (4400, 17),
    "pe/fit": (370, 2),
    "pe/nearest": (930, 6),
    "pe/planning": (2760, 10),
    "pe/plugins": (1810, 10),
    "pe/privacy": (2320, 11),
    "pe/private": (3020, 13),
    "pe/recipe": (1400, 6),
    "pe/report": (1540, 8),
    "pe/store": (2305, 10),
    "adapters": (5265, 20),
    "adapters/diffusion": (2780, 12),
    "adapters/http": (2570, 11),
    "adapters/server": (1920, 10),
    "adapters/trained": (6920, 27),
    "embeddings": (1755, 9),
}
"""Room → most lines and files; `pe` and `adapters` stand for the files at their root."""


def room_of(path: Path) -> str:
    """`pe/privacy` for pe/privacy/noise.py, `pe` for pe/histogram.py."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: min(2, len(parts) - 1)]) if parts[0] != "embeddings" else "embeddings"


def sizes() -> dict[str, tuple[int, int]]:
    """Each room's lines and files."""
    rooms: dict[str, tuple[int, int]] = {}
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            lines, files = rooms.get(room_of(path), (0, 0))
            rooms[room_of(path)] = lines + path.read_text(encoding="utf-8").count("\n"), files + 1
    return rooms


def main() -> int:
    """Print the table; return 1 where a room is over its budget or has none."""
    status = 0
    rooms = sizes()
    for room, (lines, files) in rooms.items():
        most_lines, most_files = BUDGETS.get(room, (0, 0))
        is_over = lines > most_lines or files > most_files
        status |= is_over
        mark = "over" if is_over else ""
        print(f"{room:20} {lines:6,} of {most_lines:6,} lines {files:4} of {most_files:3} files {mark}".rstrip())
    lines, files = (sum(size[i] for size in rooms.values()) for i in (0, 1))
    print(f"{'all':20} {lines:6,} lines {files:21} files")
    return status


if __name__ == "__main__":
    sys.exit(main())
