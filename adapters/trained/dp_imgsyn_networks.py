"""DP-ImgSyn's networks: the teacher, the moments that it sees, and the alignment of images."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file
from scipy import ndimage
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from adapters.diffusion.items import tensors
from adapters.trained.dp_sgd.gradients import Network, Randomness, check_gradients
from adapters.trained.fit import reading, rng_of, write_weights
from adapters.trained.public import PublicSet
from adapters.trained.torch_tools import drawing_by, losses_one_by_one, step_down
from pe.data.arrays import Float32Array, Float64Array, ImageShape, Int64Array, UInt8Array
from pe.errors import PluginError, RecipeError

if TYPE_CHECKING:
    from adapters.trained.settings import Alignment

Pixels = Float32Array

_BETAS = (0.5, 0.99)
_TEACHER = "teacher.safetensors"
_MOMENTS = "moments.safetensors"
_TENSORS = ("means", "deviations", "way_means", "way_squares")

# Standard deviation of a variation's noise at degree 1, where pixels lie in [−1, 1].
_LOUDEST = 0.5


# Moments of each channel that enters a GroupNorm layer of the teacher: of one image, the mean of
# each channel over its places, and the mean of its square; of the private images, the noisy sum of
# these vectors.

# Share of the public images whose vectors of moments are not cut.
_COMMON = 0.95

# Least variance of a channel, in the aligned images and in the target of the alignment.
LEAST_VARIANCE = 1e-6


def factors_of(
    means: Float64Array,
    squares: Float64Array,
    widths: tuple[int, ...],
) -> Float64Array:
    """Return factors that weigh layers alike and bring most vectors of moments to a norm below 1.

    They are computed by the released classifier from the moments of public images, float64 (m, d):
    float64 (2·d,), for the means, then for the mean squares; equal within a layer.
    """
    by_layer = [np.split(each, np.cumsum(widths)[:-1], axis=1) for each in (means, squares)]
    both = [np.hstack(parts) for parts in zip(*by_layer, strict=True)]
    sizes = np.array([np.sqrt(np.square(part).sum(axis=1).mean()) for part in both])
    per_layer = 1 / (np.maximum(sizes, 1e-12) * math.sqrt(len(widths)))
    factors: Float64Array = np.tile(np.repeat(per_layer, widths), 2)
    norms = np.linalg.norm(np.hstack([means, squares]) * factors, axis=1)
    return factors / max(float(np.quantile(norms, _COMMON)), 1e-12)


def clip(vector: Float64Array) -> Float64Array:
    """Cut a vector to an L2 norm of 1. Return zero for one that is not finite."""
    if not np.isfinite(vector).all():
        return np.zeros_like(vector)
    norm = float(np.linalg.norm(vector))
    return vector if norm <= 1 else vector / norm


class Reader:
    """Logits and moments of images, by a frozen classifier.

    To be called by one thread at a time, because hooks on the classifier's layers catch their
    inputs.

    Args:
        teacher: the classifier, set to evaluation mode, so that each image is seen alone. Its
            buffers are copied for each call: what a layer writes to them is gone after the call.
        device: of the teacher.
    """

    def __init__(self, teacher: nn.Module, device: torch.device) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self.device = device
        self._layers = [module for module in teacher.modules() if isinstance(module, nn.GroupNorm)]
        self.widths = tuple(layer.num_channels for layer in self._layers)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (n, classes), means (n, d) and mean squares (n, d), layer by layer."""
        inputs: list[Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(
                lambda _, arguments: inputs.append(arguments[0].flatten(2))
            )
            for layer in self._layers
        ]
        try:
            buffers = {name: value.clone() for name, value in self.teacher.named_buffers()}
            logits: Tensor = functional_call(self.teacher, buffers, (images,))
        finally:
            for hook in hooks:
                hook.remove()
        means = torch.cat([each.mean(dim=2) for each in inputs], dim=1)
        squares = torch.cat([each.square().mean(dim=2) for each in inputs], dim=1)
        return logits, means, squares

    def moments(self, images: UInt8Array) -> tuple[Float64Array, Float64Array]:
        """Return means and mean squares of uint8 n×h×w×c, float64 (n, d) each.

        Pass a private image alone: then its moments depend on no other image, to the last bit.
        """
        with torch.no_grad():
            _, means, squares = self(tensors(images, self.device))
        return means.cpu().double().numpy(), squares.cpu().double().numpy()


# Alignment: public images are moved until the classifier sees in them what it saw in the private
# ones (Algorithm 1).
#
# It uses the classifier, the released moments and public images only: post-processing.


@dataclass(frozen=True, eq=False)
class Way:
    """Moments of the companions before each step, with which other images are aligned.

    Companions are public images that were aligned together.
    """

    means: Tensor  # of each of d channels before each of k steps, float32 (k, d)
    squares: Tensor  # mean squares of these channels, float32 (k, d)


@dataclass(frozen=True, eq=False)
class Aim:
    """The target of the alignment."""

    reader: Reader  # the classifier
    means: Tensor  # of the private images' channels, noisy, float32 (d,)
    deviations: Tensor  # standard deviations of these channels, noisy, float32 (d,)

    @classmethod
    def of_sum(
        cls,
        reader: Reader,
        noisy: Int64Array,
        factors: Float64Array,
        grid: int,
        declared_size: int,
    ) -> Aim:
        """Return the noisy sum divided by the DECLARED size.

        Variances are at least LEAST_VARIANCE. Post-processing.
        """
        means, squares = np.split(noisy / (grid * declared_size) / factors, 2)
        deviations = np.sqrt(np.maximum(squares - means**2, LEAST_VARIANCE))
        return cls(
            reader,
            *(torch.from_numpy(each).float().to(reader.device) for each in (means, deviations)),
        )


def align_companions(
    images: UInt8Array,
    classes: int,
    aim: Aim,
    settings: Alignment,
) -> Way:
    """Align evenly spaced public images to the labels in turn.

    Return their moments before each step.
    """
    device = aim.reader.device
    rows = np.linspace(0, len(images) - 1, settings.companions).astype(np.int64)
    targets = torch.arange(len(rows), device=device) % classes
    pixels = tensors(images[rows], device).requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=settings.rate, betas=_BETAS)
    means = torch.zeros((settings.steps, len(aim.means)), device=device)
    squares = torch.zeros_like(means)
    for step in range(settings.steps):
        logits, of_images, squares_of_images = aim.reader(pixels)
        mean = of_images.mean(dim=0)
        square = squares_of_images.mean(dim=0)
        means[step] = mean.detach()
        squares[step] = square.detach()
        feature = settings.feature * len(rows) * _distance(mean, square, aim)
        _step(optimiser, feature + _others(pixels, logits, targets, settings).sum(), pixels)
    return Way(means, squares)


def align(
    images: Tensor,
    targets: Tensor,
    aim: Aim,
    way: Way,
    begin: Tensor,
    settings: Alignment,
) -> Tensor:
    """Return each image, aligned as if it were one more companion.

    No other image of `images` changes the result.

    The images are public, or evolved from public ones, float32 n×c×h×w in [−1, 1]. `targets`, int64
    (n,), are labels. `begin`, int64 (n,), is the step from which each image is moved: 0 for all k
    steps, k for none.
    """
    # The companions' moments stand for the rest of the batch, so that an image is aligned without
    # the others.
    size = settings.companions + 1
    pixels = images.clone().requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=settings.rate, betas=_BETAS)
    best = images
    least = pixel_variation(images)
    moving = torch.ones(len(images), dtype=torch.bool, device=images.device)
    for step in range(len(way.means)):
        logits, mean, square = aim.reader(pixels)
        means = ((size - 1) * way.means[step] + mean) / size
        squares = ((size - 1) * way.squares[step] + square) / size
        feature = settings.feature * size * _distance(means, squares, aim)
        here = pixels.detach().clone()
        active = begin <= step
        _step(
            optimiser,
            ((feature + _others(pixels, logits, targets, settings)) * active).sum(),
            pixels,
        )
        with torch.no_grad():
            pixels.copy_(torch.where(active[:, None, None, None], pixels, here))
            rough = pixel_variation(pixels)
            moving &= ~active | (rough <= settings.roughest * least)
            best = torch.where((active & moving)[:, None, None, None], pixels, best)
            least = torch.minimum(least, rough)
    return best.detach()


def pixel_variation(images: Tensor) -> Tensor:
    """Return the total variation of each image (Equation 3), float32 (n,)."""
    down = functional.pad(images.diff(dim=2), (0, 0, 0, 1))
    right = functional.pad(images.diff(dim=3), (0, 1))
    return (down.square() + right.square() + 1e-12).sqrt().sum(dim=(1, 2, 3))


def _distance(means: Tensor, squares: Tensor, aim: Aim) -> Tensor:
    """Return the squared distance of moments to the aim (Equation 1), summed over the last axis."""
    deviations = (squares - means**2).clamp(min=LEAST_VARIANCE).sqrt()
    return (means - aim.means).square().sum(dim=-1) + (deviations - aim.deviations).square().sum(
        dim=-1
    )


def _others(
    pixels: Tensor,
    logits: Tensor,
    targets: Tensor,
    settings: Alignment,
) -> Tensor:
    """Return the loss of Equations 2 to 4 for each image, (n,).

    It is weighted as in a batch of `companions` + 1 images.
    """
    size = settings.companions + 1
    prior = settings.total_variation * pixel_variation(
        pixels
    ) + settings.norm * pixels.square().sum(dim=(1, 2, 3))
    return (
        settings.classification * functional.cross_entropy(logits, targets, reduction="none")
        + size * prior
    )


def _step(optimiser: torch.optim.Adam, loss: Tensor, pixels: Tensor) -> None:
    step_down(optimiser, loss)
    with torch.no_grad():
        pixels.clamp_(-1, 1)


def write_moments(aim: Aim, way: Way, folder: Path) -> None:
    """Write the teacher and the moments, as .safetensors."""
    write_weights(aim.reader.teacher.state_dict(), folder / _TEACHER)
    values = aim.means, aim.deviations, way.means, way.squares
    write_weights(dict(zip(_TENSORS, values, strict=True)), folder / _MOMENTS)


@dataclass(frozen=True, eq=False)
class AlignedModel:
    """The fitted model. Each image that it makes is independent of the others."""

    aim: Aim  # the teacher and the private images' moments, noisy
    way: Way  # the companions' moments before each step
    public: PublicSet  # the images to begin with
    labels: tuple[str, ...]  # the label names, in the teacher's order
    alignment: Alignment  # settings of the alignment

    @classmethod
    def read(
        cls,
        folder: Path,
        teacher: nn.Module,
        labels: Sequence[str],
        public: PublicSet,
        alignment: Alignment,
        device: torch.device,
    ) -> AlignedModel:
        """Read the model in `folder`, `teacher`'s weights included.

        `alignment` may have fewer steps than the fit.
        """
        with reading(folder, "DP-ImgSyn of this teacher"):
            teacher.load_state_dict(load_file(folder / _TEACHER))
            values = load_file(folder / _MOMENTS)
            means, deviations, *way = (values[name].to(device) for name in _TENSORS)
        # An image is aligned with the companions' moments of each step, which the fit kept.
        if alignment.steps > len(way[0]):
            raise RecipeError(
                f"`alignment.steps` is {alignment.steps}, but the model was fitted for "
                f"{len(way[0])}. Take at most those."
            )
        aim = Aim(Reader(teacher.to(device), device), means, deviations)
        return cls(
            aim,
            Way(*(each[: alignment.steps] for each in way)),
            public,
            tuple(labels),
            alignment,
        )

    def losses(self, images: UInt8Array, labels: Int64Array) -> Float64Array:
        """Return the teacher's cross-entropy on each image, float64 (n,)."""
        reader = self.aim.reader

        def cross_entropy(image: Tensor, label: Tensor) -> Tensor:
            return -reader(image)[0][0].log_softmax(dim=0)[label[0]]

        return losses_one_by_one(images, labels, reader.device, cross_entropy)

    def start(
        self, parent: UInt8Array | None, place: int, degree: float, seed: np.uint64
    ) -> tuple[Pixels, np.int64, np.int64]:
        """Return a sample's first image, its first step of alignment, and its public image's place.

        A new sample, which has no parent, starts from a public image that is drawn by `seed`.
        """
        rng = rng_of(seed)
        steps = len(self.way.means)
        other = int(rng.integers(len(self.public.images)))
        if parent is None or rng.random() < degree**2:
            return _levels(self.public.images[other]), np.int64(0), np.int64(other)
        image = _levels(parent)
        if degree:
            noise = ndimage.gaussian_filter(rng.standard_normal(parent.shape), (1, 1, 0))
            image = np.clip(image + _LOUDEST * degree * noise / noise.std(), -1, 1).astype(
                np.float32
            )
        return image, np.int64(steps - math.ceil(degree * steps)), np.int64(place)

    def align_batch(
        self, images: Pixels, labels: Int64Array, begin: Int64Array
    ) -> tuple[UInt8Array, Pixels]:
        """Return aligned images, uint8 n×h×w×c, and the teacher's probabilities for them.

        The probabilities are float32 (n, classes).
        """
        device = self.aim.reader.device
        pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2)
        targets, first = (torch.from_numpy(each).to(device) for each in (labels, begin))
        result = align(pixels, targets, self.aim, self.way, first, self.alignment)
        levels = (
            ((result.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255).byte().cpu().numpy()
        )
        with torch.no_grad():
            logits, *_ = self.aim.reader(tensors(levels, device))
        return levels, logits.softmax(dim=1).cpu().numpy()


def _levels(image: UInt8Array) -> Pixels:
    return image.astype(np.float32) / np.float32(127.5) - np.float32(1)


# The classifier that is trained on the private records: any network with GroupNorm.


_WIDTHS = (16, 32, 32)
_GROUPS = 4


def make_teacher(kind: str, channels: int, classes: int, seed: int) -> nn.Module:
    """Return a new classifier: float32 (n, classes) from n×channels×h×w.

    `kind`: small (three convolutions), or a function `package.module:function` of the numbers of
    channels and of classes. Raises RecipeError for an unknown kind, or a classifier without
    GroupNorm.
    """
    with drawing_by(seed, "teacher/weights"):
        make = _small if kind == "small" else _own(kind)
        model = make(channels, classes)
    if not any(isinstance(module, nn.GroupNorm) for module in model.modules()):
        raise RecipeError(
            f"`teacher`: '{kind}' has no GroupNorm layer, at which moments are taken. Normalise "
            "by GroupNorm."
        )
    return model


def check_own(kind: str, shape: ImageShape, classes: int, loss: CrossEntropy) -> None:
    """Check, on noise images of h×w×c, that a user's teacher allows the guarantee.

    Raises PluginError if it cannot be trained by DP-SGD, keeps state, or makes no logits of such
    images.
    """
    height, width, channels = shape
    model = make_teacher(kind, channels, classes, seed=0)
    images = (
        torch.rand((3, channels, height, width), generator=torch.Generator().manual_seed(0)) * 2 - 1
    )
    check_gradients(model, loss, shape, f"teacher: '{kind}'")
    check_stateless(model, images)
    logits = tuple(model(images).shape)
    if logits != (3, classes):
        raise PluginError(
            f"`teacher`: '{kind}' makes {'×'.join(map(str, logits))} numbers of 3 images, not "
            f"3×{classes} logits. Let it end in one for each class."
        )


def check_stateless(model: nn.Module, images: Tensor) -> None:
    """Check, by a trial, that a model's answer follows from its parameters and its images alone.

    State kept from one call to the next would carry private records past every clip and all noise.
    In training and in evaluation mode the model is called on the first image, on all others, and on
    the first again. Raises PluginError if a call moved a buffer or a parameter, or the first image
    got another answer the second time.

    Args:
        model: of a class that others wrote; its mode is left as it was.
        images: float32 n×c×h×w, n ≥ 2, public.
    """
    kind = type(model).__name__
    mode = model.training
    before = {name: value.clone() for name, value in _state(model).items()}
    # Some layers keep statistics in training alone, others only when they answer.
    for training in (True, False):
        model.train(training)
        with torch.no_grad():
            first, _, again = (model(part) for part in (images[:1], images[1:], images[:1]))
        for name, value in _state(model).items():
            if name not in before or not torch.equal(value, before[name]):
                raise PluginError(
                    f"{kind} writes to '{name}' when it is called, and so would keep traces of "
                    "private records outside the guarantee. Use layers that keep no statistics, "
                    "such as GroupNorm."
                )
        if not torch.allclose(first, again):
            raise PluginError(
                f"{kind} answers the same image differently the second time. It must keep nothing "
                "between calls, and draw nothing at random."
            )
    model.train(mode)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@dataclass(frozen=True)
class CrossEntropy:
    """The cross-entropy of shifted copies of a record. A `Loss` of DP-SGD."""

    shift: int  # the most pixels, along each side

    def draw(
        self,
        draws: int,
        shape: ImageShape,
        generator: torch.Generator,
    ) -> Randomness:
        """Draw shifts down and to the right, int64 (draws, 2)."""
        size = (draws, 2)
        low = -self.shift
        high = self.shift + 1
        return (torch.randint(low, high, size, generator=generator, device=generator.device),)

    def __call__(
        self, model: Network, image: Tensor, label: Tensor, randomness: Randomness
    ) -> Tensor:
        """Return the losses, (draws,), of ONE record."""
        (shifts,) = randomness
        _, height, width = image.shape
        down = (torch.arange(height, device=image.device) - shifts[:, :1]).clamp(0, height - 1)
        right = (torch.arange(width, device=image.device) - shifts[:, 1:]).clamp(0, width - 1)
        copies = image[:, down[:, :, None], right[:, None, :]].movedim(0, 1)
        return functional.cross_entropy(model(copies), label.expand(len(shifts)), reduction="none")


def _small(channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    before = channels
    for i, width in enumerate(_WIDTHS):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(_GROUPS, width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if i < len(_WIDTHS) - 1 else []
        before = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(before * 4, classes)
    )


def _own(name: str) -> Callable[[int, int], nn.Module]:
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise ImportError(f"'{name}' is no name of the form package.module:function")
        own: Callable[[int, int], nn.Module] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"`teacher`: '{name}' cannot be imported ({error}). Use small or "
            "package.module:function."
        ) from error
    return own
