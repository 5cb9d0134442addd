"""The recipes of benchmarks/methods.py: what each method is told, by the hardware that there is."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from methods_choice import CANDIDATES, QUERY, chosen

DELTA, DIGITS = 1e-5, tuple("0123456789")
FROM_SCRATCH = {"learning_rate": 2e-3}  # a network that was not trained before has further to go
LITTLE_NOISE = 4  # the ε from which PE has its settings for little noise
FAST = (
    "real",
    "drawn",
    "pe",
    "one_vote",
    "dp_gaussian",
    "dp_merf",
    "dp_mepf",
    "central_images",
    "dp_gaussian+pe",
    "central_images+pe",
    "dp_merf+pe",
)
EVOLVED_AS_SEARCHED = ("central_images",)
"""Before PE these have the settings that were searched for them alone, with all of ε; others have the stated ones."""


@dataclass(frozen=True)
class Setting:
    """What the hardware decides; all of it public, chosen on drawn digits that stand in for private ones.

    Attributes:
        side: of the images, pixels.
        samples: that each method makes.
        characters: drawn as public images.
        diffusion: settings that the diffusion models share.
        resnet: epochs of ResNet-9, and in how many of a cell's runs it is trained at all.
        growing: candidates at each of PE's votes at ε = 1, winners kept.
        neighbors: q at ε = 1.
        searched: whether the methods that methods_search.py tries have the settings that it chose.
        methods: that are measured unless others are named; none: all.
        runs: of each cell, unless another number is named.
    """

    side: int
    samples: int
    characters: int
    diffusion: dict[str, Any]
    resnet: tuple[int, int]
    pretraining: dict[str, Any]
    growing: tuple[int, ...]
    neighbors: int
    merf: dict[str, Any] = field(default_factory=dict)
    sad: dict[str, Any] = field(default_factory=dict)
    searched: bool = True
    methods: tuple[str, ...] = ()
    runs: int = 5


CPU = Setting(
    side=14,
    samples=2000,
    characters=12400,
    diffusion={
        "network": {"channels": [16, 32]},
        "training": {"steps": 40, "expected_batch": 500, "draws": 4, "learning_rate": 3e-4, "ema": 0.9},
        "sampling": {"steps": 15},
    },
    resnet=(5, 1),
    pretraining={"steps": 1000, "batch": 64},
    growing=(2500, 3000, 3500, 4000),
    neighbors=16,
)
SETTINGS = {
    "cpu": CPU,
    "fast": replace(CPU, methods=FAST, runs=1),
    "gpu": Setting(
        side=28,
        samples=4000,
        characters=62000,
        diffusion={
            "network": {"channels": [32, 64, 64]},
            "training": {"steps": 500, "expected_batch": 1000, "draws": 8, "micro_batch": 250, "ema": 0.99},
        },
        resnet=(20, 3),
        pretraining={"steps": 10000, "batch": 256},
        growing=(4500, 5500, 6500, 7500),
        neighbors=32,
        searched=False,
    ),
}


def api_of(method: str, epsilon: float, setting: Setting) -> dict[str, Any]:
    """The recipe's `api` for a method by its name, the hybrids included: `NAME+pe`.

    Raises:
        LookupError: its settings are to be searched first.
    """
    name, _, evolved = method.partition("+")
    searched = setting.searched and name in (EVOLVED_AS_SEARCHED if evolved else CANDIDATES)
    api = chosen(name, epsilon) if searched else stated(name, setting)
    return api | {"fit": {"budget_share": 0.5}} if evolved else api


def stated(name: str, setting: Setting) -> dict[str, Any]:
    """The `api` of a method whose settings no search chose."""
    public = {"public": {"kind": "glyphs", "count": setting.characters}, "pretraining": setting.pretraining}
    from_scratch = {**setting.diffusion, "training": setting.diffusion["training"] | FROM_SCRATCH}
    dp_gaussian = {"kind": "dp_gaussian", "public": public["public"]}
    easy = dp_gaussian | {"share": 0.5, "training": setting.pretraining}
    critic = {name: setting.diffusion["training"][name] for name in ("steps", "expected_batch")}
    gan = {"training": critic | {"block": 20, "ema": 0.9, "draws": 1}}
    apis: dict[str, dict[str, Any]] = {
        "pe": {"kind": "glyphs", "size": setting.side},
        "one_vote": {"kind": "glyphs", "size": setting.side},
        "dp_gaussian": dp_gaussian,
        "central_images": {"kind": "central_images"},
        "dp_merf": {"kind": "dp_merf", **setting.merf},
        "dp_mepf": {"kind": "dp_mepf"},
        "dpgan": {"kind": "dpgan", **gan},
        "privimage_gan": {"kind": "privimage_gan", **public, **QUERY, **gan},
        "dpdm": {"kind": "dpdm", **from_scratch},
        "dp_feta": {"kind": "dp_feta", **setting.diffusion, "easy": [easy]},
        "pdp_diffusion": {"kind": "pdp_diffusion", **public, **setting.diffusion},
        "dp_ldm": {"kind": "dp_ldm", **public, **setting.diffusion},
        "privimage": {"kind": "privimage", **public, **QUERY, **setting.diffusion},
        "dp_imgsyn": {"kind": "dp_imgsyn", "public": public["public"]},
        "dp_sad": {"kind": "dp_sad", **distilled(setting), **setting.sad},
        "dp_sad_drawn": {"kind": "dp_sad", **public, **taught_by_drawn_digits(setting), **setting.sad},
    }
    return apis[name]


def distilled(setting: Setting) -> dict[str, Any]:
    """DP-SAD without public images: of DP-DM's steps a quarter for the teacher, with a fifth of ε.

    Such a teacher knows little, so that the student heeds it, and the discriminator that compares them, a quarter as
    much as by default, and is sampled without guidance.
    """
    training = setting.diffusion["training"] | FROM_SCRATCH
    steps = training["steps"] // 4
    teacher = training | {"steps": steps, "share": 0.2}
    heeded = {"guidance": 1, "imitation": 0.25, "adversarial": 0.25}
    return setting.diffusion | {"teacher": teacher, "training": training | {"steps": 3 * steps}} | heeded


def taught_by_drawn_digits(setting: Setting) -> dict[str, Any]:
    """DP-SAD whose teacher learned from the ten digits among the public characters, and so costs nothing."""
    drawn = {"kind": "glyphs", "characters": "".join(DIGITS), "count": setting.characters * len(DIGITS) // 62}
    return setting.diffusion | {"public": drawn, "teacher": {"share": 0}}


def recipe_of(method: str, epsilon: float, run: int, setting: Setting) -> dict[str, Any]:
    """The recipe of one cell."""
    return recipe_with(api_of(method, epsilon, setting), method, epsilon, run, setting)


def recipe_with(
    api: dict[str, Any], method: str, epsilon: float, run: int, setting: Setting, private: Path | None = None
) -> dict[str, Any]:
    """The recipe of one cell, with this `api`."""
    evolving = method in ("pe", "one_vote") or method.endswith("+pe")
    source: dict[str, Any] = {"kind": "mnist"} if private is None else {"kind": "npz", "path": str(private)}
    evolution: dict[str, Any] = {"iterations": 0, "population": setting.samples}
    privacy: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}
    if evolving:
        evolution = {"iterations": 4, "degree": [0.5, 0.45, 0.4, 0.4], "lookahead": 0}
        evolution |= evolution_of(epsilon, setting) if "+" not in method else evolution_of_fitted(setting)
        if "keep" in evolution and epsilon < LITTLE_NOISE:
            privacy["schedule"] = [1.5**t for t in range(4)]
    return {
        "name": method.replace("+", "-"),
        "seed": run,
        "private": source
        | {"size": setting.side, "resize": "stretch", "channels": 1, "classes": list(DIGITS), "declared_size": 4000},
        "api": api,
        "embedding": {"kind": "pixels", "size": setting.side, "blur": 0.8 * setting.side / 28},
        "privacy": privacy,
        "evolution": evolution,
    }


def evolution_of(epsilon: float, setting: Setting) -> dict[str, Any]:
    """Winners are kept; with little noise there are more candidates, and fewer neighbours get a record's vote."""
    little = epsilon >= LITTLE_NOISE
    growing = [size * 11 // 10 if little else size for size in setting.growing]
    return {
        "population": [*growing, setting.samples],
        "keep": "winners",
        "neighbors": setting.neighbors // 8 if little else setting.neighbors,
        "threshold_sigmas": 1.0,
    }


def evolution_of_fitted(setting: Setting) -> dict[str, Any]:
    """What suits a fitted generator's samples, at each ε: every candidate costs a diffusion model's time."""
    return {"population": [setting.samples] * 5, "neighbors": 32, "threshold_sigmas": 1.5}


_LEAST: dict[str, dict[str, Any]] = {
    "dp_merf": {"steps": 2, "batch": 20},
    "dp_mepf": {"steps": 2, "batch": 20},
    "dp_imgsyn": {"training": {"steps": 30}, "alignment": {"steps": 1, "companions": 20}},
    "privimage": {"query": {"steps": 2}},
    "privimage_gan": {"query": {"steps": 2}},
}
"""What is not stated, and has a default that takes long; a teacher of fewer steps gives all images one label."""

_SAMPLED = 3
"""Steps of a diffusion sampler: the fewest of which the lowest degree that PE varies by, .4, leaves one to run."""

_MOST = {"steps": 4, "expected_batch": 100, "draws": 1, "micro_batch": 50, "batch": 20, "count": 620, "images": 100}


def tiny(setting: Setting) -> Setting:
    """The same with so little of everything that it only shows that all of it runs."""
    return replace(
        setting, samples=400, characters=620, growing=(400, 500, 600, 700), neighbors=8, resnet=(1, 1), runs=1
    )


def tiny_api(api: dict[str, Any]) -> dict[str, Any]:
    """A recipe's `api` with a few steps of everything."""
    found: dict[str, Any] = _capped(api) | _LEAST.get(api["kind"], {})
    return found | {"sampling": {"steps": _SAMPLED}} if "network" in found else found


def _capped(value: Any) -> Any:
    if isinstance(value, list):
        return [_capped(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: min(one, _MOST[key]) if key in _MOST else _capped(one) for key, one in value.items()}
