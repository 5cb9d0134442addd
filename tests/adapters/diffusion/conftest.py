"""For all tests of local diffusion models."""

from __future__ import annotations

import pytest
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen-Image-Edit enlarges each parent to a megapixel, whatever it is asked for; here to a sixteenth of one."""
    enlarged = pipeline_qwenimage_edit.calculate_dimensions

    def smaller(area: int, ratio: float) -> tuple[int, int, None]:
        found: tuple[int, int, None] = enlarged(area // 16, ratio)
        return found

    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", smaller)
