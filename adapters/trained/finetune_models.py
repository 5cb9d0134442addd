"""A user's checkpoint, in pixel space or of Stable Diffusion, and LoRA matrices in it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.diffusion.pixel import PixelFiles
from adapters.diffusion.text_files import INDEX, PipelineFiles, TextSettings, quiet_loading
from adapters.diffusion.weights import read_config
from adapters.prompts import Classes, Prompts, TextByLabel
from adapters.trained.diffusion_networks import Denoising, check_prediction, square, write_model
from adapters.trained.dp_sgd.gradients import Network, Randomness
from adapters.trained.fit import write_json
from pe.data.arrays import ImageShape
from pe.errors import RecipeError
from pe.privacy.covered import sha256

if TYPE_CHECKING:
    from diffusers import AutoencoderKL, UNet2DModel

    from adapters.trained.fit import Fit

# Beside the fitted model: the SHA-256 of the checkpoint's files.
CHECKPOINT = "checkpoint.json"

# Beside a fitted pipeline: the prompt of each label, and the size and channels of the images.
PROMPTS = "prompts.json"

_PIPELINE = "StableDiffusionPipeline"


@dataclass(frozen=True)
class PixelCheckpoint:
    """A UNet2DModel and its scheduler's settings."""

    files: PixelFiles  # of the model and the scheduler
    labels: Sequence[str]  # the private label names
    shape: ImageShape  # h, w, c of the private images
    # label → the class whose embedding the label begins with
    classes: Mapping[str | int, str | int] | None = None

    def check(self) -> None:
        """Raise RecipeError if the checkpoint cannot be fitted on images of `shape`."""
        channels, *sides = self.files.shape
        shape = (*sides, channels)
        if self.shape != shape:
            own, private = ("×".join(map(str, each)) for each in (shape, self.shape))
            raise RecipeError(
                f"`api.model` makes images of {own}, but the private images are {private}. Set "
                "`private.size` and `private.channels` to match, or use another checkpoint."
            )
        embedding = self.files.unet.get("class_embed_type")
        if embedding is not None:
            raise RecipeError(
                f"`api.model` embeds classes by '{embedding}'. Use a checkpoint whose classes are "
                "numbers (num_class_embeds), or that has none."
            )
        check_prediction(self.files.scheduler.get("prediction_type", "epsilon"))

    def skeleton(self) -> nn.Module:
        """Return the network, so that its layers can be checked. Its weights may be missing."""
        return self.network()

    def network(self) -> nn.Module:
        """Return the network on the CPU, in float32.

        Its classes are the labels, see `_first_rows`.
        """
        network = self.files.network().eval()
        rows = self._first_rows(network)
        network.class_embedding = nn.Embedding(len(rows), rows.shape[1], _weight=rows)
        network.register_to_config(num_class_embeds=len(rows))
        return cast(nn.Module, network)

    def loss(self, device: torch.device) -> Denoising:
        """Return the checkpoint's training loss, with its noise schedule.

        Networks within the loss are on `device`.
        """
        return Denoising.of(self.files.sampler("ddpm"))

    def write(self, network: nn.Module, folder: Path) -> None:
        """Write all files that are needed to answer, and the checkpoint's digest."""
        write_model(network, self.labels, folder, schedule=self.files.sampler("ddim"))
        write_json(self.digests(), folder / CHECKPOINT)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of weights and settings.

        The settings are those of network, schedule and classes.
        """
        settings = json.dumps(
            [self.files.unet, self.files.scheduler, self.files.classes],
            sort_keys=True,
        )
        digest = hashlib.sha256(settings.encode()).hexdigest()
        return {"weights": sha256(self.files.weights), "settings": digest}

    def _first_rows(self, network: UNet2DModel) -> Tensor:
        """Return the label embeddings before the first step, float32 labels×width.

        A label begins with the embedding of the class that `classes` gives for it, or that has its
        name; if there is neither, with the mean of all. If there are no classes, labels begin at
        zero: the network starts as it was.
        """
        names = self.files.classes
        choices: dict[str, int | str] = {
            str(label): str(one) if str(one) in names else one
            for label, one in (self.classes or {}).items()
        }
        unknown = sorted(choices.keys() - set(self.labels))
        if unknown:
            raise RecipeError(
                f"`classes` names the label '{unknown[0]}', which the private records do not have. "
                "Remove it."
            )
        count = self.files.class_count()
        seeds = np.zeros(len(choices), np.uint64)
        drawn = Classes("api.model", count, names).draw(tuple(choices), seeds, choices or None)
        if drawn is None:
            return torch.zeros(len(self.labels), network.time_embedding.linear_2.out_features)
        rows = network.class_embedding.weight.detach().float()
        starts = dict(zip([*names, *choices], [*range(len(names)), *drawn], strict=True))
        mean = rows[:count].mean(dim=0)
        return torch.stack(
            [rows[starts[label]] if label in starts else mean for label in self.labels]
        )


def check_same(checkpoint: Checkpoint, fit: Fit) -> None:
    """Keep the checkpoint's digest when a fit begins.

    Raise RecipeError if a resumed fit has another digest.
    """
    digest = json.dumps(checkpoint.digests()).encode()
    if fit.kept(CHECKPOINT, lambda: digest) != digest:
        raise RecipeError(
            "`api.model` holds another checkpoint than when this fit began. Put that one back, "
            "or begin a new run."
        )


@dataclass(frozen=True)
class LatentCheckpoint:
    """A pipeline of Stable Diffusion 1 or 2, fitted through its latents.

    Each private label has a prompt.

    The autoencoder and the text encoder stay as they are. A record's latent is computed within that
    record's gradient, under `vmap`, where no record sees another: the latent depends on that record
    alone.
    """

    folder: Path  # of the pipeline
    prompts: dict[str, str]  # label → text
    shape: ImageShape  # h, w, c of the private images

    def check(self) -> None:
        """See `PixelCheckpoint`."""
        kind = read_config(self.folder / INDEX).get("_class_name")
        if kind != _PIPELINE:
            raise RecipeError(
                f"`api.model` is a {kind}. Use a UNet2DModel in pixel space, or a {_PIPELINE}."
            )
        height, width, channels = self.shape
        unet, vae = (read_config(self.folder / part / "config.json") for part in ("unet", "vae"))
        least = 2 ** (len(vae["block_out_channels"]) + len(unet["block_out_channels"]) - 2)
        if height % least or width % least or channels not in (1, 3):
            raise RecipeError(
                f"`api.model` makes grey or RGB images whose sides {least} divides, but the "
                f"private images are {height}×{width}×{channels}. Set `private.size` and "
                "`private.channels`."
            )
        schedule = read_config(self.folder / "scheduler" / "scheduler_config.json")
        check_prediction(str(schedule.get("prediction_type", "epsilon")))

    def skeleton(self) -> nn.Module:
        """Return the network without its weights."""
        from diffusers import UNet2DConditionModel

        with torch.device("meta"):
            unet: nn.Module = UNet2DConditionModel.from_config(
                dict(read_config(self.folder / "unet" / "config.json"))
            )
        return unet

    def network(self) -> nn.Module:
        """See `PixelCheckpoint`."""
        unet: nn.Module = self._pipeline.unet.eval()
        return unet

    def loss(self, device: torch.device) -> Latent:
        """See `PixelCheckpoint`."""
        from diffusers import DDPMScheduler

        pipeline = self._pipeline
        within = Denoising.of(DDPMScheduler.from_config(pipeline.scheduler.config))
        with torch.no_grad():
            table = pipeline.encode_prompt(
                list(self.prompts.values()), torch.device("cpu"), 1, False
            )[0]
        vae = pipeline.vae.eval().requires_grad_(False)
        return Latent(within, nn.Module.to(vae, device), table.detach().to(device))

    def write(self, network: nn.Module, folder: Path) -> None:
        """Write the whole pipeline, with the labels' prompts, and the digest."""
        pipeline = self._pipeline
        for part in (network, pipeline.vae):
            nn.Module.to(part, "cpu")
        pipeline.unet = network
        with quiet_loading():
            pipeline.save_pretrained(folder, safe_serialization=True)
        # The model is handed over: it does not tell the checkpoint's path.
        for path in folder.rglob("*.json"):
            settings = json.loads(path.read_text(encoding="utf-8"))
            if settings.pop("_name_or_path", None) is not None:
                path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        write_json({"prompts": self.prompts, "shape": self.shape}, folder / PROMPTS)
        write_json(self.digests(), folder / CHECKPOINT)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each weight file and each configuration, by path."""
        return {
            path.relative_to(self.folder).as_posix(): sha256(path)
            for path in sorted(self.folder.rglob("*"))
            if path.suffix in (".safetensors", ".json") and path.is_file()
        }

    @cached_property
    def _pipeline(self) -> Any:
        files = PipelineFiles(TextSettings(model=str(self.folder), offline=True))
        return files.load({"default": torch.float32})


Checkpoint = PixelCheckpoint | LatentCheckpoint


@dataclass(frozen=True, eq=False)
class Latent:
    """The squared error of the network's prediction on a record's latent. A `Loss` of DP-SGD.

    Attributes:
        within: the loss that gets a latent in place of an image; it adds the noise.
        vae: frozen, on the device.
        table: the prompts' embeddings, float32 labels×tokens×width, on the device.
    """

    within: Denoising
    vae: AutoencoderKL
    table: Tensor

    def draw(
        self,
        draws: int,
        shape: ImageShape,
        generator: torch.Generator,
    ) -> Randomness:
        """Return what `Denoising.draw` returns, with noise in the shape of latents."""
        _, height, width = shape
        config = self.vae.config
        factor = 2 ** (len(config.block_out_channels) - 1)
        latent = config.latent_channels, height // factor, width // factor
        return self.within.draw(draws, latent, generator)

    def __call__(
        self, model: Network, image: Tensor, label: Tensor, randomness: Randomness
    ) -> Tensor:
        """Return the losses of one record, (draws,)."""
        latent = self._encode(image)
        noisy, target, _ = self.within.add_noise(latent, label, randomness)
        text = functional.embedding(label, self.table.flatten(1)).view(1, *self.table.shape[1:])
        steps = randomness[0]
        output = model(noisy, steps, encoder_hidden_states=text.expand(len(steps), -1, -1)).sample
        return square(output - target)

    def _encode(self, image: Tensor) -> Tensor:
        """Return the mean of one image's latent, c×h×w.

        The checkpoint's settings shift and scale it.
        """
        mean = self.vae.encode(image.expand(3, -1, -1)[None]).latent_dist.mode()[0]
        config = self.vae.config
        latent: Tensor = (mean - (config.shift_factor or 0.0)) * config.scaling_factor
        return latent


def latent_checkpoint(
    model: Path, prompts: TextByLabel, labels: Sequence[str], shape: ImageShape
) -> LatentCheckpoint:
    """Return the pipeline in the folder `model`, with the labels' prompts.

    Raise RecipeError if a prompt is missing.
    """
    setting = (
        prompts
        if isinstance(prompts, str)
        else {str(label): text for label, text in prompts.items()}
    )
    texts = Prompts.of(setting).first_of(labels)
    return LatentCheckpoint(model, dict(zip(labels, texts, strict=True)), shape)


def stored_latent(folder: Path) -> LatentCheckpoint:
    """Return the pipeline that a fit left in `folder`."""
    content = read_config(folder / PROMPTS)
    return LatentCheckpoint(folder, dict(content["prompts"]), tuple(content["shape"]))


# LoRA: matrices of low rank beside a layer that stays as it is (Hu et al. 2022).
#
# They compute what peft's do. They are here because peft takes seconds to load, and so that what is
# trained is seen on one page: `base` is never trained, and each matrix is a plain parameter, which
# `vmap` covers.


class LowRank(nn.Module):
    """A Linear or Conv2d layer plus scale·B·A.

    A (r×in) begins random and B (out×r) zero, so the layer begins as it was.

    A convolution must have no groups; its A has the kernel size of the layer. `scale`: α/r.
    """

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int, scale: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = scale
        out, *inner = base.weight.shape
        wide = torch.empty(rank, *inner)
        nn.init.kaiming_uniform_(wide, a=math.sqrt(5))
        self.A = nn.Parameter(wide.to(base.weight.device))
        self.B = nn.Parameter(base.weight.new_zeros((out, rank) + (1,) * (len(inner) - 1)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output plus the output of the matrices."""
        base = self.base
        output: Tensor = base(x)
        if isinstance(base, nn.Linear):
            return output + self.scale * functional.linear(functional.linear(x, self.A), self.B)
        low = functional.conv2d(x, self.A, None, base.stride, base.padding, base.dilation)
        return output + self.scale * functional.conv2d(low, self.B)

    def merge(self) -> nn.Module:
        """Return the layer with scale·B·A added to its weights."""
        with torch.no_grad():
            change = torch.einsum("or,ri->oi", self.B.flatten(1), self.A.flatten(1))
            self.base.weight += self.scale * change.view_as(self.base.weight)
        return self.base


def add_matrices(model: nn.Module, names: list[str], rank: int, scale: float) -> None:
    """Put matrices beside named layers, Linear or zero-padded Conv2d without groups.

    Raise RecipeError for others.
    """
    for name in names:
        layer = model.get_submodule(name)
        convolution = (
            type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
        )
        if not (convolution or type(layer) is nn.Linear):
            raise RecipeError(
                f"`lora.targets`: '{name}' is a {type(layer).__name__}, but LoRA matrices go "
                "beside Linear, or Conv2d without groups. Leave it out, or train it whole under "
                "`layers`."
            )
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        _replace(model, name, LowRank(layer, rank, scale))


def merge_matrices(model: nn.Module) -> None:
    """Add each pair of matrices to the weights of its layer, and remove the pair."""
    for name, module in list(model.named_modules()):
        if isinstance(module, LowRank):
            _replace(model, name, module.merge())


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
