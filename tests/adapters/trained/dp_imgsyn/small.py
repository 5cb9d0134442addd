"""Small runs of DP-ImgSyn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pe.recipe.schema import Recipe
from tests.adapters.trained.diffusion import small
from tests.adapters.trained.diffusion.small import TRAINING

ALIGNMENT = {"steps": 3, "companions": 12}
PUBLIC = {"kind": "glyphs", "characters": "XMT", "count": 40}


def recipe(path: Path, **changes: Any) -> Recipe:
    api = {"kind": "dp_imgsyn", "public": PUBLIC, "training": TRAINING, "alignment": ALIGNMENT, "device": "cpu"}
    return small.recipe(path, api=api | changes)
