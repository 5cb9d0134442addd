"""The README's Python runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


class Model:
    """What the README calls `my_model`: flat images, of a shade that the seed names."""

    def generate(self, labels: tuple[str, ...], seeds: np.ndarray) -> np.ndarray:
        shades = (seeds % np.uint64(256)).astype(np.uint8)
        return np.broadcast_to(shades[:, None, None, None], (len(labels), 64, 64, 3)).copy()

    def vary(self, images: np.ndarray, degree: float, seeds: np.ndarray) -> np.ndarray:
        moves = degree * ((seeds % np.uint64(101)).astype(float) - 50)
        return np.clip(images + moves[:, None, None, None], 0, 255).astype(np.uint8)


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


def test_the_python_of_the_readme_runs(folders: Path) -> None:
    names: dict[str, object] = {"my_model": Model()}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)
    run = names["run"]
    assert len(run.synthetic) == 1000
    assert run.guarantee["unit"]["name"] == "patient"
    assert (folders / "out" / "certificate.md").read_text().startswith("# Privacy certificate\n")
    assert not (folders / "out" / "confidential").exists()
