"""Compare the size of the product with its limit: `python docs/budgets.py`, part of `make check`.

Size is counted in nodes of the syntax tree, without imports and docstrings: what a reader must
understand. Layout, comments and long or short lines do not change it. The limit is not raised for a
feature: what it adds is taken out elsewhere.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("pe", "adapters", "embeddings")
LIMIT = 242_000

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def nodes_of(tree: ast.AST) -> int:
    """Return the number of nodes in a tree; whether a name is read or written is none."""
    return sum(not isinstance(node, ast.expr_context) for node in ast.walk(tree))


def size_of(path: Path) -> int:
    """Return the nodes of a file, without imports and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    size = nodes_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            size -= nodes_of(node)
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            size -= 2
    return size


def room_of(path: Path) -> str:
    """`pe/privacy` for pe/privacy/noise.py, `pe` for pe/histogram.py."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: min(2, len(parts) - 1)]) if parts[0] != "embeddings" else "embeddings"


def main() -> int:
    """Print the size of each room; return 1 if the whole is over the limit."""
    rooms: Counter[str] = Counter()
    for top in PRODUCT:
        for path in sorted((ROOT / top).rglob("*.py")):
            rooms[room_of(path)] += size_of(path)
    for room, size in sorted(rooms.items()):
        print(f"{room:<20} {size:>8,} nodes")
    total = rooms.total()
    print(f"{'all':<20} {total:>8,} nodes of {LIMIT:,}")
    if total > LIMIT:
        print(
            f"The product is {total - LIMIT:,} nodes over its limit: take out what it can do "
            "without."
        )
    return int(total > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
