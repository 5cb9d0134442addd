"""Checkpoints of improved diffusion: found or fetched, and read without running anything that is in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapters.diffusion.weights import SAFETENSORS, require
from pe.errors import RecipeError

if TYPE_CHECKING:
    from torch import Tensor

_PLACE = "https://openaipublic.blob.core.windows.net/diffusion/march-2021/"


@dataclass(frozen=True)
class Published:
    """A checkpoint of the paper's.

    Attributes:
        classes: of the API; None: unconditional.
        rescaled: whether the network was told times from 0 to 1,000 instead of its 4,000 timesteps.
    """

    classes: int | None
    rescaled: bool


PUBLISHED = {
    "imagenet64_cond_270M_250K": Published(1000, rescaled=False),
    "imagenet64_uncond_100M_1500K": Published(None, rescaled=True),
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
    require("torch")
    import torch

    folder, name = Path(torch.hub.get_dir()) / "checkpoints", f"{model}.pt"
    for file in (folder / name, folder / f"{model}{SAFETENSORS}"):
        if file.is_file():
            return file
    remedy = f"get it from {_PLACE}{name} and put it in {folder}, or name its place under model"
    if offline:
        raise RecipeError(f"The weights {name} are not here and offline is true: {remedy}.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(_PLACE + name, str(folder / name), progress=False)
    except OSError as error:  # urllib's URLError among them
        raise RecipeError(f"The weights {name} cannot be fetched ({error}): {remedy}.") from error
    return folder / name


def read_checkpoint(file: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint.

    Raises:
        RecipeError: the file holds something else.
    """
    import torch

    try:
        content = _read(file)
    except Exception as error:  # whatever a reader makes of a broken or foreign file
        raise RecipeError(
            f"{file} holds no plain weights, and code in files is never run: give a checkpoint of tensors alone."
        ) from error
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise RecipeError(f"{file} holds no table of tensors: give the network's state_dict.")
    return content


def _read(file: Path) -> Any:
    import torch

    if file.suffix == SAFETENSORS:
        from safetensors.torch import load_file

        return load_file(file)
    return torch.load(file, map_location="cpu", weights_only=True)
