"""An improved-diffusion checkpoint: found, looked at, and loaded onto a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

from adapters.diffusion.device import Precision, dtype_on
from adapters.diffusion.improved_schedule import TRAINED, CosineDDIM, Spacing
from adapters.diffusion.pixel_model import PixelModel
from pe.errors import RecipeError
from pe.plugins.devices import require_torch
from pe.plugins.weights import SAFETENSORS, Published, find_published, read_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PLACE = "https://openaipublic.blob.core.windows.net/diffusion/march-2021/"
TORCH = ".pt"


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


@dataclass(frozen=True, kw_only=True)
class ImprovedFiles:
    """A checkpoint, and how its network was trained.

    Attributes:
        model: a published name, or a checkpoint's file.
        spacing: of the steps over the trained timesteps.
        rescaled: whether the network was told rescaled times; None: as published, for a file of a published name, else
            not.
        size: height and width in pixels.
        offline: fetch nothing.

    Raises:
        RecipeError: a value is out of range.
    """

    model: str
    spacing: Spacing = "ends"
    rescaled: bool | None = None
    size: int = 64
    offline: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise RecipeError(f"size is {self.size}: it must be at least 1.")
        if self.spacing not in get_args(Spacing):
            raise RecipeError(f"spacing is '{self.spacing}': it must be one of {', '.join(get_args(Spacing))}.")

    @property
    def is_rescaled(self) -> bool:
        """Whether the network is told rescaled times."""
        published = PUBLISHED.get(Path(self.model).stem)
        return published is not None and published.rescaled if self.rescaled is None else self.rescaled

    def find(self) -> Path:
        """A file, or a published checkpoint in torch.hub's folder of checkpoints, fetched into it unless `offline`.

        Raises:
            RecipeError: it is not there, or cannot be fetched.
            MissingDependency: torch is not installed.
        """
        if self.model not in PUBLISHED:
            file = Path(self.model).expanduser()
            if file.is_file():
                return file
            known = ", ".join(PUBLISHED)
            raise RecipeError(
                f"model: there is no file '{self.model}'; put the checkpoint there, or name one of {known}."
            )
        require_torch("diffusion", "A local diffusion model")
        name = f"{self.model}{TORCH}"
        published = Published(name, _PLACE + name, None, (f"{self.model}{SAFETENSORS}",), "model")
        return find_published(published, self.offline)

    def class_count(self) -> int | None:
        """How many classes the network has; of a file of one's own its weights tell. None: it takes none."""
        from adapters.diffusion.improved_unet import shape_of

        if self.model in PUBLISHED:
            return PUBLISHED[self.model].classes
        return shape_of(read_weights(self.find())).classes

    def load(self, device: torch.device, precision: Precision, compile: bool = False) -> PixelModel:  # noqa: A002
        """The network and DDIM on the cosine schedule.

        Raises:
            RecipeError: the weights are not there, or of another network; or the size does not suit them.
        """
        from adapters.diffusion.improved_unet import ImprovedUNet, shape_of

        file, dtype = self.find(), dtype_on(device, precision)
        tensors = read_weights(file)
        shape = shape_of(tensors)
        coarsest = 2 ** (len(shape.multipliers) - 1)
        if self.size % coarsest:
            raise RecipeError(f"size is {self.size}: {file.name} works on images of a multiple of {coarsest} pixels.")
        network = ImprovedUNet(shape)
        try:
            network.load_state_dict(tensors)
        except RuntimeError as error:
            first = str(error).strip().splitlines()[1:2] or [str(error)]
            raise RecipeError(f"{file} holds weights of another network: {first[0].strip()[:160]}") from error
        network.eval().requires_grad_(False).to(device, dtype)
        if compile:
            network.compile()
        scale = 1000 / TRAINED if self.is_rescaled else 1.0

        def predicted(x: Tensor, time: Tensor, class_labels: Tensor | None) -> SimpleNamespace:
            return SimpleNamespace(sample=network(x, (time.float() * scale).expand(len(x)), class_labels))

        called: Any = predicted  # as diffusers' networks are called
        scheduler: Any = CosineDDIM(self.spacing)
        return PixelModel(called, scheduler, (3, self.size, self.size), device, dtype, shape.classes, afresh=False)


def is_improved(model: str) -> bool:
    """Whether this names a checkpoint of that kind: by its published name, its ending, or its tensors' names."""
    from safetensors import SafetensorError, safe_open

    file = Path(model).expanduser()
    if model in PUBLISHED or (file.suffix == TORCH and file.is_file()):
        return True
    if file.suffix != SAFETENSORS or not file.is_file():
        return False
    try:
        with safe_open(file, framework="np") as opened:
            return any(name.removeprefix("module.") == "time_embed.0.weight" for name in opened.keys())  # noqa: SIM118
    except SafetensorError:
        return False
