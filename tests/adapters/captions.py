"""What the tests of captions that are drawn share: recipes over the glyph simulator, and over scripted servers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from adapters.glyphs import Glyphs
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.plugins.protocols import RandomRequest
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests.durability.driver import SameNoise
from tests.generators import Mean

SIDE = 16
LABELS = ("3", "7")


def pool(path: Path, texts: Sequence[str] = "0123456789") -> dict[str, Any]:
    """Captions of these texts in a file, each in twelve ways."""
    ways = product(("", "small ", "large "), ("", "thin "), ("", "wide "))
    captions = [f'a {"".join(way)}"{text}"' for way in ways for text in texts]
    path.write_text("\n".join(captions) + "\n")
    return {"kind": "public_texts", "path": path}


def chat(url: str, **settings: object) -> dict[str, object]:
    given = {"kind": "chat", "base_url": f"{url}/v1", "key_env": None, "model": "m", "seed_field": "seed"}
    return given | {"prompts": "describe a {label}", "concurrency": 2} | settings


def web(url: str, **settings: object) -> dict[str, object]:
    given = {"kind": "openai_images", "base_url": f"{url}/v1", "key_env": None, "model": "m", "server": None}
    return given | {"image_size": SIDE, "concurrency": 2} | settings


def recipe(folder: Path, captions: dict[str, Any], draw: dict[str, Any], **changes: Any) -> Recipe:
    """Of a run over sixty drawn digits."""
    if not (folder / "private.npz").exists():
        labels, seeds = LABELS * 30, np.arange(60, dtype=np.uint64)
        images = Glyphs(size=SIDE).random_api(RandomRequest(labels, seeds)).samples.array
        np.savez(folder / "private.npz", images=images, labels=np.array(labels))
    private = {"kind": "npz", "path": folder / "private.npz", "size": SIDE, "channels": 1, "classes": list(LABELS)}
    content = {
        "private": private,
        "api": {"kind": "caption_then_draw", "captions": captions, "draw": draw},
        "embedding": {"kind": "object:tests.generators.Mean"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 12, "lookahead": 0, "measure_degree": "never"},
    }
    return Recipe.parse(content | changes, "the test")


def carry_on(given: Recipe, folder: Path) -> Run:
    """Begin the run, or go on with it."""
    surroundings = Surroundings(embedding=Mean(), noise=SameNoise())
    if (folder / "run").exists():
        return resume_run(folder / "run", surroundings)
    return run_recipe(given, folder / "run", surroundings)
