"""The settings that benchmarks/methods_search.py tries on digits of other fonts, and the rule by which it chooses."""

from __future__ import annotations

import hashlib
import json
import statistics
from typing import Any

from record import RESULTS

SEARCHED = RESULTS / "methods_search.jsonl"
HARDLY_ANY_NOISE = 1e6
"""The ε at which a method is measured as if it were not private: all else, the cuts too, is as it was."""

CHOSEN_AT = {HARDLY_ANY_NOISE: 10.0}
"""ε that have no search of their own → the ε whose settings they have."""

QUERY = {"semantics": 2, "semantics_share": 0.1}
PUBLIC = {"public": {"kind": "glyphs", "count": 12400}}
_UNET = {"network": {"channels": [16, 32]}, "sampling": {"steps": 15}}
_FIRST = {"steps": 1000, "batch": 64}


def _steps(steps: int, batch: int, rate: float, **changes: Any) -> dict[str, Any]:
    """DP-SGD.

    At ε = 1 the noise in a step's mean gradient hardly depends on the batch: .0136 of the clip with 400 of the 4,000
    records, .0160 with 100, which cost a quarter. At ε = 10 it is .0025 and .0057.
    """
    return {"steps": steps, "expected_batch": batch, "draws": 1, "learning_rate": rate, "ema": 0.98} | changes


def _easy(kind: str, share: float, **settings: Any) -> list[dict[str, Any]]:
    return [{"kind": kind, "share": share, "training": _FIRST, **settings}]


def _gan(steps: int, lesson: int) -> dict[str, Any]:
    training = _steps(steps, 400, 1e-3, block=10, ema=0.9)
    return {"training": training, "lesson": {"steps": lesson, "batch": 64, "learning_rate": 1e-3}}


def _after_the_query(batch: int, rate: float) -> dict[str, Any]:
    return _UNET | PUBLIC | QUERY | {"pretraining": _FIRST, "training": _steps(200, batch, rate)}


CANDIDATES: dict[str, dict[str, dict[str, Any]]] = {
    "central_images": {
        "squares of 2, bent .06": {"shrink": 2, "bend": 0.06},
        "squares of 2, bent .1": {"shrink": 2, "bend": 0.1},
        "single pixels, bent .06": {"shrink": 1, "bend": 0.06},
        "single pixels, bent .1": {"shrink": 1, "bend": 0.1},
        "10 subsets of a tenth, squares of 2, bent .06": {"subsets": 10, "rate": 0.1, "shrink": 2, "bend": 0.06},
        "10 subsets of a tenth, squares of 2, bent .03": {"subsets": 10, "rate": 0.1, "shrink": 2, "bend": 0.03},
    },
    "dp_mepf": {
        "1,000 steps of 100, rate .005": {"steps": 1000, "batch": 100, "rate": 5e-3},
        "500 steps of 200, rate .005": {"steps": 500, "batch": 200, "rate": 5e-3},
        "1,000 steps of 100, rate .01": {"steps": 1000, "batch": 100, "rate": 1e-2},
        "1,000 steps of 100, rate .005, no squares": {"steps": 1000, "batch": 100, "rate": 5e-3, "squares": 0.0},
    },
    "dpgan": {
        "200 steps, lessons of 20": _gan(200, 20),
        "200 steps, lessons of 60": _gan(200, 60),
        "600 steps, lessons of 20": _gan(600, 20),
        "600 steps, lessons of 20, public characters first": _gan(600, 20) | PUBLIC,
    },
    "privimage_gan": {
        "200 steps, lessons of 20": _gan(200, 20) | PUBLIC | QUERY,
        "600 steps, lessons of 20": _gan(600, 20) | PUBLIC | QUERY,
        "600 steps, lessons of 5": _gan(600, 5) | PUBLIC | QUERY,
    },
    "dp_feta": {
        "dp_gaussian with .7 of ε, 200 steps of 400, rate .0003": _UNET
        | {"easy": _easy("dp_gaussian", 0.7, **PUBLIC), "training": _steps(200, 400, 3e-4)},
        "dp_gaussian with .4 of ε, 200 steps of 400, rate .001": _UNET
        | {"easy": _easy("dp_gaussian", 0.4, **PUBLIC), "training": _steps(200, 400, 1e-3)},
        "central_images with .2 of ε, 200 steps of 400, rate .001": _UNET
        | {"easy": _easy("central_images", 0.2), "training": _steps(200, 400, 1e-3)},
        "dp_gaussian with .7 of ε, 200 steps of 100, rate .0003": _UNET
        | {"easy": _easy("dp_gaussian", 0.7, **PUBLIC), "training": _steps(200, 100, 3e-4)},
        "central_images with .2 of ε, 200 steps of 100, rate .001": _UNET
        | {"easy": _easy("central_images", 0.2), "training": _steps(200, 100, 1e-3)},
        "FETA-Pro: central_images, then dp_merf, with .25 of ε each, 200 steps of 100, rate .001": _UNET
        | {
            "easy": [*_easy("central_images", 0.25), *_easy("dp_merf", 0.25)],
            "training": _steps(200, 100, 1e-3),
        },
    },
    "privimage": {
        f"200 steps of {batch}, rate {rate}": _after_the_query(batch, float(rate))
        for batch, rate in ((400, ".0003"), (400, ".001"), (400, ".003"), (100, ".0003"), (100, ".001"))
    },
    "dpdm": {
        "200 steps of 400, rate .002": _UNET | {"training": _steps(200, 400, 2e-3)},
        "200 steps of 400, rate .005": _UNET | {"training": _steps(200, 400, 5e-3)},
        "200 steps of 100, rate .002": _UNET | {"training": _steps(200, 100, 2e-3)},
        "200 steps of 100, rate .005": _UNET | {"training": _steps(200, 100, 5e-3)},
    },
}
_PRIVIMAGE_OF_400 = tuple(f"200 steps of 400, rate {rate}" for rate in (".0003", ".001", ".003"))
LEFT_OUT: dict[tuple[str, float], tuple[str, ...]] = {
    ("dpdm", 1.0): ("200 steps of 400, rate .002", "200 steps of 400, rate .005"),
    ("dp_feta", 1.0): (
        "dp_gaussian with .7 of ε, 200 steps of 400, rate .0003",
        "dp_gaussian with .4 of ε, 200 steps of 400, rate .001",
        "central_images with .2 of ε, 200 steps of 400, rate .001",
        "central_images with .2 of ε, 200 steps of 100, rate .001",
        "FETA-Pro: central_images, then dp_merf, with .25 of ε each, 200 steps of 100, rate .001",
    ),
    ("dpdm", 10.0): ("200 steps of 400, rate .005",),
    ("dp_feta", 10.0): (
        "dp_gaussian with .4 of ε, 200 steps of 400, rate .001",
        "central_images with .2 of ε, 200 steps of 400, rate .001",
    ),
    ("privimage", 1.0): _PRIVIMAGE_OF_400,
    ("privimage", 10.0): _PRIVIMAGE_OF_400,
}
"""Candidates that are not tried at an ε, to save time; the search's page names them."""


def candidates(method: str, epsilon: float) -> dict[str, dict[str, Any]]:
    """What is tried of a method at an ε: by its name, the recipe's `api`."""
    left_out = LEFT_OUT.get((method, epsilon), ())
    tried = {name: settings for name, settings in CANDIDATES[method].items() if name not in left_out}
    return {name: {"kind": method, **settings} for name, settings in tried.items()}


def key_of_candidate(method: str, epsilon: float, name: str) -> str:
    """Of a cell of the search: other settings under the same name are another cell."""
    content = json.dumps(candidates(method, epsilon)[name], sort_keys=True)
    return f"{method} {epsilon:g} {name} {hashlib.sha256(content.encode()).hexdigest()[:8]}"


def searched() -> dict[str, dict[str, Any]]:
    """All cells of the search, by key."""
    lines = SEARCHED.read_text(encoding="utf-8").splitlines() if SEARCHED.exists() else []
    return {found["key"]: found for found in map(json.loads, lines)}


def worth(found: dict[str, Any]) -> float:
    """What the rule compares: the mean of LR's and the MLP's accuracy."""
    return statistics.mean(found["accuracy"][name] for name in ("logistic_regression", "mlp"))


def best_of(method: str, epsilon: float, found: dict[str, dict[str, Any]]) -> str | None:
    """The name of the best candidate, or of the only one; None while one is missing."""
    at = CHOSEN_AT.get(epsilon, epsilon)
    keys = {name: key_of_candidate(method, at, name) for name in candidates(method, at)}
    if len(keys) == 1:
        return next(iter(keys))
    if any(key not in found for key in keys.values()):
        return None
    return max(keys, key=lambda name: worth(found[keys[name]]))


def chosen(method: str, epsilon: float) -> dict[str, Any]:
    """The recipe's `api` of the best candidate at this ε.

    Raises:
        LookupError: not all candidates were measured there.
    """
    name, at = best_of(method, epsilon, searched()), CHOSEN_AT.get(epsilon, epsilon)
    if name is None:
        raise LookupError(
            f"not every setting of {method} was tried at ε = {at:g}: "
            f"run `python benchmarks/methods_search.py FONTS --methods {method}` first."
        )
    return candidates(method, at)[name]
