"""A user's Stable Diffusion checkpoint: fitted through its latents, under a prompt for each private label.

The autoencoder and the text encoder stay as they are. A record's latent is computed within its own gradient, under
`vmap`, where no record sees another: it depends on that record alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.diffusion.text_files import INDEX, TextFiles, quiet_loading
from adapters.diffusion.text_to_image import TextToImage
from adapters.diffusion.weights import read_json
from adapters.prompts import PROMPT, Prompts, TextByLabel
from adapters.trained.diffusion.files import Sampling
from adapters.trained.diffusion.loss import Randomness, Velocity, square
from adapters.trained.finetune.checkpoint import CHECKPOINT, check_prediction, denoising
from pe.errors import RecipeError

if TYPE_CHECKING:
    from diffusers import AutoencoderKL

PROMPTS = "prompts.json"
"""Beside the fitted pipeline: the prompt of each label, and the size and channels of the images."""

_PIPELINE = "StableDiffusionPipeline"


@dataclass(frozen=True)
class LatentCheckpoint:
    """A pipeline of Stable Diffusion 1 or 2, with a prompt for each private label.

    Attributes:
        files: where it is.
        prompts: label → text.
        shape: h, w, c of the private images.
    """

    files: TextFiles
    prompts: Mapping[str, str]
    shape: tuple[int, int, int]

    def check(self) -> None:
        """Raise RecipeError if it is another pipeline, or cannot make images of this shape."""
        kind = read_json(self._folder / INDEX).get("_class_name")
        if kind != _PIPELINE:
            raise RecipeError(
                f"api.model is a {kind}: those that can be fitted are UNet2DModel in pixel space and {_PIPELINE}."
            )
        height, width, channels = self.shape
        unet, vae = (read_json(self._folder / part / "config.json") for part in ("unet", "vae"))
        least = 2 ** (len(vae["block_out_channels"]) + len(unet["block_out_channels"]) - 2)
        if height % least or width % least or channels not in (1, 3):
            raise RecipeError(
                f"api.model makes images whose sides {least} divides, grey or RGB, and the private images are "
                f"{height}×{width}×{channels}: set private.size and private.channels."
            )
        schedule = read_json(self._folder / "scheduler" / "scheduler_config.json")
        check_prediction(str(schedule.get("prediction_type", "epsilon")))

    def skeleton(self) -> nn.Module:
        """The network without its weights, to look at."""
        from diffusers import UNet2DConditionModel

        with torch.device("meta"):
            found: nn.Module = UNet2DConditionModel.from_config(dict(read_json(self._folder / "unet" / "config.json")))
        return found

    def network(self) -> nn.Module:
        """The network on the CPU, in float32.

        Raises:
            RecipeError: a file is missing or damaged.
        """
        unet: nn.Module = self._pipeline.unet.eval()
        return unet

    def loss(self, device: torch.device) -> Latent:
        """The loss that the checkpoint was trained by, on its own schedule, with its other parts on the device.

        Raises:
            RecipeError: a file is missing or damaged.
        """
        from diffusers import DDPMScheduler

        pipeline = self._pipeline
        schedule = DDPMScheduler.from_config(pipeline.scheduler.config)
        with torch.no_grad():
            table = pipeline.encode_prompt(list(self.prompts.values()), torch.device("cpu"), 1, False)[0]
        vae = pipeline.vae.eval().requires_grad_(False)
        within = denoising(schedule.config.prediction_type, schedule.alphas_cumprod)
        return Latent(within, nn.Module.to(vae, device), table.detach().to(device))

    def write(self, network: nn.Module, folder: Path) -> None:
        """The pipeline, whole, with the fitted network, the labels' prompts, and the checkpoint's digest."""
        pipeline = self._pipeline
        for part in (network, pipeline.vae):
            nn.Module.to(part, "cpu")
        pipeline.unet = network
        with quiet_loading():
            pipeline.save_pretrained(folder, safe_serialization=True)
        for path in folder.rglob("*.json"):  # the model is handed over: it does not tell where the checkpoint lay
            settings = json.loads(path.read_text(encoding="utf-8"))
            if settings.pop("_name_or_path", None) is not None:
                path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        content = {"prompts": dict(self.prompts), "shape": self.shape}
        (folder / PROMPTS).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
        (folder / CHECKPOINT).write_text(self.digest() + "\n", encoding="utf-8")

    def digest(self) -> str:
        """JSON: the SHA-256 of each weight file and each configuration."""
        found = {}
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and path.suffix in (".safetensors", ".json"):
                with path.open("rb") as opened:
                    found[path.relative_to(self._folder).as_posix()] = hashlib.file_digest(opened, "sha256").hexdigest()
        return json.dumps(found)

    @cached_property
    def _folder(self) -> Path:
        return self.files.folder()

    @cached_property
    def _pipeline(self) -> Any:
        return self.files.load({"default": torch.float32})


class Latent:
    """The squared error of what the network predicts about a record's latent; a `Loss` of DP-SGD.

    Args:
        within: the same for the latent as an image.
        vae: frozen, on the device.
        table: the prompts' embeddings, float32 labels×tokens×width, on the device.
    """

    def __init__(self, within: Velocity, vae: AutoencoderKL, table: Tensor) -> None:
        self._within, self._vae, self._table = within, vae, table
        self._halved = 2 ** (len(vae.config.block_out_channels) - 1)

    def draw(self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator) -> Randomness:
        """As `Velocity` does, of noise in the latents' shape."""
        _, height, width = shape
        latent = self._vae.config.latent_channels, height // self._halved, width // self._halved
        return self._within.draw(records, draws, latent, generator)

    def __call__(self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: Randomness) -> Tensor:
        """The losses of one record, (draws,)."""
        latent = self._encoded(image)
        noisy, wanted, _ = self._within.noised(latent, label, randomness)
        text = functional.embedding(label, self._table.flatten(1)).view(1, *self._table.shape[1:])
        steps = randomness[0]
        found = model(noisy, steps, encoder_hidden_states=text.expand(len(steps), -1, -1)).sample
        return square(found - wanted)

    def _encoded(self, image: Tensor) -> Tensor:
        """The mean of one image's latent, c×h×w, scaled as the checkpoint has it."""
        rgb = image.expand(3, -1, -1)
        found: Tensor = self._vae.encode(rgb[None]).latent_dist.mode()[0]
        config = self._vae.config
        scaled: Tensor = (found - (config.shift_factor or 0.0)) * config.scaling_factor
        return scaled


def latent_checkpoint(
    model: Path, prompts: TextByLabel, labels: Sequence[str], shape: tuple[int, int, int]
) -> LatentCheckpoint:
    """The pipeline in the folder `model`, with the private labels' prompts.

    Raises:
        RecipeError: a label has no prompt.
    """
    texts = prompts if isinstance(prompts, str) else {str(label): text for label, text in prompts.items()}
    drawn = Prompts.of(texts).draw(tuple(labels), np.zeros(len(labels), dtype=np.uint64))[PROMPT]
    return LatentCheckpoint(TextFiles(str(model), offline=True), dict(zip(labels, map(str, drawn), strict=True)), shape)


def stored_latent(folder: Path) -> LatentCheckpoint:
    """The pipeline that a fit left in `folder`."""
    content = read_json(folder / PROMPTS)
    return LatentCheckpoint(TextFiles(str(folder), offline=True), dict(content["prompts"]), tuple(content["shape"]))


def open_latent(
    folder: Path, sampling: Sampling, guidance: float | None, device: str | list[str], batch_size: int | None
) -> tuple[TextToImage, tuple[str, ...]]:
    """The generator that samples the fitted pipeline in `folder`, each label by its prompt, and the labels.

    Raises:
        RecipeError: a part of it is missing.
    """
    content = read_json(folder / PROMPTS)
    height, width, channels = content["shape"]
    found = TextToImage(
        model=str(folder),
        prompts=dict(content["prompts"]),
        guidance=guidance,
        steps=sampling.steps,
        size=(height, width),
        channels=channels,
        device=device,
        batch_size=batch_size,
        chunk=sampling.chunk,
        offline=True,
    )
    return found, tuple(content["prompts"])
