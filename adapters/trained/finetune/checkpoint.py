"""A user's checkpoint in pixel space: its network with the private labels for classes, its noise, its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from adapters.diffusion.pixel_files import PixelFiles
from adapters.trained.diffusion.files import write_model
from adapters.trained.diffusion.loss import Randomness, Velocity
from adapters.trained.dp_sgd.gradients import Loss
from pe.errors import RecipeError

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from pe.fit.trainer import Kept

CHECKPOINT = "checkpoint.json"
"""Beside the fitted model: the SHA-256 of the files that it began at."""

Chosen = Mapping[str | int, str | int]


class Checkpoint(Protocol):
    """What a fit needs of a checkpoint; see `PixelCheckpoint` and `LatentCheckpoint`."""

    def check(self) -> None:
        """Raise RecipeError if it cannot be fitted on these images."""
        ...

    def skeleton(self) -> nn.Module:
        """The network, perhaps without its weights."""
        ...

    def network(self) -> nn.Module:
        """The network on the CPU, in float32."""
        ...

    def loss(self, device: torch.device) -> Loss:
        """The loss that it was trained by, what belongs to it on the device."""
        ...

    def write(self, network: nn.Module, folder: Path) -> None:
        """All that answers, and the digest."""
        ...

    def digest(self) -> str:
        """JSON: SHA-256 of what the fit begins at."""
        ...


@dataclass(frozen=True)
class PixelCheckpoint:
    """A UNet2DModel and its scheduler's settings.

    Attributes:
        files: where they are.
        labels: the private ones.
        shape: h, w, c of the private images.
        classes: label → class at which it begins.
    """

    files: PixelFiles
    labels: Sequence[str]
    shape: tuple[int, int, int]
    classes: Chosen | None = None

    def check(self) -> None:
        """Raise RecipeError if it makes images of another shape, or takes classes in a way that is not known here."""
        channels, height, width = self.files.shape
        if self.shape != (height, width, channels):
            wanted, given = ("×".join(map(str, each)) for each in ((height, width, channels), self.shape))
            raise RecipeError(
                f"api.model makes images of {wanted}, and the private images are {given}: set private.size and "
                "private.channels to what the checkpoint makes, or take another."
            )
        embedding = self.files.unet.get("class_embed_type")
        if embedding is not None:
            raise RecipeError(
                f"api.model embeds classes by '{embedding}': a checkpoint is fitted whose classes are numbers "
                "(num_class_embeds), or that has none."
            )
        check_prediction(self.files.scheduler.get("prediction_type", "epsilon"))

    def skeleton(self) -> nn.Module:
        """The network, to look at."""
        return self.network()

    def network(self) -> nn.Module:
        """The network, whose classes are the labels; each begins at a class of the checkpoint's, see `_first_rows`.

        Raises:
            RecipeError: the weights are missing, damaged or of another network, or there is no such class.
        """
        network = self.files.network().eval()
        rows = self._first_rows(network)
        network.class_embedding = nn.Embedding(len(rows), rows.shape[1], _weight=rows)
        network.register_to_config(num_class_embeds=len(rows))
        found: nn.Module = network
        return found

    def loss(self, device: torch.device) -> Velocity:
        """The loss that the checkpoint was trained by, on its own schedule."""
        schedule = self.files.sampler("ddpm")
        return denoising(schedule.config.prediction_type, schedule.alphas_cumprod)

    def write(self, network: nn.Module, folder: Path) -> None:
        """The fitted network, whole, with the checkpoint's schedule and digest."""
        write_model(network, self.labels, folder, schedule=self.files.sampler("ddim"))
        (folder / CHECKPOINT).write_text(self.digest() + "\n", encoding="utf-8")

    def digest(self) -> str:
        """JSON: the SHA-256 of the weights, and of the settings of network, schedule and classes."""
        settings = json.dumps([self.files.unet, self.files.scheduler, self.files.classes], sort_keys=True)
        with self.files.weights.open("rb") as opened:
            weights = hashlib.file_digest(opened, "sha256").hexdigest()
        return json.dumps({"weights": weights, "settings": hashlib.sha256(settings.encode()).hexdigest()})

    def _first_rows(self, network: UNet2DModel) -> Tensor:
        """The label embeddings before the first step, float32 labels×width.

        A label begins at the class that `classes` or its own name says, else at the mean of all; where the checkpoint
        has no classes, at zero, so that the network begins as it was.
        """
        labels, classes = self.labels, self.classes
        if network.class_embedding is None:
            if classes:
                raise RecipeError("classes is given, but the checkpoint has no classes: leave it out.")
            return torch.zeros(len(labels), network.time_embedding.linear_2.out_features)
        known = network.class_embedding.weight.detach().float()
        count = self.files.class_count() or 0
        named = {name: number for number, name in enumerate(self.files.classes)}
        given = {} if classes is None else {str(label): chosen for label, chosen in classes.items()}
        if unknown := sorted(given.keys() - set(labels)):
            raise RecipeError(f"classes names the label '{unknown[0]}', which the private records do not have.")
        return torch.stack(
            [
                known[_number(given[label], named, count)]
                if label in given
                else known[named[label]]
                if label in named
                else known[:count].mean(dim=0)
                for label in labels
            ]
        )


def check_same(digest: str, kept: Kept) -> None:
    """Keep the checkpoint's digest when a fit begins; refuse another when it goes on.

    Raises:
        RecipeError: the checkpoint is not the one that the fit began at.
    """
    before = kept.find(CHECKPOINT)
    if before is None:
        kept.keep(CHECKPOINT, digest.encode())
    elif before != digest.encode():
        raise RecipeError(
            "api.model holds another checkpoint than when this fit began: put that one back, or begin a new run."
        )


def check_prediction(prediction: str) -> None:
    """Raise RecipeError if a network predicts something that is not known here; diffusers' word."""
    if prediction not in PREDICTIONS:
        known = ", ".join(PREDICTIONS)
        raise RecipeError(f"api.model predicts '{prediction}', and those that can be fitted predict one of {known}.")


def denoising(prediction: str, levels: Tensor) -> Velocity:
    """The squared error of what a network predicts.

    Args:
        prediction: one of PREDICTIONS.
        levels: ᾱ of each timestep.
    """
    return PREDICTIONS[prediction](levels=levels)


def stored_loss(folder: Path) -> Velocity:
    """The loss by which the network in `folder` was fitted."""
    from diffusers import DDPMScheduler

    schedule = DDPMScheduler.from_pretrained(folder / "scheduler", local_files_only=True)
    return denoising(schedule.config.prediction_type, schedule.alphas_cumprod)


class _Noise(Velocity):
    """The squared error of the noise (Ho, Jain and Abbeel 2020)."""

    def noised(self, image: Tensor, label: Tensor, randomness: Randomness) -> tuple[Tensor, Tensor, Tensor]:
        noisy, _, classes = super().noised(image, label, randomness)
        return noisy, randomness[2], classes


class _Image(Velocity):
    """The squared error of the image."""

    def noised(self, image: Tensor, label: Tensor, randomness: Randomness) -> tuple[Tensor, Tensor, Tensor]:
        noisy, _, classes = super().noised(image, label, randomness)
        return noisy, image.expand(noisy.shape), classes


PREDICTIONS = {"epsilon": _Noise, "sample": _Image, "v_prediction": Velocity}
"""By diffusers' words."""


def _number(chosen: str | int, named: Mapping[str, int], count: int) -> int:
    """The number of the class that the recipe names.

    Raises:
        RecipeError: there is none.
    """
    number = named.get(str(chosen), chosen)
    if isinstance(number, str) or not 0 <= number < count:
        raise RecipeError(f"classes names '{chosen}', and the checkpoint has no such class: it has {count}.")
    return number
