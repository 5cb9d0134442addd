"""Fitted GANs: what they release, that the generator learns from released weights alone, and fits that break off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.trained import gan as adapter
from adapters.trained import gan_networks as learning
from adapters.trained.dp_sgd.gradients import record_gradients, trained_parameters
from adapters.trained.gan_networks import Discriminator, DiscriminatorLoss, Generator
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.errors import RecipeError
from pe.privacy.noise import UnsafeSeededNoise
from pe.recipe.schema import Recipe
from tests.adapters.trained.diffusion.small import (
    BLOCKS,
    CLASSES,
    COUNT,
    PLAIN,
    PUBLIC,
    SHAPE,
    Broken,
    breaking,
    counted,
    private_file,
    recipe,
    records,
    releases,
)

TRAINING = {"steps": 4, "block": 2, "expected_batch": COUNT, "draws": 2, "micro_batch": COUNT}
KINDS: dict[str, dict[str, Any]] = {
    "dpgan": {"public": PUBLIC, "pretraining": PLAIN},
    "privimage_gan": {"public": PUBLIC, "pretraining": PLAIN, "query": PLAIN, "semantics_share": 0.2},
}
FIRST = {"dpgan": [], "privimage_gan": ["fit/semantics"]}


def gan(path: Path, kind: str = "dpgan", **changes: Any) -> Recipe:
    api = {"kind": kind, "device": "cpu", "training": TRAINING, "lesson": PLAIN} | KINDS[kind] | changes
    return recipe(path, api=api)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_fitted_and_sampled_on_the_whole_budget(kind: str, tmp_path: Path) -> None:
    run = run_recipe(gan(private_file(tmp_path), kind), tmp_path / "run", Surroundings())
    assert run.synthetic.samples.array.shape == (8, *SHAPE)
    assert run.synthetic.conditions["code"].shape == (8, 8)
    assert releases(run) == [(name, 1) for name in (*FIRST[kind], *BLOCKS)]
    assert 7.99 < run.guarantee["epsilon"] <= 8


class Foreseen(UnsafeSeededNoise):
    """Draws by what is asked, and not by what was drawn before, which a crash forgets."""

    def __init__(self) -> None:
        super().__init__(0)

    def discrete_gaussian(self, shape: tuple[int, ...], scale: float) -> np.ndarray:
        return np.zeros(shape, dtype=np.int64)

    def coins(self, count: int, rate: float) -> np.ndarray:
        return np.random.default_rng(2).random(count) < rate


@pytest.mark.parametrize(("kind", "after"), [("dpgan", 0), ("privimage_gan", 1)])
def test_a_fit_that_breaks_off_ends_as_if_it_had_not(kind: str, after: int, tmp_path: Path) -> None:
    models = []
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
        path, surroundings = private_file(tmp_path), Surroundings(noise=Foreseen())
        if name == "whole":
            run = run_recipe(gan(path, kind), tmp_path / name / "run", surroundings)
        else:
            with breaking(after=after), pytest.raises(Broken):
                run_recipe(gan(path, kind), tmp_path / name / "run", surroundings)
            with counted(learning, "train_on_public") as trained:
                run = resume_run(tmp_path / name / "run", surroundings)
            assert not trained
        models.append((run.folder / "model" / "generator.safetensors").read_bytes())
    assert models[0] == models[1]


def test_once_all_is_released_the_private_records_are_needed_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_file(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(adapter, "write_generator", lambda *_: (_ for _ in ()).throw(Broken()))
        with pytest.raises(Broken):
            run_recipe(gan(path, "privimage_gan"), tmp_path / "run", Surroundings())
    path.unlink()
    run = resume_run(tmp_path / "run", Surroundings())
    assert {charges for _, charges in releases(run)} == {1}


def gradients(images: torch.Tensor, loss: DiscriminatorLoss, discriminator: Discriminator) -> torch.Tensor:
    drawn = loss.draw(len(images), 2, (1, 8, 8), torch.Generator().manual_seed(0))
    labels = torch.arange(len(images)) % 2
    found = record_gradients(discriminator, loss, trained_parameters(discriminator), images, labels, drawn)
    return torch.cat([each.flatten(1) for each in found], dim=1)


def test_a_record_s_gradient_is_its_own_and_that_of_a_loop() -> None:
    torch.manual_seed(0)
    discriminator, loss = Discriminator(2, SHAPE), DiscriminatorLoss(Generator(2, SHAPE), 2)
    images = torch.randn(3, 1, 8, 8)
    found = gradients(images, loss, discriminator)
    images[2] += 1
    assert torch.equal(gradients(images, loss, discriminator)[:2], found[:2])
    drawn = loss.draw(3, 2, (1, 8, 8), torch.Generator().manual_seed(0))
    discriminator.zero_grad()
    loss(discriminator, images[2], torch.tensor(0), tuple(part[2] for part in drawn)).mean().backward()
    alone = torch.cat([value.grad.flatten() for value in discriminator.parameters()])
    torch.testing.assert_close(gradients(images, loss, discriminator)[2], alone, rtol=1e-4, atol=1e-6)


def test_lessons_teach_the_generator_what_the_discriminator_takes_for_real() -> None:
    torch.manual_seed(0)

    class Bright(torch.nn.Module):
        def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return 5 * images.mean(dim=(1, 2, 3)) * (2 * labels - 1)

    learner = learning.Learner(Generator(2, SHAPE), 2, adapter.PlainTraining(steps=90, batch=32), 0)
    learner.learn(Bright())
    codes = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
    shades = learner.average.images(codes, np.arange(20) % 2).mean(axis=(1, 2, 3))
    assert shades[1::2].mean() - shades[0::2].mean() > 60


def test_a_generator_that_first_learns_to_make_black_does_not_stay_there() -> None:
    shape, rng = (14, 14, 1), np.random.default_rng(0)
    images = np.zeros((500, *shape), dtype=np.uint8)  # strokes on black, as digits are
    for image, column in zip(images, rng.integers(3, 10, size=500), strict=True):
        image[2:12, column] = 255
    public = adapter.PublicSet(images, rng.integers(2, size=500), CLASSES)
    torch.manual_seed(0)
    discriminator, generator = Discriminator(2, shape), Generator(2, shape)
    settings = adapter.PlainTraining(steps=500, batch=64, learning_rate=1e-3)
    learning.train_on_public(discriminator, generator, public, settings, 0, lambda: None)
    made = generator.images(rng.standard_normal((40, 8)).astype(np.float32), np.arange(40) % 2)
    assert made.mean() > 5  # of the strokes: 13


def test_public_images_draw_the_generator_towards_them() -> None:
    private = records(100)
    torch.manual_seed(0)
    discriminator, generator = Discriminator(2, SHAPE), Generator(2, SHAPE)
    codes, wanted = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32), private.samples.mean(axis=0)

    def away() -> float:
        return float(np.abs(generator.images(codes, np.arange(40) % 2).mean(axis=0) - wanted).mean())

    before = away()
    public = adapter.PublicSet(private.samples, private.labels.astype(np.int64), CLASSES)
    settings = adapter.PlainTraining(steps=60, batch=16, learning_rate=3e-3)
    learning.train_on_public(discriminator, generator, public, settings, 0, lambda: None)
    assert away() < before / 2


def test_what_cannot_be_fitted_is_one_sentence(tmp_path: Path) -> None:
    path = private_file(tmp_path)
    for changes, sentence in [
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"public": "nowhere"}, "there is no folder with images at '.*nowhere'"),
        ({"lesson": {"steps": 0}}, "lesson.steps"),
    ]:
        with pytest.raises(RecipeError, match=sentence):
            run_recipe(gan(path, **changes), tmp_path / "run", Surroundings())
