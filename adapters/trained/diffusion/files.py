"""The fitted model on disk: a folder in diffusers' format, which `pixel_diffusion` reads, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.diffusion.pixel_files import PixelFiles
from adapters.diffusion.pixel_space import PixelSpace
from adapters.trained.diffusion.settings import Sampling
from pe.errors import RecipeError

if TYPE_CHECKING:
    from torch import nn


def write_model(model: nn.Module, classes: Sequence[str], folder: Path) -> None:
    """unet/ and scheduler/ in diffusers' format, and classes.json: the labels' names."""
    from diffusers import UNet2DModel

    from adapters.trained.diffusion.network import scheduler

    assert isinstance(model, UNet2DModel)
    model.cpu().save_pretrained(folder / "unet", safe_serialization=True)
    scheduler().save_pretrained(folder / "scheduler")
    (folder / "classes.json").write_text(json.dumps({"classes": list(classes)}) + "\n", encoding="utf-8")


def open_model(
    folder: Path, sampling: Sampling, device: str | list[str], batch_size: int | None, guidance: float = 1.0
) -> tuple[PixelSpace, tuple[str, ...]]:
    """The generator that samples the model in `folder`, each label from its class, and the labels.

    Raises:
        RecipeError: there is none, or a part of it is missing.
    """
    files = PixelFiles.find(str(folder), None, offline=True)
    if not files.classes or not files.weights.is_file():
        raise RecipeError(f"{folder} holds no fitted diffusion model: fit it in a new run.")
    found = PixelSpace(
        model=str(folder),
        steps=sampling.steps,
        sampler=sampling.sampler,
        eta=sampling.eta,
        classes={name: name for name in files.classes},
        guidance=guidance,
        device=device,
        batch_size=batch_size,
        chunk=sampling.chunk,
        offline=True,
    )
    return found, files.classes
