"""Runs that take a second: 8×8 images of two labels, a UNet of 8 and 16 channels, four steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from adapters.glyphs import Glyphs
from adapters.trained.dp_sgd.training import Training
from pe.fit.trainer import PrivateRecords
from pe.plugins.protocols import RandomRequest
from pe.recipe.schema import Recipe

SIDE, CLASSES, COUNT = 8, ("ell", "oh"), 24
SHAPE = (SIDE, SIDE, 1)
NETWORK = {"channels": [8, 16]}
TRAINING = {"steps": 4, "block": 2, "expected_batch": COUNT, "draws": 2, "micro_batch": COUNT}
PLAIN = {"steps": 3, "batch": 8}
PUBLIC = {"kind": "glyphs", "characters": "LOXM", "count": 40}
BLOCKS = ["fit/training/1", "fit/training/2"]

KINDS: dict[str, dict[str, Any]] = {
    "dpdm": {},
    "pdp_diffusion": {"public": PUBLIC, "pretraining": PLAIN},
    "privimage": {"public": PUBLIC, "pretraining": PLAIN, "query": PLAIN, "semantics_share": 0.2},
    "dp_feta": {
        "easy": [
            {"kind": "central_images", "share": 0.2, "images": 12, "training": PLAIN},
            {
                "kind": "dp_merf",
                "share": 0.3,
                "images": 12,
                "training": PLAIN,
                "features": 20,
                "steps": 3,
            },
        ]
    },
}


def records(count: int = COUNT, seed: int = 5) -> PrivateRecords:
    """Drawn L's and O's, which the public set has under names of its own."""
    labels = np.arange(count) % 2
    seeds = np.random.default_rng(seed).integers(0, 2**63, count).astype(np.uint64)
    images = (
        Glyphs(size=SIDE)
        .random_api(RandomRequest(tuple("LO"[label] for label in labels), seeds))
        .samples.array
    )
    return PrivateRecords(images, labels.astype(np.int32), np.arange(count))


def images_file(path: Path, seed: int = 5) -> Path:
    private = records(seed=seed)
    np.savez(path, images=private.samples, labels=np.array(CLASSES)[private.labels])
    return path


def private_file(folder: Path) -> Path:
    return images_file(folder / "private.npz")


def api(kind: str, **changes: Any) -> dict[str, Any]:
    common = {
        "kind": kind,
        "network": NETWORK,
        "training": TRAINING,
        "sampling": {"steps": 3},
        "device": "cpu",
    }
    return common | KINDS[kind] | changes


def recipe(path: Path, kind: str = "dpdm", iterations: int = 0, **changes: Any) -> Recipe:
    fit = {"fit": {"budget_share": 0.6}} if iterations else {}
    shape = {"size": SIDE, "channels": 1, "classes": list(CLASSES), "declared_size": COUNT}
    content: dict[str, Any] = {
        "private": {"kind": "npz", "path": path, **shape},
        "api": api(kind) | fit,
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": 8, "delta": 1e-3},
        "evolution": {"iterations": iterations, "population": 8, "lookahead": 0, "degree": 0.7},
    }
    return Recipe.parse(content | changes, "the test")


def releases(run: pe.Run) -> list[tuple[str, int]]:
    return [(release["name"], release["charges"]) for release in run.guarantee["releases"]]


class Broken(BaseException):
    pass


def breaks(*_args: Any, **_settings: Any) -> Any:
    """In the place of a function: the machine goes down there."""
    raise Broken


@contextmanager
def counted(owner: Any, name: str, before: Callable[[], object] = list) -> Iterator[list[Any]]:
    """Every call of a function, and something that is done before it."""
    calls: list[Any] = []
    whole = getattr(owner, name)

    def calling(*args: Any, **kwargs: Any) -> Any:
        before()
        calls.append(args)
        return whole(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, calling)
        yield calls


@contextmanager
def breaking(after: int) -> Iterator[list[Any]]:
    """The machine goes down in the block after so many."""

    def before() -> None:
        if len(blocks) == after:
            raise Broken

    with counted(Training, "block", before) as blocks:
        yield blocks
