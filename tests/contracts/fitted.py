"""Generators that are fitted on five labels of drawn digits, so that they answer like any other."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from adapters.glyphs import Glyphs
from pe.fit.trainer import FitTerms, Fitting, PrivateRecords
from pe.plugins.protocols import RandomRequest
from pe.plugins.specs import construct
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.release import Relation
from tests.adapters.trained.finetune.brought import checkpoint
from tests.seeded_noise import UnsafeSeededNoise

CLASSES, COUNT, SIDE = tuple("01234"), 40, 8
PLAIN = {"steps": 2, "batch": 8}
TRAINING = {"steps": 2, "block": 1, "expected_batch": COUNT, "draws": 1, "micro_batch": COUNT}
_ANSWERS = {"training": TRAINING, "sampling": {"steps": 5}, "batch_size": 1, "device": "cpu"}
_DIFFUSION = {"network": {"channels": [8, 16]}, **_ANSWERS}
PUBLIC = {"kind": "glyphs", "characters": "ABCDEFG", "count": 42}
_CENTRAL = {"kind": "central_images", "images": 20, "training": PLAIN}

KINDS: dict[str, dict[str, Any]] = {
    "central_images": {},
    "dp_gaussian": {"public": PUBLIC},
    "dp_merf": {"features": 50, "steps": 20},
    "dp_mepf": {"side": 16, "stages": [1, 2], "steps": 4, "batch": 20},
    "dpdm": _DIFFUSION,
    "dp_feta": {"easy": [_CENTRAL], **_DIFFUSION},
    "dpgan": {"device": "cpu", "training": TRAINING, "lesson": PLAIN},
    "dp_sad": {**_DIFFUSION, "teacher": TRAINING, "discrimination": {"steps": 2, "chains": 4}},
    "dp_imgsyn": {
        "device": "cpu",
        "public": PUBLIC,
        "training": TRAINING,
        "alignment": {"steps": 4, "companions": 12},
        "batch_size": 1,
    },
}
_SELECTED = {"public": PUBLIC, "pretraining": PLAIN, "query": PLAIN, "semantics_share": 0.2}
_MERF = {"kind": "dp_merf", "images": 20, "training": PLAIN, "features": 20, "steps": 3}
FITS: dict[str, dict[str, Any]] = KINDS | {
    "pdp_diffusion": {"public": PUBLIC, "pretraining": PLAIN, **_DIFFUSION},
    "dp_ldm": {"public": PUBLIC, "pretraining": PLAIN, **_DIFFUSION},
    "privimage": {"easy": [_MERF], **_SELECTED, **_DIFFUSION},
    "privimage_gan": KINDS["dpgan"] | _SELECTED,
    "finetune": {"lora": {"rank": 2}, **_ANSWERS},
}
"""Every fitted method; those of `KINDS` answer each in a way of its own."""


_BLOCKS = ["fit/training/1", "fit/training/2"]
RELEASES = dict.fromkeys(FITS, _BLOCKS) | {
    "central_images": ["fit/central_images"],
    "dp_gaussian": ["fit/sums"],
    "dp_merf": ["fit/mean_features"],
    "dp_mepf": ["fit/mean_features"],
    "dp_feta": ["fit/central_images", *_BLOCKS],
    "dp_sad": ["fit/teacher/1", "fit/teacher/2", *_BLOCKS],
    "dp_imgsyn": ["fit/moments", *_BLOCKS],
    "privimage": ["fit/semantics", "fit/mean_features", *_BLOCKS],
    "privimage_gan": ["fit/semantics", *_BLOCKS],
}
"""The names of a fit's releases, in order."""
WITHOUT_LOSS = {"central_images", "dp_merf", "dp_mepf"}
"""Methods that tell no loss of a record."""


class Foreseen(UnsafeSeededNoise):
    """Draws by what is asked, and not by what was drawn before, which a crash forgets."""

    def __init__(self) -> None:
        super().__init__(0)

    def discrete_gaussian(self, shape: Any, scale: float) -> Any:
        return UnsafeSeededNoise(2).discrete_gaussian(shape, scale)

    def coins(self, count: int, rate: float) -> Any:
        return UnsafeSeededNoise(count).coins(count, rate)


def make(kind: str, changes: dict[str, Any] | None = None) -> Any:
    """A new generator that is not fitted."""
    return construct("pe.adapters", kind, settings_of(kind) | (changes or {}))


def settings_of(kind: str) -> dict[str, Any]:
    return FITS[kind] | ({"model": checkpoint()} if kind == "finetune" else {})


def terms(**changes: Any) -> FitTerms:
    fields = {
        "classes": CLASSES,
        "shape": (SIDE, SIDE, 1),
        "declared_size": COUNT,
        "relation": Relation.ADD_REMOVE,
    }
    return FitTerms(**{**fields, "unit": "record", "budget": Budget(20, 1e-3), **changes})


def fitting(
    api: Any,
    folder: Path,
    store: MemoryStore | None = None,
    private: Callable[[], PrivateRecords] | None = None,
    own: FitTerms | None = None,
    noise: Any = None,
    **more: Any,
) -> Fitting:
    """The tools of its fit, whose noise is the same each time."""
    own = own or terms()
    planned = api.plan_releases(own)
    ledger = Ledger(
        own.budget, own.relation, own.unit, planned, store or MemoryStore(), noise or Foreseen()
    )
    return Fitting(own, private or records_of_fits, ledger, folder, **more)


def fitted(kind: str) -> Any:
    """A new generator that answers from a model fitted once for all tests."""
    api = make(kind)
    api.load(model_of(kind))
    return api


@cache
def model_of(kind: str) -> Path:
    """The folder of that model."""
    api, folder = make(kind), Path(mkdtemp())
    api.fit(fitting(api, folder))
    return folder


@cache
def records_of_fits() -> PrivateRecords:
    """What all are fitted on."""
    labels = np.arange(COUNT) % len(CLASSES)
    request = RandomRequest(
        tuple(CLASSES[label] for label in labels), np.arange(COUNT).astype(np.uint64)
    )
    images = Glyphs(size=SIDE).random_api(request).samples.array
    return PrivateRecords(images, labels.astype(np.int32), np.arange(COUNT))
