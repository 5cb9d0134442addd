"""A user's checkpoint in pixel space: its network with the private labels for classes, its noise, its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.diffusion.pixel import PixelFiles
from adapters.diffusion.text_files import INDEX, TextFiles, quiet_loading
from adapters.diffusion.text_to_image import TextToImage
from adapters.diffusion.weights import read_json
from adapters.prompts import PROMPT, Prompts, TextByLabel
from adapters.trained.diffusion_training import Randomness, Velocity, square
from adapters.trained.dp_sgd.gradients import Loss
from adapters.trained.files import Sampling, write_model
from pe.errors import RecipeError

if TYPE_CHECKING:
    from diffusers import AutoencoderKL, UNet2DModel

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


# A user's Stable Diffusion checkpoint: fitted through its latents, under a prompt for each private label.
#
# The autoencoder and the text encoder stay as they are. A record's latent is computed within its own gradient, under
# `vmap`, where no record sees another: it depends on that record alone.


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
