"""A small run, on Ray or not; what is compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pe.engine.execution import Surroundings, run_recipe
from pe.histogram import PrivateWork
from pe.planning.build import object_kind
from pe.plugins.protocols import Embedding
from pe.privacy.noise import UnsafeSeededNoise
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests.generators import Shades

SMALL = 2**10
"""Bytes of a shard: 16 of these images' vectors."""


def content(data: Path, **evolution: object) -> dict[str, object]:
    """A recipe over images of several patients."""
    source = {"kind": "npz", "path": str(data), "size": 4, "channels": 1, "classes": ["a", "b"], "declared_size": 80}
    return {
        "private": {**source, "privacy_unit": "patient", "declared_units": 9},
        "api": {"kind": object_kind(Shades())},
        "embedding": {"kind": "pixels", "size": 4, "blur": 0, "batch_size": 16},
        "privacy": {"epsilon": 20, "delta": 1e-5, "relation": "replace_one"},
        "evolution": {"iterations": 2, "population": 12, "lookahead": 0, "neighbors": 3, **evolution},
    }


def some(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 250, (count, 4, 4, 1), dtype=np.uint8), rng.integers(0, 2, count)


def write_private(folder: Path, count: int = 90) -> Path:
    """The file of `count` records; a ninth of them is a patient, with records in every block and shard."""
    images, labels = some(count)
    file = folder / "private.npz"
    np.savez(file, images=images, labels=np.array(["a", "b"])[labels], patient=np.arange(count) % 9)
    return file


def carry_out(recipe: Recipe, out: Path, work: PrivateWork, embedding: Embedding | None = None) -> Run:
    """The run, with the same noise each time."""
    return run_recipe(
        recipe, out, Surroundings(api=Shades(), embedding=embedding, noise=UnsafeSeededNoise(1), work=work)
    )


def released(run: Path) -> dict[str, bytes]:
    """What private records had a part in and everybody may see: the releases, and the synthetic data."""
    return {file.name: file.read_bytes() for file in [*(run / "releases").iterdir(), run / "synthetic.npz"]}
