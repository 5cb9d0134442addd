"""DP-ImgSyn's teacher: its gradients, and one of a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adapters.trained.dp_imgsyn_networks import CrossEntropy, Reader, make_teacher
from adapters.trained.dp_sgd.gradients import record_gradients
from adapters.trained.public import tensors
from pe.engine.execution import Surroundings, run_recipe
from pe.engine.extend import extend_run
from pe.errors import PEError, RecipeError
from pe.recipe.schema import Recipe
from tests.adapters.trained.dp_imgsyn.small import (
    CPU,
    SHAPE,
    SIDE,
    private_file,
    recipe,
)


@pytest.mark.parametrize("kind", ["small", "resnet18"])
def test_per_record_gradients_equal_a_loop_over_records(kind: str) -> None:
    torch.manual_seed(0)
    model, loss = make_teacher(kind, 1, SIDE, 2, 0), CrossEntropy(1)
    images, labels = torch.randn(3, 1, SIDE, SIDE), torch.tensor([0, 1, 1])
    drawn = loss.draw(3, 2, (1, SIDE, SIDE), torch.Generator().manual_seed(0))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    found = record_gradients(model, loss, parameters, images, labels, drawn)
    for i in range(3):
        model.zero_grad()
        loss(model, images[i], labels[i], tuple(part[i] for part in drawn)).mean().backward()
        for each, (name, value) in zip(found, model.named_parameters(), strict=True):
            assert value.grad is not None, name
            torch.testing.assert_close(each[i], value.grad, rtol=1e-4, atol=1e-5)


def test_a_shifted_copy_is_the_image_moved() -> None:
    image = torch.arange(9.0).view(1, 3, 3)
    seen: list[torch.Tensor] = []

    def model(copies: torch.Tensor) -> torch.Tensor:
        seen.append(copies)
        return torch.zeros(len(copies), 2)

    CrossEntropy(1)(model, image, torch.tensor(0), (torch.tensor([[0, 0], [1, 0], [0, -1]]),))
    torch.testing.assert_close(seen[0][0], image)
    torch.testing.assert_close(seen[0][1, 0, 1:], image[0, :-1])
    torch.testing.assert_close(seen[0][2, 0, :, :-1], image[0, :, 1:])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"teacher": "large"}, "take small, resnet18 or package.module:function"),
        ({"teacher": f"{__name__}:with_batch_norm"}, "BatchNorm2d.*take GroupNorm in its place"),
        ({"teacher": f"{__name__}:without_norm"}, "no GroupNorm layer"),
        ({"teacher": f"{__name__}:with_spectral_norm"}, "writes to '0.parametrizations.weight.0._u' when it is called"),
        ({"teacher": f"{__name__}:with_running_mean"}, "RunningMean writes to 'mean' when it is called.*GroupNorm"),
        ({"teacher": f"{__name__}:with_a_count"}, "Counting answers the same image otherwise when it is asked again"),
        ({"teacher": f"{__name__}:with_coins"}, "Coins answers the same image otherwise"),
        ({"teacher": f"{__name__}:with_wide_kernel"}, "cannot be trained record by record on images of 8×8×1 .*Kernel"),
        ({"teacher": f"{__name__}:with_a_branch"}, "cannot be trained record by record on images of 8×8×1 .*vmap"),
        ({"teacher": f"{__name__}:of_five"}, "makes 3×5 numbers of 3 images, not 3×2 logits"),
        ({"alignment": {"companions": 50}}, "companions is 50, and the public set has 40 images"),
        ({"moments_share": 1.0}, "moments_share is 1"),
        ({"moments_share": 1e-6}, "24 records add at most 1 each: take a larger share"),
        ({"public": {"kind": "folder", "path": "nowhere"}}, "no folder with images at '.*nowhere'"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = private_file(tmp_path)
    with pytest.raises(PEError, match=said) as raised:
        run_recipe(recipe(path, **changes), tmp_path / "run", Surroundings())
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == [path]  # neither a run nor an entry in the data set's ledger


def test_a_teacher_of_one_s_own_is_fitted_and_layers_may_share_their_weights(tmp_path: Path) -> None:
    own = {"teacher": f"{__name__}:with_tied_weights"}
    run = run_recipe(recipe(private_file(tmp_path), **own), tmp_path / "run", Surroundings())
    assert len(run.synthetic) == 8
    assert np.load(extend_run(run.folder, 4, 0.5, Surroundings()))["images"].shape == (4, *SHAPE)

    handed_on = {"kind": "trained", "path": str(run.folder)}
    content = recipe(private_file(tmp_path)).model_dump(mode="json") | {"api": handed_on}
    with pytest.raises(RecipeError, match=r"runs code that it names itself, teacher: '.*:with_tied_weights'"):
        run_recipe(Recipe.parse(content, "the test"), tmp_path / "other", Surroundings())
    content["api"] = handed_on | {"settings": own}
    assert len(run_recipe(Recipe.parse(content, "the test"), tmp_path / "other", Surroundings()).synthetic) == 8


def with_batch_norm(channels: int, classes: int) -> nn.Module:
    norm = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4))
    return nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def ending(front: nn.Module, classes: int) -> nn.Module:
    return nn.Sequential(front, nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def with_spectral_norm(channels: int, classes: int) -> nn.Module:
    return ending(nn.utils.parametrizations.spectral_norm(nn.Conv2d(channels, 4, 3)), classes)


class Changed(nn.Module):
    """A teacher with something before it."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.rest = ending(nn.Conv2d(channels, 4, 3), classes)
        self.register_buffer("mean", torch.zeros(()))
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.rest(self.before(images))
        return found

    def before(self, images: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class RunningMean(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * images.mean()
        return images - self.mean


class Counting(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return images * self.calls


class Coins(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(images, 0.5, training=True)


class Branch(Changed):
    def before(self, images: torch.Tensor) -> torch.Tensor:
        return images if images.mean() > 0 else -images


class Tied(Changed):
    def __init__(self, channels: int, classes: int) -> None:
        super().__init__(channels, classes)
        self.one, self.other = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.other.weight = self.one.weight

    def before(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.other(self.one(images))
        return found


with_running_mean, with_a_count, with_coins, with_a_branch = RunningMean, Counting, Coins, Branch
with_tied_weights = Tied


def with_wide_kernel(channels: int, classes: int) -> nn.Module:
    return ending(nn.Conv2d(channels, 4, 12), classes)


def of_five(channels: int, classes: int) -> nn.Module:
    return ending(nn.Conv2d(channels, 4, 3), 5)


def test_what_a_layer_writes_when_it_is_called_reaches_no_other_image() -> None:
    """Beside the refusal: buffers are copied for every call, in training and in reading."""
    torch.manual_seed(0)
    public = np.random.default_rng(0).integers(0, 256, (6, *SHAPE), dtype=np.uint8)
    reader = Reader(RunningMean(1, 2), CPU)
    alone = reader.moments(public[:1])
    reader.moments(public[1:])
    np.testing.assert_array_equal(np.hstack(reader.moments(public[:1])), np.hstack(alone))
    assert reader.teacher.mean == 0

    model, loss = with_spectral_norm(1, 2).train(), CrossEntropy(1)
    before = {name: value.clone() for name, value in model.named_buffers()}
    drawn = loss.draw(6, 2, (1, SIDE, SIDE), torch.Generator().manual_seed(0))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    record_gradients(model, loss, parameters, tensors(public, CPU), torch.arange(6) % 2, drawn)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def without_norm(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
