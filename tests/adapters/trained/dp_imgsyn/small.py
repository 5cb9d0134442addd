"""Small runs of DP-ImgSyn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from adapters.glyphs import Glyphs
from pe.plugins.protocols import RandomRequest
from pe.recipe.schema import Recipe

SIDE, CLASSES, COUNT = 8, ("ell", "oh"), 24
SHAPE = (SIDE, SIDE, 1)
CPU = torch.device("cpu")
TRAINING = {"steps": 4, "block": 2, "expected_batch": COUNT, "draws": 2, "micro_batch": COUNT}
ALIGNMENT = {"steps": 3, "companions": 12}
PUBLIC = {"kind": "glyphs", "characters": "XMT", "count": 40}


def private_file(folder: Path) -> Path:
    labels = np.arange(COUNT) % 2
    seeds = np.random.default_rng(5).integers(0, 2**63, COUNT).astype(np.uint64)
    images = Glyphs(size=SIDE).random_api(RandomRequest(tuple("LO"[label] for label in labels), seeds)).samples.array
    np.savez(folder / "private.npz", images=images, labels=np.array(CLASSES)[labels])
    return folder / "private.npz"


def recipe(path: Path, iterations: int = 0, **api: Any) -> Recipe:
    common = {"kind": "dp_imgsyn", "public": PUBLIC, "training": TRAINING, "alignment": ALIGNMENT, "device": "cpu"}
    return Recipe.parse(
        {
            "private": {
                "kind": "npz",
                "path": path,
                "size": SIDE,
                "channels": 1,
                "classes": list(CLASSES),
                "declared_size": COUNT,
            },
            "api": common | ({"fit": {"budget_share": 0.6}} if iterations else {}) | api,
            "embedding": {"kind": "pixels", "size": SIDE},
            "privacy": {"epsilon": 8, "delta": 1e-3},
            "evolution": {"iterations": iterations, "population": 8, "lookahead": 0, "degree": 0.5},
        },
        "the test",
    )


def asked(count: int = 6) -> RandomRequest:
    return RandomRequest(tuple(CLASSES[i % 2] for i in range(count)), np.arange(count, dtype=np.uint64))
