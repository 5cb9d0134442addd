"""The loss of a fitted diffusion model on each image, by draws that are the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from diffusers import UNet2DModel
from torch import Tensor, nn

from adapters.trained.answers import check_labels
from adapters.trained.diffusion_training import Velocity
from adapters.trained.dp_sgd.gradients import Loss
from adapters.trained.files import labels_of
from adapters.trained.plain import tensors, torch_seed
from pe.errors import RecipeError

DRAWS = 16
"""Timesteps, spread over the schedule, and as many noises: public, and the same for every image."""


def record_losses(
    folder: Path, images: npt.NDArray[np.uint8], labels: Sequence[str], device: torch.device
) -> npt.NDArray[np.float64]:
    """The mean denoising loss over DRAWS draws, float64 (n,), of the toolkit's own networks.

    Raises:
        RecipeError: there is no model in `folder`, or it was fitted for other labels.
    """
    return losses_of(stored_network(folder), Velocity(), images, labels, labels_of(folder), device)


def stored_network(folder: Path) -> UNet2DModel:
    """The network that a fit left in `folder`.

    Raises:
        RecipeError: there is none.
    """
    try:
        return UNet2DModel.from_pretrained(folder / "unet", local_files_only=True)
    except (OSError, ValueError) as error:
        raise RecipeError(f"{folder} holds no fitted diffusion model: fit it in a new run.") from error


def losses_of(
    network: nn.Module,
    loss: Loss,
    images: npt.NDArray[np.uint8],
    labels: Sequence[str],
    classes: Sequence[str],
    device: torch.device,
) -> npt.NDArray[np.float64]:
    """The mean loss of each image over DRAWS draws, float64 (n,); of a label of several classes, the least of them.

    Args:
        network: in float32.
        loss: that it was trained by, on `device`.
        images: uint8 n×h×w×c.
        labels: n names.
        classes: the label of each of the network's classes.
        device: where to compute.

    Raises:
        RecipeError: it was fitted for other labels.
    """
    check_labels(labels, classes)
    model, shape = network.to(device).eval(), (images.shape[3], *images.shape[1:3])
    generator = torch.Generator().manual_seed(torch_seed(0, "record-losses"))
    randomness = tuple(part[0].to(device) for part in loss.draw(1, DRAWS, shape, generator))
    found = np.empty(len(images))
    with torch.inference_mode():
        for i, (pixels, label) in enumerate(zip(images, labels, strict=True)):
            image = tensors(pixels[None], device)[0]
            of_label = [number for number, name in enumerate(classes) if name == label]
            found[i] = min(float(loss(model, image, _class(number, device), randomness).mean()) for number in of_label)
    return found


def _class(number: int, device: torch.device) -> Tensor:
    return torch.tensor(number, device=device)
