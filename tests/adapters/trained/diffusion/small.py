"""Fits that take a second: 8×8 images of two labels, a UNet of 8 and 16 channels, four steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from adapters.glyphs import Glyphs
from adapters.trained.diffusion import PrivImage, Sampling
from adapters.trained.dp_sgd.training import Training
from adapters.trained.semantics import QueryTraining
from adapters.trained.settings import FineTuning, Network, PlainTraining
from pe.fit.trainer import FitTerms, Fitting, PrivateRecords, Trainer
from pe.plugins.protocols import RandomRequest
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.release import Relation
from pe.recipe.schema import Recipe
from tests.adapters.trained.sources import source

SIDE, CLASSES, COUNT = 8, ("ell", "oh"), 24
SHAPE = (SIDE, SIDE, 1)
NETWORK = {"channels": [8, 16]}
TRAINING = {"steps": 4, "block": 2, "expected_batch": COUNT, "draws": 2, "micro_batch": COUNT}
PLAIN = {"steps": 3, "batch": 8}
PUBLIC = {"kind": "glyphs", "characters": "LOXM", "count": 40}

KINDS: dict[str, dict[str, Any]] = {
    "dpdm": {},
    "pdp_diffusion": {"public": PUBLIC, "pretraining": PLAIN},
    "dp_ldm": {"public": PUBLIC, "pretraining": PLAIN},
    "privimage": {"public": PUBLIC, "pretraining": PLAIN, "query": PLAIN, "semantics_share": 0.2},
    "dp_feta": {
        "easy": [
            {"kind": "central_images", "share": 0.2, "images": 12, "training": PLAIN},
            {"kind": "dp_merf", "share": 0.3, "images": 12, "training": PLAIN, "features": 20, "steps": 3},
        ]
    },
}

FIRST = {"privimage": ["fit/semantics"], "dp_feta": ["fit/central_images", "fit/mean_features"]}
"""What a kind releases before its blocks."""


def records(count: int = COUNT, seed: int = 5) -> PrivateRecords:
    """Drawn L's and O's, which the public set has under names of its own."""
    labels = np.arange(count) % 2
    seeds = np.random.default_rng(seed).integers(0, 2**63, count).astype(np.uint64)
    images = Glyphs(size=SIDE).random_api(RandomRequest(tuple("LO"[label] for label in labels), seeds)).samples.array
    return PrivateRecords(images, labels.astype(np.int32), np.arange(count))


def private_file(folder: Path) -> Path:
    private = records()
    np.savez(folder / "private.npz", images=private.samples, labels=np.array(CLASSES)[private.labels])
    return folder / "private.npz"


def api(kind: str, **changes: Any) -> dict[str, Any]:
    common = {"kind": kind, "network": NETWORK, "training": TRAINING, "sampling": {"steps": 3}, "device": "cpu"}
    return common | KINDS[kind] | changes


def recipe(path: Path, kind: str = "dpdm", iterations: int = 0, **changes: Any) -> Recipe:
    fit = {"fit": {"budget_share": 0.6}} if iterations else {}
    content: dict[str, Any] = {
        "private": {
            "kind": "npz",
            "path": path,
            "size": SIDE,
            "channels": 1,
            "classes": list(CLASSES),
            "declared_size": COUNT,
        },
        "api": api(kind) | fit,
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": 8, "delta": 1e-3},
        "evolution": {"iterations": iterations, "population": 8, "lookahead": 0, "degree": 0.7},
    }
    return Recipe.parse(content | changes, "the test")


def terms(epsilon: float = 8.0, **changes: Any) -> FitTerms:
    fields: dict[str, Any] = {
        "classes": CLASSES,
        "shape": SHAPE,
        "declared_size": COUNT,
        "relation": Relation.ADD_REMOVE,
        "unit": "record",
        "budget": Budget(epsilon, 1e-3),
    }
    return FitTerms(**fields | changes)


BLOCKS = ["fit/training/1", "fit/training/2"]


def releases(run: pe.Run) -> list[tuple[str, int]]:
    return [(release["name"], release["charges"]) for release in run.guarantee["releases"]]


class Broken(BaseException):
    pass


@contextmanager
def breaking(after: int) -> Iterator[list[int]]:
    """The machine goes down in the block after so many."""
    done: list[int] = []
    whole = Training.block

    def block(self: Training, *args: Any) -> Any:
        if len(done) == after:
            raise Broken
        done.append(1)
        return whole(self, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Training, "block", block)
        yield done


@contextmanager
def counted(owner: Any, name: str) -> Iterator[list[Any]]:
    """Every call of a function."""
    calls: list[Any] = []
    whole = getattr(owner, name)

    def calling(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return whole(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, calling)
        yield calls


def trainer(**training: Any) -> PrivImage:
    return PrivImage(
        public=source(PUBLIC),
        query=QueryTraining.model_validate(PLAIN),
        pretraining=PlainTraining.model_validate(PLAIN),
        network=Network.model_validate(NETWORK),
        training=FineTuning.model_validate(TRAINING | training),
        sampling=Sampling(steps=3),
        device="cpu",
    )


def fitting(model: Trainer, folder: Path, store: MemoryStore, private: Any = records) -> Fitting:
    folder.mkdir(exist_ok=True)
    planned = model.planned(terms())
    ledger = Ledger(terms().budget, Relation.ADD_REMOVE, "record", planned, store)
    return Fitting(terms(), private, ledger, folder)
