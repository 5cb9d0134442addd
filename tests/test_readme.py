"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pe

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    rows = ["file,label,patient"]
    (tmp_path / "scans").mkdir()
    (tmp_path / "public").mkdir()
    for i in range(12):
        pixels = rng.integers(0, 256, (70, 66, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "scans" / f"{i}.png")
        Image.fromarray(pixels[::-1]).save(tmp_path / "public" / f"{i}.png")
        rows.append(f"{i}.png,{'benign' if i % 2 else 'malignant'},p{i // 3}")
    (tmp_path / "scans" / "labels.csv").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_of_the_readme_runs(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {}
    monkeypatch.setattr(pe, "evolve", partial(pe.evolve, population=20, iterations=1))
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    run = names["run"]
    assert run.guarantee["unit"]["name"] == "patient"
    assert (folders / "out" / "certificate.md").read_text().startswith("# Privacy certificate\n")
    assert not (folders / "out" / "confidential").exists()
