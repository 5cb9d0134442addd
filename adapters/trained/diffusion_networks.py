"""The network of the fitted diffusion models, its loss and its files.

It is diffusers' UNet2DModel, conditioned on the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from torch import Tensor, nn

from adapters.trained.dp_sgd.gradients import Loss, Network, Randomness
from adapters.trained.fit import label_numbers, reading, write_json
from adapters.trained.settings import NetworkSize
from adapters.trained.torch_tools import (
    drawing_by,
    losses_one_by_one,
    torch_seed,
)
from pe.data.arrays import Float64Array, ImageShape, UInt8Array
from pe.errors import RecipeError

TIMESTEPS = 1000

_GROUPS = 4
_HEAD = 8


def unet(
    network: NetworkSize, shape: ImageShape, classes: int, seed: int, phase: str
) -> UNet2DModel:
    """Return a new network for images of h×w×c.

    Its weights are drawn from `seed` (the recipe's) and the name `phase`.

    Raises RecipeError if the images are too small for it.
    """
    height, width, channels = shape
    widths = network.levels(height, width)
    deep = len(widths) - 1
    with drawing_by(seed, phase):
        return UNet2DModel(
            sample_size=height if height == width else (height, width),
            in_channels=channels,
            out_channels=channels,
            layers_per_block=network.layers,
            block_out_channels=widths,
            down_block_types=("DownBlock2D",) * deep + ("AttnDownBlock2D",),
            up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * deep,
            norm_num_groups=_GROUPS,
            attention_head_dim=_HEAD,
            # Time and class scale and shift what GroupNorm has normalised: merely added before it,
            # the norm would take a good part of them away again where a group has few channels.
            resnet_time_scale_shift="scale_shift",
            num_class_embeds=classes,
        )


def scheduler() -> DDIMScheduler:
    """Return the noise schedule, a cosine that ends in pure noise.

    The network predicts velocities (Salimans and Ho 2022).
    """
    return DDIMScheduler(
        num_train_timesteps=TIMESTEPS,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        clip_sample=True,
        timestep_spacing="trailing",
        rescale_betas_zero_snr=True,
    )


def with_new_classes(model: UNet2DModel, classes: int, seed: int) -> UNet2DModel:
    """Return `model` with a new, untrained class embedding for `classes` classes."""
    with drawing_by(seed, "classes"):
        embedding = nn.Embedding(classes, model.class_embedding.weight.shape[1])
    model.class_embedding = embedding.to(model.class_embedding.weight.device)
    model.register_to_config(num_class_embeds=classes)
    return model


def only_attention_and_classes(model: UNet2DModel) -> UNet2DModel:
    """Return `model` with all parameters frozen but attention and class embedding (DP-LDM)."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".attentions." in name or name.startswith("class_embedding."))
    return model


# Share of draws without a class, in training for classifier-free guidance (Ho and Salimans 2022).
_UNLABELLED = 0.1


# What a network may predict, by diffusers' words: the noise, the image or the velocity.
PREDICTIONS = ("epsilon", "sample", "v_prediction")


@dataclass(eq=False)
class Denoising:
    """The squared error of what a network predicts at random timesteps.

    A loss for DP-SGD (`Loss`) and plain training.

    For x_t = √ᾱ·x + √(1−ᾱ)·ε our networks predict the velocity v = √ᾱ·ε − √(1−ᾱ)·x (Salimans and Ho
    2022). The squared error of v is the squared error of x times 1 + ᾱ/(1−ᾱ). Like EDM's
    preconditioning, v gives a target of variance near 1 at every timestep, and diffusers'
    schedulers sample from v directly.

    Attributes:
        none: number of the class that means "no class", for a network that is to be guided: this
            class replaces the image's class in a tenth of the draws. None: the network has no such
            class.
        levels: ᾱ of each timestep, by default as `scheduler` has them.
        predicts: what the network predicts, one of PREDICTIONS.
    """

    none: int | None = None
    levels: Tensor = field(default_factory=lambda: scheduler().alphas_cumprod)
    predicts: str = "v_prediction"

    @classmethod
    def of(cls, schedule: DDPMScheduler | DDIMScheduler) -> Denoising:
        """Return the loss for a noise schedule, whose `prediction_type` is one of PREDICTIONS."""
        return cls(levels=schedule.alphas_cumprod, predicts=schedule.config.prediction_type)

    def draw(
        self,
        draws: int,
        shape: ImageShape,
        generator: torch.Generator,
    ) -> Randomness:
        """Return timesteps, int64, their ᾱ, float32, both (draws,), and noise, (draws, c, h, w).

        For a network that is to be guided, also bool (draws,): True for a draw without a class. The
        timesteps are spread: one from each of `draws` equal parts of the schedule, so that the mean
        gradient over the draws, which is clipped, varies less.
        """
        device = generator.device
        within = torch.rand(1, generator=generator, device=device)
        parts = (torch.arange(draws, device=device) + within) / draws
        steps = (parts * len(self.levels)).long().clamp(max=len(self.levels) - 1)
        noise = torch.randn((draws, *shape), generator=generator, device=device)
        levels = self.levels.to(device)[steps]
        if self.none is None:
            return steps, levels, noise
        is_unlabelled = torch.rand(draws, generator=generator, device=device) < _UNLABELLED
        return steps, levels, noise, is_unlabelled

    def __call__(
        self, model: Network, image: Tensor, label: Tensor, randomness: Randomness
    ) -> Tensor:
        """Return the losses, (draws,).

        `image` and `label` are one for all draws, or one for each draw.
        """
        noisy, target, classes = self.add_noise(image, label, randomness)
        output = model(noisy, randomness[0], class_labels=classes).sample
        return square(output[:, : target.shape[1]] - target)

    def add_noise(
        self, image: Tensor, label: Tensor, randomness: Randomness
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the network's inputs, targets and classes, one for each draw.

        There is one image, or one for each draw.
        """
        steps, level, noise, *label_draws = randomness
        share = level[:, None, None, None]
        signal = share.sqrt()
        spread = (1 - share).sqrt()
        classes = label.expand(len(steps))
        if label_draws and self.none is not None:
            classes = classes.masked_fill(label_draws[0], self.none)
        noisy = signal * image + spread * noise
        if self.predicts == "epsilon":
            return noisy, noise, classes
        if self.predicts == "sample":
            return noisy, image.expand(noisy.shape), classes
        return noisy, signal * noise - spread * image, classes


def square(difference: Tensor) -> Tensor:
    """Return the mean square of each image, (n,) from n×c×h×w."""
    return (difference**2).mean(dim=(1, 2, 3))


def check_prediction(prediction: str) -> None:
    """Raise RecipeError unless `prediction`, what a network predicts, is in PREDICTIONS."""
    if prediction not in PREDICTIONS:
        words = ", ".join(PREDICTIONS)
        raise RecipeError(
            f"`api.model` predicts '{prediction}'. Use a model that predicts one of {words}."
        )


# The fitted model on disk, in diffusers' format, which `pixel_diffusion` reads, too; and its loss
# on records.


def write_model(
    model: nn.Module,
    labels: Sequence[str],
    folder: Path,
    schedule: DDIMScheduler | DDPMScheduler | None = None,
) -> None:
    """Write unet/ and scheduler/ in diffusers' format, and the label of each class.

    The labels go to classes.json.

    `schedule`: the noise schedule; None: the one that `scheduler` returns.
    """
    assert isinstance(model, UNet2DModel)
    model.cpu().save_pretrained(folder / "unet", safe_serialization=True)
    (schedule or scheduler()).save_pretrained(folder / "scheduler")
    write_json({"classes": list(labels), "labels": list(labels)}, folder / "classes.json")


def stored(folder: Path) -> tuple[UNet2DModel, Denoising]:
    """Read the network that a fit left in `folder`, and the loss by which it was fitted.

    Raise RecipeError if there is none.
    """
    with reading(folder, "fitted diffusion model"):
        network = UNet2DModel.from_pretrained(folder / "unet", local_files_only=True)
        schedule = DDPMScheduler.from_pretrained(folder / "scheduler", local_files_only=True)
    return network, Denoising.of(schedule)


# Number of draws of timestep and noise in an image's mean loss; the draws are public, and all
# images share them.
DRAWS = 16


def mean_losses(
    network: nn.Module,
    loss: Loss,
    images: UInt8Array,
    labels: Sequence[str],
    classes: Sequence[str],
    device: torch.device,
) -> Float64Array:
    """Return the mean loss of each image over DRAWS draws, float64 (n,).

    The network is in float32, the images are uint8 n×h×w×c, and `classes` has the label of each of
    the network's classes. Raises RecipeError if a label of an image is not among them.
    """
    model = network.to(device).eval()
    shape = (images.shape[3], *images.shape[1:3])
    generator = torch.Generator().manual_seed(torch_seed(0, "record-losses"))
    randomness = tuple(part.to(device) for part in loss.draw(DRAWS, shape, generator))

    def mean_loss(image: Tensor, label: Tensor) -> Tensor:
        return loss(model, image[0], label[0], randomness).mean()

    return losses_one_by_one(images, label_numbers(labels, classes), device, mean_loss)
