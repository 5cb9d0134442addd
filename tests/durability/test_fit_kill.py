"""A fit killed anywhere, and gone on with, is the fit that was never killed: no release is drawn or
charged twice.
"""

import json
import random
from functools import partial

import numpy as np
import pytest

from pe.engine.execution import RunContext
from pe.recipe.schema import Recipe
from tests.durability import driver
from tests.durability.test_kill import shareable, slow_but_for
from tests.seeded_noise import UnsafeSeededNoise

COUNT = 24
PLAIN = {"steps": 3, "batch": 8}
TRAINING = {"steps": 6, "block": 1, "expected_batch": COUNT, "draws": 2, "micro_batch": COUNT}
UNET = {
    "network": {"channels": [8, 16]},
    "training": TRAINING,
    "sampling": {"steps": 3},
    "device": "cpu",
}
PUBLIC = {"public": {"kind": "glyphs", "characters": "LOXM", "count": 40}, "pretraining": PLAIN}
APIS = {
    "dp_gaussian": {"public": {"kind": "noise", "count": 50}},
    "central_images": {},
    "dp_merf": {"features": 20, "steps": 40, "batch": 16},
    "pdp_diffusion": UNET | PUBLIC,
    "privimage": UNET | PUBLIC | {"query": PLAIN, "semantics_share": 0.2},
}


class Foreseen(UnsafeSeededNoise):
    """Draws by what is asked, and not by what was drawn before, which a crash forgets."""

    def __init__(self):
        super().__init__(0)

    def discrete_gaussian(self, shape, scale):
        return UnsafeSeededNoise(2).discrete_gaussian(shape, scale)

    def coins(self, count, rate):
        return UnsafeSeededNoise(count).coins(count, rate)


def carry_out(kind, folder):
    """Begin the run in `folder`/run, or go on with it, to its end."""
    images = np.random.default_rng(0).integers(0, 255, (COUNT, 8, 8, 1)).astype(np.uint8)
    np.savez(folder / "private.npz", images=images, labels=np.array(["l", "o"] * (COUNT // 2)))
    source = {"kind": "npz", "path": folder / "private.npz", "size": 8, "channels": 1}
    content = {
        "private": source | {"classes": ["l", "o"], "declared_size": COUNT},
        "api": {"kind": kind, "fit": {"budget_share": 0.5}} | APIS[kind],
        "embedding": {"kind": "pixels", "size": 8},
        "privacy": {"epsilon": 8, "delta": 1e-3},
        "evolution": {"iterations": 1, "population": 8, "lookahead": 0},
    }
    recipe = Recipe.parse(content, "the test")
    driver.begin_or_go_on(recipe, folder / "run", RunContext(noise=Foreseen()))


@pytest.mark.parametrize("kind", slow_but_for("dp_gaussian", APIS))
def test_a_fit_killed_over_and_over_ends_as_if_it_had_not_been(kind, tmp_path):
    whole, killed, draws = tmp_path / "whole", tmp_path / "killed", random.Random(kind)
    for folder in (whole, killed):
        folder.mkdir()
    process = driver.forked(carry_out, kind, whole)
    process.join(100)
    assert process.exitcode == 0
    steps = [
        1,
        2,
        1,
        2,
        1,
        *(draws.randint(2, 20) for _ in range(99)),
    ]  # the end replaces 7 files in one go
    modules = () if kind == "dp_gaussian" else ("torch", "diffusers", "timm")
    assert driver.swept(partial(carry_out, kind), killed, steps, "/releases", modules) > 2
    assert shareable(killed / "run") == shareable(whole / "run")
    certificate = json.loads((killed / "run" / "certificate.json").read_text())
    charges = {one["name"]: one["charges"] for one in certificate["releases"]}
    assert set(charges.values()) == {1}
    assert any(name.startswith("fit/") for name in charges)
