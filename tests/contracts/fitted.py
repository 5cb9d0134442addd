"""Generators that are fitted on five labels of drawn digits, so that they answer like any other."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from adapters.glyphs import Glyphs
from pe.fit.trainer import FitTerms, Fitting, PrivateRecords, Trainer
from pe.plugins.protocols import GenerationAPI, RandomRequest
from pe.plugins.specs import construct
from pe.privacy.ledger import Budget, Ledger, MemoryStore
from pe.privacy.release import Relation

CLASSES, _COUNT, _SIDE = tuple("01234"), 40, 8
_TRAINING = {"steps": 2, "expected_batch": _COUNT, "draws": 1, "micro_batch": _COUNT}
_DIFFUSION = {"network": {"channels": [8, 16]}, "training": _TRAINING, "sampling": {"steps": 5}, "batch_size": 1}
_PUBLIC = {"kind": "glyphs", "characters": "ABC", "count": 30}

KINDS: dict[str, dict[str, Any]] = {
    "central_images": {},
    "dp_gaussian": {"public": _PUBLIC},
    "dp_merf": {"features": 50, "steps": 20},
    "dp_mepf": {"side": 16, "stages": [1, 2], "steps": 4, "batch": 20},
    "dpdm": {"device": "cpu", **_DIFFUSION},
    "dp_feta": {
        "device": "cpu",
        "easy": [{"kind": "central_images", "images": 20, "training": {"steps": 2, "batch": 8}}],
        **_DIFFUSION,
    },
    "dpgan": {"device": "cpu", "training": _TRAINING, "lesson": {"steps": 2, "batch": 8}},
    "dp_sad": {"device": "cpu", **_DIFFUSION, "teacher": _TRAINING, "discrimination": {"steps": 2, "chains": 4}},
    "dp_imgsyn": {
        "device": "cpu",
        "public": _PUBLIC,
        "training": _TRAINING,
        "alignment": {"steps": 4, "companions": 12},
        "batch_size": 1,
    },
}


def fitted(kind: str) -> GenerationAPI:
    """A new generator that answers from a model fitted once for all tests."""
    api = construct("pe.adapters", kind, KINDS[kind])
    assert isinstance(api, Trainer)
    api.load(model_of(kind))
    return api


@cache
def model_of(kind: str) -> Path:
    """The folder of that model."""
    api, folder = construct("pe.adapters", kind, KINDS[kind]), Path(mkdtemp())
    assert isinstance(api, Trainer)
    terms = FitTerms(CLASSES, (_SIDE, _SIDE, 1), _COUNT, Relation.ADD_REMOVE, "record", Budget(20, 1e-3))
    ledger = Ledger(terms.budget, Relation.ADD_REMOVE, "record", api.planned(terms), MemoryStore())
    api.fit(Fitting(terms, records_of_fits, ledger, folder))
    return folder


def records_of_fits() -> PrivateRecords:
    """What all are fitted on."""
    labels = np.arange(_COUNT) % len(CLASSES)
    request = RandomRequest(tuple(CLASSES[label] for label in labels), np.arange(_COUNT).astype(np.uint64))
    images = Glyphs(size=_SIDE).random_api(request).samples.array
    return PrivateRecords(images, labels.astype(np.int32), np.arange(_COUNT))
