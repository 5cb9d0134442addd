"""The house is as docs/architecture.md draws it."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import ModuleType

import grimp

DOCS = Path(__file__).parent.parent / "docs"


def test_the_picture_of_the_rooms_is_that_of_the_code() -> None:
    drawn = run_path(str(DOCS / "rooms.py"))
    assert drawn["PICTURE"].read_text(encoding="utf-8") == drawn["draw"](), "python docs/rooms.py"


def test_no_file_lies_on_a_circle_of_imports() -> None:
    graph = grimp.build_graph("pe", "adapters", "embeddings", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert (
        len(list(TopologicalSorter(imports).static_order())) > 150
    )  # a CycleError names the files


def test_what_a_benchmark_imports_is_there() -> None:
    missing = [
        f"{path.name}: {node.module}.{name.name}"
        for path in sorted((DOCS.parent / "benchmarks").glob("*.py"))
        if path.name not in ("dpsda_worker.py", "tables_dpsda.py")  # their `pe` is DPSDA's
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("pe.", "adapters.", "embeddings."))
        for name in node.names
        if not _is_there(import_module(node.module or ""), name.name)
    ]
    assert missing == []


def _is_there(module: ModuleType, name: str) -> bool:
    """Whether a module defines a name, or is a package with a module of that name."""
    return hasattr(module, name) or (
        hasattr(module, "__path__") and find_spec(f"{module.__name__}.{name}") is not None
    )
