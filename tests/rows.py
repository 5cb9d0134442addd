"""The modality of examples/rows.py, as somebody's package brings it: known by entry points alone."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pe.data import samples

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "write-your-own.md").read_text(encoding="utf-8")
MODALITY = (ROOT / "examples" / "rows.py").read_text(encoding="utf-8")
FITTED = (ROOT / "examples" / "noisy_means.py").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The one example, on the page or in a file of its own, that defines a class."""
    (found,) = (
        each
        for each in (*re.findall(r"```python\n(.*?)```", PAGE, re.S), MODALITY, FITTED)
        if f"class {name}" in each
    )
    return str(found)


def defined(name: str) -> Any:
    names: dict[str, Any] = {"__name__": name}
    exec(compile(block(name), "write-your-own.md", "exec", dont_inherit=True), names)
    return names[name]


def site(folder: Path, entry_points: str) -> str:
    """A folder of packages with one that brings these plug-ins."""
    info = folder / "site" / "somebody_s-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody_s\nVersion: 1\n")
    (info / "entry_points.txt").write_text(entry_points)
    return str(info.parent)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe over 1,900 private rows; 100 more are for a test."""
    (points,) = (
        each for each in re.findall(r"```toml\n(.*?)```", PAGE, re.S) if "pe.modalities" in each
    )
    groups = tomllib.loads(points)["project"]["entry-points"]
    lines = [
        f"[{group}]\n{name} = {value}"
        for group, named in groups.items()
        for name, value in named.items()
    ]
    monkeypatch.syspath_prepend(site(tmp_path, "\n".join(lines)))
    (tmp_path / "site" / "rows.py").write_text(MODALITY)
    monkeypatch.setattr(samples, "_modalities", {})
    rows = np.random.default_rng(0).normal(2, 0.2, (2000, 2))
    np.save(tmp_path / "rows.npy", rows[:1900])
    np.save(tmp_path / "test.npy", rows[1900:])
    content = {
        "private": {"kind": "row_file", "path": str(tmp_path / "rows.npy"), "declared_size": 2000},
        "api": {"kind": "normal"},
        "privacy": {"epsilon": 8, "delta": 1e-5},
        "evolution": {"iterations": 3, "population": 60, "degree": [0.5, 0.3, 0.1]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "recipe.yaml"
