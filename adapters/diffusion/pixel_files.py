"""A pixel-space model's files: a folder in diffusers' format, or one .safetensors file with its settings beside it.

FOLDER/unet/config.json, diffusion_pytorch_model.safetensors     (or both at the top of the folder)
FOLDER/scheduler/scheduler_config.json                           (or at the top)
FOLDER/classes.json                                              optional: {"classes": [name of class 0, …]}

NAME.safetensors, and NAME.json: {"unet": UNet2DModel's settings, "scheduler": …, "classes": optional}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapters.diffusion.device import Precision, dtype_on
from adapters.diffusion.pixel_model import PixelModel
from adapters.diffusion.weights import SAFETENSORS, model_folder, read_json, require
from pe.errors import RecipeError

if TYPE_CHECKING:
    import torch
    from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel

Sampler = Literal["ddim", "ddpm"]

_SHIPPED = {"small": Path(__file__).with_name("small")}
_WEIGHTS = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True)
class PixelFiles:
    """Where the parts of a model are, found without loading them.

    Attributes:
        weights: the .safetensors file.
        unet: UNet2DModel's settings.
        scheduler: its scheduler's settings.
        classes: the names of its classes, in order; empty where it names none.
    """

    weights: Path
    unet: dict[str, Any]
    scheduler: dict[str, Any]
    classes: tuple[str, ...]

    @classmethod
    def find(cls, model: str, revision: str | None, offline: bool) -> PixelFiles:
        """The files of a shipped model (`small`), a folder, a file, or a repository of the hub.

        Raises:
            RecipeError: they are not there, cannot be fetched, or are not of a UNet2DModel.
            MissingDependency: diffusers is not installed.
        """
        require("diffusers")
        place = model_folder(str(_SHIPPED.get(model, model)), revision, offline, lambda: _fetch(model, revision))
        found = cls._of_file(place) if place.is_file() else cls._of_folder(place)
        kind = found.unet.get("_class_name", "UNet2DModel")
        if kind != "UNet2DModel":
            raise RecipeError(f"model: '{model}' is a {kind}; this adapter runs UNet2DModel, in pixel space.")
        return found

    @classmethod
    def _of_file(cls, file: Path) -> PixelFiles:
        settings = read_json(file.with_suffix(".json"))
        missing = [key for key in ("unet", "scheduler") if not isinstance(settings.get(key), dict)]
        if missing:
            raise RecipeError(
                f"{file.with_suffix('.json')} lacks '{missing[0]}': the settings of the model's {missing[0]}."
            )
        return cls(file, settings["unet"], settings["scheduler"], _names(settings))

    @classmethod
    def _of_folder(cls, folder: Path) -> PixelFiles:
        inner = folder / "unet" if (folder / "unet").is_dir() else folder
        scheduler = folder / "scheduler" if (folder / "scheduler").is_dir() else folder
        names = folder / "classes.json"
        return cls(
            inner / _WEIGHTS,
            dict(read_json(inner / "config.json")),
            dict(read_json(scheduler / "scheduler_config.json")),
            _names(read_json(names)) if names.is_file() else (),
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the model's images.

        Raises:
            RecipeError: its settings do not state them.
        """
        size, channels = self.unet.get("sample_size"), int(self.unet.get("in_channels", 3))
        sides = [size, size] if isinstance(size, int) else size
        if not isinstance(sides, list | tuple) or len(sides) != 2:
            raise RecipeError(
                f"{self.weights}: the model's settings state no sample_size, so its images' size is unknown."
            )
        return channels, int(sides[0]), int(sides[1])

    def class_count(self, guided: bool = False) -> int | None:
        """How many classes an image may have; None: the model takes none.

        The last class stands for none where the model is guided, and where all classes but that one are named.
        """
        count = self.unet.get("num_class_embeds")
        if count is None:
            return None
        return int(count) - (guided or len(self.classes) == int(count) - 1)

    def network(self) -> UNet2DModel:
        """The network on the CPU, with its weights.

        Raises:
            RecipeError: the weights are missing, damaged, or of another network.
        """
        from diffusers import UNet2DModel
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not self.weights.is_file():
            raise RecipeError(f"{self.weights} is missing: put the model's weights there, as {SAFETENSORS}.")
        network = UNet2DModel.from_config(self.unet)
        try:
            network.load_state_dict(load_file(self.weights))
        except (SafetensorError, OSError) as error:
            raise RecipeError(f"{self.weights} is no whole {SAFETENSORS} file: fetch it anew.") from error
        except RuntimeError as error:
            first = str(error).strip().splitlines()[1:2] or [str(error)]
            raise RecipeError(f"{self.weights} holds weights of another network: {first[0].strip()[:160]}") from error
        return network

    def load(
        self,
        device: torch.device,
        precision: Precision,
        *,
        sampler: Sampler = "ddim",
        eta: float = 0.0,
        classes: int | None = None,
        compile: bool = False,  # noqa: A002
    ) -> PixelModel:
        """The network on a device, and its sampler.

        Args:
            device: where it computes.
            precision: of its arithmetic.
            sampler: which one.
            eta: of ddim.
            classes: how many an image may have; None: the network takes none.
            compile: the network by torch.compile.

        Raises:
            RecipeError: see `network`.
        """
        from torch import nn

        network, dtype = self.network().eval().requires_grad_(False), dtype_on(device, precision)
        nn.Module.to(network, device, dtype)  # diffusers' own `to` warns of modules to keep in float32, and names none
        if compile:
            network.compile()
        return PixelModel(network, self.sampler(sampler), self.shape, device, dtype, classes, eta)

    def sampler(self, kind: Sampler) -> DDIMScheduler | DDPMScheduler:
        """A scheduler with the model's own noise schedule."""
        from diffusers import DDIMScheduler, DDPMScheduler

        return (DDIMScheduler if kind == "ddim" else DDPMScheduler).from_config(self.scheduler)


def _fetch(model: str, revision: str | None) -> str:
    from huggingface_hub import snapshot_download

    wanted = ["*config.json", "classes.json", _WEIGHTS, f"unet/{_WEIGHTS}"]
    return snapshot_download(model, revision=revision, allow_patterns=wanted)


def _names(settings: Any) -> tuple[str, ...]:
    return tuple(map(str, settings.get("classes", ())))
