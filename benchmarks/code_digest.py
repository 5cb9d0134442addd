"""A digest of the code that a cell of methods.py was measured by, so that one by other code can be named."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLUGINS = ("adapters", "embeddings")
ENGINE = ("pe.evolution", "pe.histogram", "pe.lookahead", "pe.selection", "pe.steps", "embeddings.pixels")


@lru_cache
def code_digest(*kinds: str) -> str:
    """Of adapters' modules and all of adapters/ and embeddings/ that they import, with the engine's loop."""
    named = {one.module for kind in kinds for one in entry_points(group="pe.adapters", name=kind)}
    open_, seen = {*ENGINE, *named}, set[str]()
    while open_:
        seen.add(module := open_.pop())
        open_ |= {name for name in imported(module) if name.split(".")[0] in PLUGINS} - seen
    sources = b"".join(file_of(module).read_bytes() for module in sorted(seen))
    return hashlib.sha256(sources).hexdigest()[:8]


def imported(module: str) -> set[str]:
    """The modules of this repository that a module imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(file_of(module).read_text(encoding="utf-8"))))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    names = {name for node in froms for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names))}
    names |= {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    return {name for name in names if name and file_of(name).is_file()}


def file_of(module: str) -> Path:
    """A module's file, or its package's."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
