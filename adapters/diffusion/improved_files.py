"""Checkpoints of improved diffusion: which there are, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pe.errors import RecipeError
from pe.plugins.devices import require_torch
from pe.plugins.weights import SAFETENSORS, Published, find_published

_PLACE = "https://openaipublic.blob.core.windows.net/diffusion/march-2021/"


@dataclass(frozen=True)
class Trained:
    """What is to be known of a checkpoint of the paper's.

    Attributes:
        classes: of the API; None: unconditional.
        rescaled: whether the network was told times from 0 to 1,000 instead of its 4,000 timesteps.
    """

    classes: int | None
    rescaled: bool


PUBLISHED = {
    "imagenet64_cond_270M_250K": Trained(1000, rescaled=False),
    "imagenet64_uncond_100M_1500K": Trained(None, rescaled=True),
}


def find_checkpoint(model: str, offline: bool) -> Path:
    """A file, or a published checkpoint in torch.hub's folder of checkpoints, fetched into it unless `offline`.

    Raises:
        RecipeError: it is not there, or cannot be fetched.
        MissingDependency: torch is not installed.
    """
    if model not in PUBLISHED:
        file = Path(model).expanduser()
        if file.is_file():
            return file
        known = ", ".join(PUBLISHED)
        raise RecipeError(f"model: there is no file '{model}'; put the checkpoint there, or name one of {known}.")
    require_torch("diffusion", "A local diffusion model")
    name = f"{model}.pt"
    return find_published(Published(name, _PLACE + name, None, (f"{model}{SAFETENSORS}",), "model"), offline)
