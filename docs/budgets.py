"""Compare the code with its limits: `python docs/budgets.py`, part of `make check`.

Size is counted in nodes of the syntax tree, without imports and docstrings: what a reader must
understand. Layout, comments and long or short lines do not change it. The other limits keep the
code readable. No limit is raised for a feature: what it adds is taken out elsewhere.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("pe", "adapters", "embeddings")
LONG = 20
"""Lines of code above which a function needs a comment that says why."""

LIMITS = {
    "nodes": 235_600,
    "characters of an average line of code": 36.2,
    "tuples assigned to tuples, per 1,000 lines": 3.0,
    "walruses, per 1,000 lines": 1.5,
    "long functions without a comment, %": 35.0,
    "semicolons in the first line of a docstring": 100,
    "public names with several homes": 20,
    "optional protocols": 5,
    "classes above each other": 8,
    "words in docs/": 22_000,
    "words in README.md": 600,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function
CALLED_ALWAYS = {"GenerationAPI", "Embedding"}
"""Protocols that every plug-in has: they are not optional."""


def nodes_of(tree: ast.AST) -> int:
    """Return the number of nodes in a tree. Whether a name is read or written is none."""
    return sum(not isinstance(node, ast.expr_context) for node in ast.walk(tree))


@dataclass(frozen=True)
class Source:
    """A file of the product."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes, imports and docstrings included."""
        return list(ast.walk(self.tree))

    @property
    def documented(self) -> list[Documented]:
        """The modules, classes and functions that have a docstring."""
        return [
            node
            for node in self.nodes
            if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None
        ]

    @property
    def size(self) -> int:
        """The number of nodes, without imports and docstrings."""
        imports = (node for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom))
        return nodes_of(self.tree) - sum(map(nodes_of, imports)) - 2 * len(self.documented)

    @cached_property
    def code(self) -> dict[int, str]:
        """Line number → line, of lines that are no docstring, comment, import or blank."""
        docstrings: set[int] = set()
        for node in self.documented:
            first = node.body[0]
            docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        return {
            number: line.strip()
            for number, line in enumerate(self.text.splitlines(), 1)
            if number not in docstrings
            and line.strip()
            and not line.strip().startswith(("#", "import ", "from "))
        }

    def long_functions(self) -> Iterator[bool]:
        """Yield, for each function of more than LONG lines, whether it has a comment."""
        lines = self.text.splitlines()
        for node in self.nodes:
            if isinstance(node, Function):
                numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                own = [lines[number - 1] for number in numbers]
                body = ast.get_docstring(node, clean=False)
                doc = 0 if body is None else len(body.splitlines())
                if len([line for line in own if line.strip()]) - doc > LONG:
                    yield any("# " in line for line in own)


def sources() -> list[Source]:
    """Return the files of the product."""
    return [
        Source(path, path.read_text(encoding="utf-8"))
        for top in PRODUCT
        for path in sorted((ROOT / top).rglob("*.py"))
    ]


def room_of(path: Path) -> str:
    """`pe/privacy` for pe/privacy/noise.py, `pe` for pe/histogram.py."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[: min(2, len(parts) - 1)]) if parts[0] != "embeddings" else "embeddings"


def chain_of(name: str, bases: dict[str, set[str]]) -> int:
    """Return how many classes of the product stand above each other, down to this one."""
    if name not in bases:
        return 0
    return 1 + max((chain_of(base, bases) for base in bases[name] - {name}), default=0)


def figures(files: list[Source]) -> dict[str, float]:
    """Return the figure for each of LIMITS."""
    lines = sum(len(file.code) for file in files)
    nodes = [node for file in files for node in file.nodes]
    packed = [
        node
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    ]
    walruses = [node for node in nodes if isinstance(node, ast.NamedExpr)]
    long = [is_explained for file in files for is_explained in file.long_functions()]
    summaries = [
        (ast.get_docstring(node) or "").partition("\n")[0]
        for file in files
        for node in file.documented
    ]
    homes: defaultdict[str, set[Path]] = defaultdict(set)
    bases: defaultdict[str, set[str]] = defaultdict(set)
    optional = set()
    for file in files:
        for node in file.tree.body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                homes[node.name].add(file.path)
            if isinstance(node, ast.ClassDef):
                plain = (
                    base.value if isinstance(base, ast.Subscript) else base for base in node.bases
                )
                bases[node.name] |= {base.id for base in plain if isinstance(base, ast.Name)}
                if any("runtime_checkable" in ast.unparse(one) for one in node.decorator_list):
                    optional.add(node.name)
    words = sum(
        len(page.read_text(encoding="utf-8").split()) for page in (ROOT / "docs").rglob("*.md")
    )
    return {
        "nodes": sum(file.size for file in files),
        "characters of an average line of code": sum(
            len(line) for file in files for line in file.code.values()
        )
        / lines,
        "tuples assigned to tuples, per 1,000 lines": 1000 * len(packed) / lines,
        "walruses, per 1,000 lines": 1000 * len(walruses) / lines,
        "long functions without a comment, %": 100 * (1 - sum(long) / len(long)),
        "semicolons in the first line of a docstring": sum(";" in one for one in summaries),
        "public names with several homes": sum(len(places) > 1 for places in homes.values()),
        "optional protocols": len(optional - CALLED_ALWAYS),
        "classes above each other": max(chain_of(name, bases) for name in [*bases]),
        "words in docs/": words,
        "words in README.md": len((ROOT / "README.md").read_text(encoding="utf-8").split()),
    }


def main() -> int:
    """Print the size of each room and each figure; return 1 if one is over its limit."""
    files = sources()
    rooms: Counter[str] = Counter()
    for file in files:
        rooms[room_of(file.path)] += file.size
    for room, size in sorted(rooms.items()):
        print(f"{room:<20} {size:>8,} nodes")
    found = figures(files)
    over = 0
    for name, limit in LIMITS.items():
        is_over = found[name] > limit
        over += is_over
        print(
            f"{name:<45} {found[name]:>11,.1f} of {limit:>9,} {'OVER ITS LIMIT' if is_over else ''}"
        )
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
