"""The fitted model on disk, a folder in diffusers' format, which `pixel_diffusion` reads, too; how it is sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from pydantic import Field

from adapters.diffusion.pixel import PixelFiles, PixelSpace, Sampler
from pe.errors import RecipeError
from pe.plugins.settings import Count, Settings

if TYPE_CHECKING:
    from diffusers import DDIMScheduler, DDPMScheduler
    from torch import nn


class Sampling(Settings):
    """How the fitted model is sampled; see `PixelSpace`.

    Attributes:
        steps: from pure noise to an image, at most the 1,000 of the noise's schedule.
        sampler: ddim or ddpm.
        eta: of ddim: 0 is deterministic given the first noise.
        chunk: most images of one request.
    """

    steps: Annotated[int, Field(ge=1, le=1000)] = 25
    sampler: Sampler = "ddim"
    eta: Annotated[float, Field(ge=0, le=1)] = 0.0
    chunk: Count = 1024


def write_model(
    model: nn.Module,
    labels: Sequence[str],
    folder: Path,
    clusters: int = 1,
    schedule: DDIMScheduler | DDPMScheduler | None = None,
) -> None:
    """unet/ and scheduler/ in diffusers' format, and classes.json: the classes' names, and the label of each.

    `schedule`: of the noise; None: the toolkit's own.
    """
    from diffusers import UNet2DModel

    from adapters.trained.diffusion_training import scheduler

    assert isinstance(model, UNet2DModel)
    model.cpu().save_pretrained(folder / "unet", safe_serialization=True)
    (schedule or scheduler()).save_pretrained(folder / "scheduler")
    names = [(f"{label}/{i}" if clusters > 1 else label, label) for label in labels for i in range(clusters)]
    content = {"classes": [name for name, _ in names], "labels": [label for _, label in names]}
    (folder / "classes.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


def open_model(
    folder: Path, sampling: Sampling, device: str | list[str], batch_size: int | None, guidance: float = 1.0
) -> tuple[PixelSpace, tuple[str, ...]]:
    """The generator that samples the model in `folder`, each label from its classes, and the labels.

    Raises:
        RecipeError: there is none, or a part of it is missing.
    """
    files = PixelFiles.find(str(folder), None, offline=True)
    if not files.classes or not files.weights.is_file():
        raise RecipeError(f"{folder} holds no fitted diffusion model: fit it in a new run.")
    of_label: dict[str | int, int | str | list[int | str]] = {}
    for number, label in enumerate(labels_of(folder)):
        cast(list[int | str], of_label.setdefault(label, [])).append(number)
    found = PixelSpace(
        model=str(folder),
        steps=sampling.steps,
        sampler=sampling.sampler,
        eta=sampling.eta,
        classes=of_label,
        guidance=guidance,
        device=device,
        batch_size=batch_size,
        chunk=sampling.chunk,
        offline=True,
    )
    return found, tuple(map(str, of_label))


def labels_of(folder: Path) -> list[str]:
    """The label of each class of the model in `folder`.

    Raises:
        RecipeError: the file that holds them is damaged.
    """
    try:
        return list(map(str, json.loads((folder / "classes.json").read_text(encoding="utf-8"))["labels"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"{folder / 'classes.json'} is damaged: fit the model in a new run.") from error
