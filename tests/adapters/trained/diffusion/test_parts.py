"""The parts of a fit: images, network, loss, plain training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from adapters.diffusion.pixel import PixelFiles
from adapters.trained.diffusion import labels_of
from adapters.trained.diffusion_networks import (
    Velocity,
    only_attention_and_classes,
    scheduler,
    unet,
    with_new_classes,
    write_model,
)
from adapters.trained.dp_sgd.gradients import record_gradients
from adapters.trained.public import Characters, Folder, PublicSet, train
from adapters.trained.settings import Network, PlainTraining
from pe.errors import RecipeError
from tests.adapters.trained.diffusion.small import NETWORK, SHAPE
from tests.adapters.trained.sources import source

TINY = Network.model_validate(NETWORK)


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand((count, 1, 8, 8), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_the_loss_is_that_of_the_schedule_which_samples() -> None:
    loss, schedule = Velocity(), scheduler()
    drawn = tuple(part[0] for part in loss.draw(1, 5, (1, 8, 8), torch.Generator().manual_seed(3)))
    steps, _, noise = drawn
    x, seen = images(5), []

    class Oracle:
        """Knows the velocity, but for 0.5."""

        def __call__(self, noisy: torch.Tensor, t: torch.Tensor, class_labels: torch.Tensor) -> object:
            seen.append((noisy, t))
            sample = schedule.get_velocity(x, noise, t) + 0.5
            return type("Output", (), {"sample": sample})

    losses = loss(Oracle(), x, torch.zeros(5, dtype=torch.int64), drawn)
    torch.testing.assert_close(losses, torch.full((5,), 0.25))
    torch.testing.assert_close(seen[0][0], schedule.add_noise(x, noise, steps))


def test_a_record_s_timesteps_are_spread_over_the_schedule() -> None:
    steps, level, noise = Velocity().draw(300, 4, (1, 8, 8), torch.Generator().manual_seed(0))
    assert noise.shape == (300, 4, 1, 8, 8)
    assert ((steps // 250) == torch.arange(4)).all()
    assert 0 <= steps.min() < 10
    assert 990 < steps.max() <= 999
    assert level.min() == 0


@pytest.mark.parametrize("classes", [1, 3])
def test_per_record_gradients_equal_a_loop_over_records(classes: int) -> None:
    model, loss, x = unet(TINY, SHAPE, classes, 0, "test"), Velocity(), images(3)
    labels = torch.arange(3) % classes
    drawn = loss.draw(3, 2, (1, 8, 8), torch.Generator().manual_seed(1))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    found = record_gradients(model, loss, parameters, x, labels, drawn)
    for i in range(3):
        model.zero_grad()
        loss(model, x[i], labels[i], tuple(part[i] for part in drawn)).mean().backward()
        for gradient, parameter in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(gradient[i], parameter.grad, atol=1e-5, rtol=1e-4)


def test_a_class_changes_what_the_network_finds() -> None:
    model, x = unet(TINY, SHAPE, 2, 0, "test"), images(1).expand(2, -1, -1, -1)
    found = model(x, torch.tensor([500, 500]), class_labels=torch.tensor([0, 1])).sample
    assert (found[0] - found[1]).abs().mean() > 1e-3


def test_new_classes_and_what_is_trained_survive_the_way_through_the_disk(tmp_path: Path) -> None:
    model = with_new_classes(unet(TINY, SHAPE, 4, 0, "test"), 2, 0)
    write_model(model, ("a", "b"), tmp_path)
    assert PixelFiles.find(str(tmp_path), None, True).unet["num_class_embeds"] == 2
    read_back = PixelFiles.find(str(tmp_path), None, True).network()
    for name, value in model.state_dict().items():
        assert torch.equal(value, read_back.state_dict()[name]), name
    assert labels_of(tmp_path) == ["a", "b"]


def test_dp_ldm_trains_attention_and_class_embedding_alone() -> None:
    model = only_attention_and_classes(unet(TINY, SHAPE, 2, 0, "test"))
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert "class_embedding.weight" in trained
    assert any(name.startswith("mid_block.attentions.0.to_q") for name in trained)
    assert not any("resnets" in name or "conv" in name or "time_embedding" in name for name in trained)


def test_plain_training_learns_and_repeats_itself_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    pixels = np.repeat(np.where(np.arange(32) % 2, 220, 30)[:, None, None, None], 64, axis=1).reshape(32, 8, 8, 1)
    public = PublicSet((pixels + rng.integers(0, 10, pixels.shape)).astype(np.uint8), np.arange(32) % 2, ("a", "b"))
    loss, ends = Velocity(), []
    for _ in range(2):
        model, losses = unet(TINY, SHAPE, 2, 0, "test"), []

        def loss_of(x: torch.Tensor, labels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            drawn = tuple(part[0] for part in loss.draw(1, len(x), (1, 8, 8), generator))
            losses.append(loss(model, x, labels, drawn).mean())  # noqa: B023
            return losses[-1]  # noqa: B023

        ends.append(train(model, public, PlainTraining(steps=16, batch=16), loss_of, 0, "test", lambda: None))
    assert torch.stack(losses[-4:]).mean() < 0.8 * torch.stack(losses[:4]).mean()
    for one, other in zip(ends[0].parameters(), ends[1].parameters(), strict=True):
        assert torch.equal(one, other)


def folder_of(place: Path) -> Path:
    for name, shade in (("dark", 20), ("light", 230)):
        (place / name).mkdir()
        for i in range(3):
            Image.fromarray(np.full((16, 12), shade + i, dtype=np.uint8)).save(place / name / f"{i}.png")
    return place


def test_public_images_come_from_a_folder_an_npz_or_the_pen(tmp_path: Path) -> None:
    folder = source(str(folder_of(tmp_path))).read(SHAPE, 0)
    assert folder.images.shape == (6, *SHAPE)
    assert folder.names == Folder(path=tmp_path).label_names() == ("dark", "light")
    np.testing.assert_array_equal(folder.labels, [0, 0, 0, 1, 1, 1])

    np.savez(tmp_path / "some.npz", images=folder.images, labels=np.array(list("baabba")))
    arrays = source(tmp_path / "some.npz").read(SHAPE, 0)
    assert arrays.names == source(tmp_path / "some.npz").label_names() == ("a", "b")
    np.testing.assert_array_equal(arrays.labels, [1, 0, 0, 1, 1, 0])

    drawn = source({"kind": "glyphs", "characters": "BAB", "count": 5})
    glyphs = drawn.read(SHAPE, 0)
    assert glyphs.names == drawn.label_names() == ("B", "A")
    np.testing.assert_array_equal(glyphs.labels, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(glyphs.images, drawn.read(SHAPE, 0).images)
    assert (glyphs.images != drawn.read(SHAPE, 1).images).any()


def test_images_beside_the_subfolders_make_a_public_set_unlabelled(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(folder_of(tmp_path) / "alone.png")
    public = Folder(path=tmp_path)
    assert public.label_names() == public.read(SHAPE, 0).names == ()
    assert public.read(SHAPE, 0).classes == 1


def test_selected_images_carry_the_private_labels() -> None:
    shades = np.arange(6, dtype=np.uint8)[:, None, None, None] * np.ones(SHAPE, dtype=np.uint8)
    public = PublicSet(shades, np.array([0, 1, 2, 0, 1, 3]), tuple("abcd"))
    chosen = public.selected(np.array([[3, 1], [0, 2]]))
    np.testing.assert_array_equal(chosen.images[:, 0, 0, 0], [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(chosen.labels, [1, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(public.selected(np.array([[2], [1]])).images[:, 0, 0, 0], [1, 2, 4])


def test_a_network_of_no_stated_size_fits_the_images() -> None:
    assert Network().levels(8, 8) == (16,)
    assert Network().levels(14, 14) == (16, 32)
    assert Network().levels(28, 28) == (16, 32, 32)
    count = sum(p.numel() for p in unet(Network(), (14, 14, 1), 10, 0, "test").parameters())
    assert 0.15e6 < count < 0.2e6


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        ((6, 6), "6×6 pixels are too small for that: take fewer levels, or images of at least 8 pixels"),
        ((10, 12), "10×12 cannot be halved so often: take fewer levels, or sides that 4 divides"),
    ],
)
def test_images_that_a_network_cannot_halve_are_refused(size: tuple[int, int], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Network(channels=(8, 8, 8)).levels(*size)


def test_a_public_set_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "others.npz", pictures=np.zeros((2, 8, 8), dtype=np.uint8))
    for name, sentence in (
        ("text.npz", "no .npz file that can be read"),
        ("others.npz", "no array 'images', only pic"),
    ):
        with pytest.raises(RecipeError, match=sentence):
            source(tmp_path / name).check(SHAPE)
    with pytest.raises(RecipeError, match="no folder with images"):
        source(tmp_path).check(SHAPE)
    with pytest.raises(RecipeError, match="glyphs, which are square"):
        Characters().check((8, 10, 1))
