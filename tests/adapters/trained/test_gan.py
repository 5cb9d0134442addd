"""Fitted GANs: the generator learns from the discriminator and from public images alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.trained.answers import write_generator
from adapters.trained.fit import write_weights
from adapters.trained.gan import DPGAN, PrivImageGAN
from adapters.trained.gan_networks import (
    Discriminator,
    ImageGenerator,
    Learner,
    train_on_public,
)
from adapters.trained.public import PublicSet
from adapters.trained.settings import PlainTraining
from pe.errors import RecipeError
from tests.adapters.trained.diffusion.small import CLASSES, PLAIN, PUBLIC, SHAPE, records
from tests.adapters.trained.public import source
from tests.contracts.fitted import terms
from tests.flaws import FLAWS, spoil

KINDS: dict[str, dict[str, Any]] = {
    "dpgan": {"public": PUBLIC, "pretraining": PLAIN},
    "privimage_gan": {
        "public": PUBLIC,
        "pretraining": PLAIN,
        "query": PLAIN,
        "semantics_share": 0.2,
    },
}
CODES = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)


def test_both_gans_have_the_same_settings_where_a_recipe_names_none() -> None:
    selecting, plain = PrivImageGAN(public=source(PUBLIC)), DPGAN()
    assert (selecting.training.draws, selecting.training.block, selecting.training.ema) == (
        1,
        20,
        0.9,
    )
    for name in ("training", "lesson", "pretraining"):
        assert getattr(selecting, name) == getattr(plain, name)


def test_lessons_teach_the_generator_what_the_discriminator_takes_for_real() -> None:
    torch.manual_seed(0)

    class Bright(torch.nn.Module):
        def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return 5 * images.mean(dim=(1, 2, 3)) * (2 * labels - 1)

    learner = Learner(ImageGenerator(2, SHAPE), 2, PlainTraining(steps=90, batch=32), 0)
    learner.learn(Bright())
    shades = learner.average.images(CODES, np.arange(40) % 2).mean(axis=(1, 2, 3))
    assert shades[1::2].mean() - shades[0::2].mean() > 60


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_discriminator_that_did_not_come_whole_is_named(flaw: str, tmp_path: Path) -> None:
    write_generator(ImageGenerator(2, SHAPE), terms(classes=("a", "b"), shape=SHAPE), tmp_path)
    write_weights(Discriminator(2, SHAPE).state_dict(), tmp_path / "discriminator.safetensors")
    spoil(tmp_path / "discriminator.safetensors", flaw)
    with pytest.raises(
        RecipeError, match=rf"discriminator\.safetensors is {flaw}.*: download the file itself"
    ):
        DPGAN().record_losses(tmp_path, np.zeros((1, *SHAPE), np.uint8), ["a"])


def trained(images: np.ndarray, labels: np.ndarray, **settings: Any) -> np.ndarray:
    """What the generator makes after both were trained on these public images."""
    torch.manual_seed(0)
    shape = images.shape[1:]
    discriminator, generator = Discriminator(2, shape), ImageGenerator(2, shape)
    public = PublicSet(images, labels.astype(np.int64), CLASSES)
    train_on_public(discriminator, generator, 0, public, PlainTraining(**settings), lambda: None)
    return generator.images(CODES, np.arange(40) % 2)


def test_public_images_draw_the_generator_towards_them() -> None:
    private = records(100)
    away = [
        np.abs(
            trained(
                private.samples, private.labels, steps=steps, batch=16, learning_rate=3e-3
            ).mean(axis=0)
            - mean
        )
        for mean in [private.samples.mean(axis=0)]
        for steps in (1, 60)
    ]
    assert away[1].mean() < away[0].mean() / 2
