"""Images from checkpoints of improved diffusion (Nichol & Dhariwal 2021).

Sampling is DDIM (Song et al. 2021) on a cosine schedule. The Private Evolution paper used such
checkpoints for its CIFAR-10 and Camelyon17 results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from adapters.diffusion.items import Job, Pixels, numbers_of, of_iteration
from adapters.diffusion.pixel import OfClasses, PixelModel
from adapters.prompts import Classes
from pe.data.arrays import Float64Array, ImageShape, Int64Array
from pe.data.decoding import decode_image
from pe.data.images import Images
from pe.data.samples import DRAWN, Conditions
from pe.errors import APIError, RecipeError
from pe.plugins.devices import Precision, dtype_on, require_torch
from pe.plugins.protocols import Answer, Seeds
from pe.plugins.settings import Count
from pe.plugins.specs import plugin
from pe.plugins.weights import SAFETENSORS, Published, fill, find_published, read_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Spacing = Literal["ends", "stride"]

TRAINED = 4000
"""Number of timesteps that the published networks were trained with."""

TORCH = ".pt"
_PLACE = "https://openaipublic.blob.core.windows.net/diffusion/march-2021/"
# Name → number of classes (None: no classes), and whether its times go up to 1,000. The times of
# the other network go up to 4,000.
_PUBLISHED: dict[str, tuple[int | None, bool]] = {
    "imagenet64_cond_270M_250K": (1000, False),
    "imagenet64_uncond_100M_1500K": (None, True),
}


class CosineDDIM:
    """Deterministic DDIM with the interface of diffusers' schedulers.

    Attributes:
        alpha_bar: ᾱ, the share of the image's variance at each trained timestep, float64
            (TRAINED,).
        timesteps: the chosen timesteps, from the noisiest down.
    """

    init_noise_sigma = 1.0
    timesteps: Tensor

    def __init__(self, spacing: Spacing = "ends") -> None:
        self._spacing = spacing
        self.alpha_bar = cosine(TRAINED)
        self._next: dict[int, int | None] = {}

    def set_timesteps(self, steps: int) -> None:
        """Choose `steps` of the trained timesteps.

        Raises:
            APIError: the spacing cannot give exactly that number.
        """
        import torch

        try:
            check_steps(steps, self._spacing)
        except RecipeError as error:
            raise APIError(str(error)) from error
        timesteps_up = respace(TRAINED, steps, self._spacing)
        self.timesteps = torch.tensor(timesteps_up[::-1])
        self._next = dict(zip(timesteps_up, [None, *timesteps_up[:-1]], strict=True))

    def add_noise(self, images: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
        """Return √ᾱ·image + √(1−ᾱ)·noise, each image at its timestep."""
        alpha_bar = images.new_tensor(self.alpha_bar[timesteps.numpy()])[:, None, None, None]
        return alpha_bar.sqrt() * images + (1 - alpha_bar).sqrt() * noise

    def step(
        self, output: Tensor, timestep: int, x: Tensor, generator: Any = None
    ) -> SimpleNamespace:
        """Return as `prev_sample` the noised images one timestep further down.

        The image is predicted from `output`, the predicted noise ε (n×c×h×w), and cut to [−1, 1];
        then it gets as much noise as the next timestep has. No random number is drawn.
        """
        now = self.alpha_bar[timestep]
        after = self._next[timestep]
        then = 1.0 if after is None else self.alpha_bar[after]
        image = ((x - math.sqrt(1 - now) * output) / math.sqrt(now)).clamp(-1, 1)
        # the noise in x beside the cut image, which differs from `output` where the cut changed it
        noise = (x - math.sqrt(now) * image) / math.sqrt(1 - now)
        return SimpleNamespace(prev_sample=math.sqrt(then) * image + math.sqrt(1 - then) * noise)


def cosine(steps: int) -> Float64Array:
    """Return ᾱ = Π(1 − β) after each of T = `steps` timesteps, float64.

    β_t = 1 − f(t+1)/f(t), at most 0.999, with f(t) = cos²(π/2·(t/T + 0.008)/1.008).
    """
    times = (np.arange(steps + 1) / steps + 0.008) / 1.008
    squares = np.cos(times * np.pi / 2) ** 2
    return np.cumprod(1 - np.minimum(1 - squares[1:] / squares[:-1], 0.999))


def check_steps(steps: int, spacing: Spacing) -> None:
    """Raise RecipeError unless `steps` is from 2 to 4,000 and possible with this spacing."""
    if not 2 <= steps <= TRAINED:
        raise RecipeError(f"`steps` is {steps}. It must be from 2 to {TRAINED}.")
    respace(TRAINED, steps, spacing)


def respace(total: int, steps: int, spacing: Spacing) -> list[int]:
    """Return `steps` of the timesteps 0 … total−1, ascending and evenly spaced from 0.

    `ends` goes up to total−1, which is pure noise (`timestep_respacing` N of the published code).
    `stride` takes one every total/steps timesteps, rounded up (`ddimN` there), so the largest may
    be below total−1: with 10 steps of 4,000 it is 3,600, where the noised image still holds 2.4 %
    of the image's variance. `steps` lies from 2 to `total`.

    Raises:
        RecipeError: with `stride`, no whole distance gives exactly `steps` timesteps.
    """
    if spacing == "ends":
        apart = (total - 1) / (steps - 1)
        # summed one by one, as in the published code: products may round to other timesteps
        return [round(place) for place in accumulate(repeat(apart, steps - 1), initial=0.0)]
    timesteps = list(range(0, total, -(-total // steps)))
    if len(timesteps) != steps:
        raise RecipeError(
            f"No whole stride cuts {total:,} timesteps into {steps} steps. Take `steps: "
            f"{len(timesteps)}`, or `spacing: ends`."
        )
    return timesteps


@plugin
class ImprovedFiles:
    """A checkpoint and how its network was trained, with the settings of `ImprovedDiffusion`."""

    model: str = "imagenet64_cond_270M_250K"
    spacing: Spacing = "ends"
    rescaled: bool | None = None
    size: Count = 64
    offline: bool = False

    @property
    def is_rescaled(self) -> bool:
        """True if the network takes times from 0 to 1,000.

        If `rescaled` is None, the published name decides.
        """
        return (
            _PUBLISHED.get(Path(self.model).stem, (None, False))[1]
            if self.rescaled is None
            else self.rescaled
        )

    def find(self) -> Path:
        """Return the checkpoint's file.

        A published checkpoint is looked for in torch.hub's folder, and fetched unless `offline`.
        """
        if self.model not in _PUBLISHED:
            file = Path(self.model).expanduser()
            if file.is_file():
                return file
            names = ", ".join(_PUBLISHED)
            raise RecipeError(
                f"`model`: there is no file '{self.model}'. Put the checkpoint there, or set "
                f"`model` to one of {names}."
            )
        require_torch("diffusion", "A local diffusion model")
        name = f"{self.model}{TORCH}"
        weights = Published(
            name,
            _PLACE + name,
            None,
            (f"{self.model}{SAFETENSORS}",),
            "model",
        )
        return find_published(weights, self.offline)

    def class_count(self) -> int | None:
        """Return the number of classes, or None if the network takes no classes.

        It is known for published names, and otherwise read from the weights.
        """
        from adapters.diffusion.improved_unet import shape_of

        if self.model in _PUBLISHED:
            return _PUBLISHED[self.model][0]
        return shape_of(read_weights(self.find())).classes

    def load(self, device: torch.device, precision: Precision, compile: bool = False) -> PixelModel:  # noqa: A002
        """Return the network with DDIM on the cosine schedule.

        Raises:
            RecipeError: the weights are missing or do not fit.
        """
        from adapters.diffusion.improved_unet import ImprovedUNet, shape_of

        file = self.find()
        dtype = dtype_on(device, precision)
        tensors = read_weights(file)
        shape = shape_of(tensors)
        coarsest = 2 ** (len(shape.multipliers) - 1)
        if self.size % coarsest:
            raise RecipeError(
                f"`size` is {self.size}. {file.name} needs a multiple of {coarsest} pixels."
            )
        network = ImprovedUNet(shape)
        fill(network, tensors, file)
        network.eval().requires_grad_(False).to(device, dtype)
        if compile:
            network.compile()
        scale = 1000 / TRAINED if self.is_rescaled else 1.0

        def unet(
            x: Tensor,
            time: Tensor,
            class_labels: Tensor | None,
        ) -> SimpleNamespace:
            return SimpleNamespace(
                sample=network(x, (time.float() * scale).expand(len(x)), class_labels)
            )

        # both have the call of diffusers' networks and schedulers
        parts: tuple[Any, Any] = (unet, CosineDDIM(self.spacing))
        return PixelModel(
            *parts, (3, self.size, self.size), device, dtype, shape.classes, afresh=False
        )


def is_improved(model: str) -> bool:
    """Return true if a model is a checkpoint of improved diffusion.

    This is told by its published name, the ending .pt, or its tensors.
    """
    from safetensors import SafetensorError, safe_open

    file = Path(model).expanduser()
    if model in _PUBLISHED or (file.suffix == TORCH and file.is_file()):
        return True
    if file.suffix != SAFETENSORS or not file.is_file():
        return False
    try:
        with safe_open(file, framework="np") as tensors:
            names = tensors.keys()
        return any(name.removeprefix("module.") == "time_embed.0.weight" for name in names)
    except SafetensorError:
        return False


@plugin
class ImprovedDiffusion(ImprovedFiles, OfClasses):
    """The paper's generator for its CIFAR-10 and Camelyon17 runs: ImageNet at 64×64.

    A network of "Improved Denoising Diffusion Probabilistic Models".

    Images are drawn at 64×64×3 (or `size`). At degree v the parent is noised to the timestep where
    the last ⌊v·steps⌋ DDIM steps start, and these steps are run: the paper's "timestep 98 of 100"
    is degree 0.98. Degree 0 is the parent itself. Degree 1 also noises the parent, to the start of
    all steps: with spacing `ends` only its class remains, with `stride` a trace of the parent
    remains. The paper's Camelyon17 run uses that trace at its "timestep 10 of 10".

    Conditions, for a network with classes: `api_class`, int64, drawn by each sample's seed;
    variations inherit it. If `image_size` is not `size`, also `drawn`: each sample as the network
    drew it, from which variations start.

    Args:
        model: imagenet64_cond_270M_250K, imagenet64_uncond_100M_1500K, or a checkpoint's file (.pt,
            .safetensors), relative to the current folder. The network must have been trained with
            4,000 timesteps on the cosine schedule.
        steps: DDIM steps, 2 … 4,000, or a list with one number per iteration. New samples use the
            first number.
        spacing: which of the 4,000 timesteps the steps use: `ends`, evenly from the first to the
            last (the paper's CIFAR-10), or `stride`, a whole number apart (the paper's Camelyon17).
        rescaled: whether the network was trained with `rescale_timesteps`. None: as the published
            checkpoint of that name.
        size: height and width in pixels that the network was trained on.
        image_size: height and width of the samples in pixels, for the embedding and for the result.
            The network's images are resized to it (bicubic). Set it to the private images' size if
            that is not `size`. None: `size`.

    Raises:
        RecipeError: a setting is out of range.
    """

    steps: Count | list[Count] = 100
    image_size: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        side = self.size if self.image_size is None else self.image_size
        network_size = (self.size, self.size)
        drawn_size = None if side == self.size else network_size
        self.info = replace(
            self.info,
            shape=(side, side, 3),
            drawn=network_size,
            kept=drawn_size,
        )
        for steps in numbers_of(self.steps):
            check_steps(steps, self.spacing)  # refused now, not at the first sample
        self._side = side

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        if degree == 1:
            return f"noised and denoised, all {of_iteration('steps', self.steps, iteration)} steps"
        return super().describe_degree(degree, iteration)

    def _load(self, device: torch.device) -> PixelModel:
        return self.load(device, self.precision, self.compile)

    @property
    def _shape(self) -> ImageShape:
        return self.size, self.size, 3

    @cached_property
    def _classes(self) -> Classes:
        return Classes(self.model, self.class_count(), ())

    def _answer(
        self, job: Job, seeds: Seeds, images: Sequence[Pixels | None], classes: Int64Array | None
    ) -> Answer:
        """Return samples of `image_size`.

        If that is not `size`, the condition `drawn` holds the images as drawn.
        """
        answer = super()._answer(job, seeds, images, classes)
        if self._side == self.size:
            return answer
        pixels = answer.samples.array
        size = (self._side, self._side)
        small = [decode_image(image, size=size, resize="stretch", channels=3) for image in pixels]
        pixels_of_size = np.array(small, dtype=np.uint8).reshape(-1, *size, 3)
        conditions = Conditions({**answer.conditions, DRAWN: pixels})
        return replace(answer, samples=Images(pixels_of_size), conditions=conditions)
