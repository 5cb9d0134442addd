"""A frozen classifier, read: its logits, and the moments of what enters its GroupNorm layers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from adapters.trained.answers import check_labels
from adapters.trained.dp_imgsyn_moments import LEAST_VARIANCE, Moments, Scale, Vector, noisy_sum
from adapters.trained.dp_sgd.gradients import check_stateless, record_gradients, trained_parameters
from adapters.trained.dp_sgd.training import Training
from adapters.trained.plain import tensors, torch_seed
from adapters.trained.public import PublicSet
from adapters.trained.releases import blocks_of, train_blocks
from adapters.trained.settings import DPSGD, TEACHERS, Alignment
from pe.errors import MissingDependency, PluginError, RecipeError
from pe.fit.trainer import Fitting
from pe.plugins.devices import memory_refused
from pe.privacy.release import Release


class Reader:
    """Logits and moments of images, by a classifier that stays as it is.

    To be called by one thread at a time: what enters a layer is caught where the layer is.

    Args:
        teacher: frozen, in evaluation mode, so that each image is seen alone. Its buffers are copied for each call:
            what a layer writes to them is gone with it.
    """

    def __init__(self, teacher: nn.Module) -> None:
        self.teacher = teacher.eval().requires_grad_(False)
        self._layers = [module for module in teacher.modules() if isinstance(module, nn.GroupNorm)]
        self.widths = tuple(layer.num_channels for layer in self._layers)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (n, classes), means (n, d) and mean squares (n, d) of all channels, layer by layer."""
        seen: list[Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(2)))
            for layer in self._layers
        ]
        try:
            buffers = {name: value.clone() for name, value in self.teacher.named_buffers()}
            logits: Tensor = functional_call(self.teacher, buffers, (images,))
        finally:
            for hook in hooks:
                hook.remove()
        means = torch.cat([each.mean(dim=2) for each in seen], dim=1)
        squares = torch.cat([each.square().mean(dim=2) for each in seen], dim=1)
        return logits, means, squares

    def moments(self, images: npt.NDArray[np.uint8], device: torch.device) -> tuple[Vector, Vector]:
        """Means and mean squares of uint8 n×h×w×c, float64 (n, d) each.

        A private image is asked for alone: so its moments depend on no other, to the last bit.
        """
        with torch.no_grad():
            _, means, squares = self(tensors(images, device))
        return means.cpu().double().numpy(), squares.cpu().double().numpy()


# Alignment: public images are moved until the classifier sees in them what it saw in the private ones (Algorithm 1).
#
# It uses the classifier, the released moments and public images only: post-processing.


_BETAS = (0.5, 0.99)


@dataclass(frozen=True, eq=False)
class Way:
    """What the companions' moments were before each step: so another image can be aligned as one more of them.

    Attributes:
        means: float32 (k, d).
        squares: float32 (k, d).
    """

    means: Tensor
    squares: Tensor


@dataclass(frozen=True, eq=False)
class Aim:
    """What images are aligned with.

    Attributes:
        reader: the classifier.
        means: of the private images, noisy, float32 (d,).
        deviations: float32 (d,).
    """

    reader: Reader
    means: Tensor
    deviations: Tensor


def align_companions(images: Tensor, targets: Tensor, aim: Aim, settings: Alignment) -> Way:
    """Align `images` together, and note their moments before each step.

    Args:
        images: public, float32 n×c×h×w in [−1, 1].
        targets: int64 (n,), each label as often.
        aim: the classifier and the moments.
        settings: how.
    """
    pixels = images.clone().requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=settings.rate, betas=_BETAS)
    means, squares = [], []
    for _ in range(settings.steps):
        logits, mean, square = aim.reader(pixels)
        means.append(mean.detach().mean(dim=0))
        squares.append(square.detach().mean(dim=0))
        feature = settings.feature * len(images) * _distance(mean.mean(dim=0), square.mean(dim=0), aim)
        _step(optimiser, feature + _others(pixels, logits, targets, settings).sum(), pixels)
    none = torch.zeros((0, len(aim.means)), device=images.device)
    return Way(torch.stack(means), torch.stack(squares)) if means else Way(none, none)


def align(images: Tensor, targets: Tensor, aim: Aim, way: Way, begin: Tensor, settings: Alignment) -> Tensor:
    """Each image aligned as if it were one more of the companions; it depends on no other image.

    Args:
        images: public, or evolved from public ones, float32 n×c×h×w in [−1, 1].
        targets: int64 (n,).
        aim: the classifier and the moments.
        way: the companions'.
        begin: int64 (n,), the step at which each image joins: 0 for all steps, k for none.
        settings: how.
    """
    size = settings.companions + 1
    pixels = images.clone().requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=settings.rate, betas=_BETAS)
    found, least = images, total_variation(images)
    moving = torch.ones(len(images), dtype=torch.bool, device=images.device)
    for step in range(len(way.means)):
        logits, mean, square = aim.reader(pixels)
        means = ((size - 1) * way.means[step] + mean) / size
        squares = ((size - 1) * way.squares[step] + square) / size
        feature = settings.feature * size * _distance(means, squares, aim)
        here, joined = pixels.detach().clone(), begin <= step
        _step(optimiser, ((feature + _others(pixels, logits, targets, settings)) * joined).sum(), pixels)
        with torch.no_grad():
            pixels.copy_(torch.where(joined[:, None, None, None], pixels, here))
            rough = total_variation(pixels)
            moving &= ~joined | (rough <= settings.roughest * least)
            found = torch.where((joined & moving)[:, None, None, None], pixels, found)
            least = torch.minimum(least, rough)
    return found.detach()


def total_variation(images: Tensor) -> Tensor:
    """Of each image (Equation 3), float32 (n,)."""
    down = functional.pad(images.diff(dim=2), (0, 0, 0, 1))
    right = functional.pad(images.diff(dim=3), (0, 1))
    return (down.square() + right.square() + 1e-12).sqrt().sum(dim=(1, 2, 3))


def _distance(means: Tensor, squares: Tensor, aim: Aim) -> Tensor:
    """Equation 1: over the last axis."""
    deviations = (squares - means**2).clamp(min=LEAST_VARIANCE).sqrt()
    return (means - aim.means).square().sum(dim=-1) + (deviations - aim.deviations).square().sum(dim=-1)


def _others(pixels: Tensor, logits: Tensor, targets: Tensor, settings: Alignment) -> Tensor:
    """Equations 2 to 4 of each image, (n,); the weights are those of a batch that has `companions` + 1 images."""
    size = settings.companions + 1
    prior = settings.total_variation * total_variation(pixels) + settings.norm * pixels.square().sum(dim=(1, 2, 3))
    return settings.classification * functional.cross_entropy(logits, targets, reduction="none") + size * prior


def _step(optimiser: torch.optim.Adam, loss: Tensor, pixels: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    with torch.no_grad():
        pixels.clamp_(-1, 1)


# What is fitted: the teacher, the private images' noisy moments, and the way that the companions went.


Pixels = npt.NDArray[np.float32]

_TEACHER, _MOMENTS = "teacher.safetensors", "moments.safetensors"

_LOUDEST = 0.5
"""Standard deviation of a variation's noise at degree 1, where pixels lie in [−1, 1]."""


@dataclass(frozen=True, eq=False)
class Model:
    """Answers, image by image; none depends on another.

    Attributes:
        aim: the teacher and the private images' moments.
        way: the companions'.
        public: what images begin as.
        labels: the label names, in the teacher's order.
        alignment: how they are aligned.
        device: where.
    """

    aim: Aim
    way: Way
    public: PublicSet
    labels: tuple[str, ...]
    alignment: Alignment
    device: torch.device

    @classmethod
    def fitted(
        cls,
        reader: Reader,
        moments: Moments,
        public: PublicSet,
        labels: Sequence[str],
        alignment: Alignment,
        device: torch.device,
    ) -> Model:
        """Align the companions: evenly spread public images, the labels in turn."""
        means, deviations = (torch.from_numpy(each).float().to(device) for each in (moments.means, moments.deviations))
        aim = Aim(reader, means, deviations)
        chosen = np.linspace(0, len(public.images) - 1, alignment.companions).astype(np.int64)
        targets = torch.arange(len(chosen), device=device) % len(labels)
        way = align_companions(tensors(public.images[chosen], device), targets, aim, alignment)
        return cls(aim, way, public, tuple(labels), alignment, device)

    def write(self, folder: Path) -> None:
        """The teacher and the moments, as .safetensors."""
        from safetensors.torch import save_file

        weights = self.aim.reader.teacher.state_dict()  # layers may share some, and a file holds each by itself
        save_file({name: value.cpu().contiguous().clone() for name, value in weights.items()}, folder / _TEACHER)
        tensors_ = {"means": self.aim.means, "deviations": self.aim.deviations}
        tensors_ |= {"way_means": self.way.means, "way_squares": self.way.squares}
        save_file({name: value.cpu().contiguous() for name, value in tensors_.items()}, folder / _MOMENTS)

    @classmethod
    def read(
        cls,
        folder: Path,
        teacher: nn.Module,
        labels: Sequence[str],
        public: PublicSet,
        alignment: Alignment,
        device: torch.device,
    ) -> Model:
        """The model in `folder`; `teacher` gets its weights. Fewer steps than it was fitted for may be taken.

        Raises:
            RecipeError: a file is missing, damaged, or of another teacher; or more steps are wanted.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            teacher.load_state_dict(load_file(folder / _TEACHER))
            found = load_file(folder / _MOMENTS)
            means, deviations, *way = (
                found[name].to(device) for name in ("means", "deviations", "way_means", "way_squares")
            )
        except (OSError, KeyError, RuntimeError, SafetensorError) as error:
            raise RecipeError(f"{folder} holds no DP-ImgSyn of this teacher: fit it in a new run.") from error
        if alignment.steps > len(way[0]):
            raise RecipeError(
                f"alignment.steps is {alignment.steps}, and the model was fitted for {len(way[0])}: take at most those."
            )
        way = [each[: alignment.steps] for each in way]
        return cls(
            Aim(Reader(teacher.to(device)), means, deviations), Way(*way), public, tuple(labels), alignment, device
        )

    def numbers(self, labels: Sequence[str]) -> npt.NDArray[np.int64]:
        """The teacher's number of each label, int64 (n,).

        Raises:
            RecipeError: it knows none of that name.
        """
        check_labels(labels, self.labels)
        known = {name: i for i, name in enumerate(self.labels)}
        return np.array([known[label] for label in labels], dtype=np.int64)

    def losses(self, images: npt.NDArray[np.uint8], labels: Sequence[str]) -> npt.NDArray[np.float64]:
        """The teacher's cross-entropy on each image, float64 (n,), which it sees alone."""
        found = np.empty(len(images))
        with torch.no_grad():
            for i, (image, number) in enumerate(zip(images, self.numbers(labels), strict=True)):
                logits, *_ = self.aim.reader(tensors(image[None], self.device))
                found[i] = -float(logits[0].log_softmax(dim=0)[number])
        return found

    def anew(self, seed: int) -> tuple[Pixels, int]:
        """A public image drawn by `seed`, float32 h×w×c in [−1, 1], and its place."""
        place = int(_rng(seed).integers(len(self.public.images)))
        return _levels(self.public.images[place]), place

    def moved(
        self, parent: npt.NDArray[np.uint8], place: int, degree: float, seed: int
    ) -> tuple[Pixels, np.int64, np.int64]:
        """What a variation begins with, the step from which it is aligned, and the public image's place."""
        rng, steps = _rng(seed), len(self.way.means)
        other = int(rng.integers(len(self.public.images)))
        if rng.random() < degree**2:
            return _levels(self.public.images[other]), np.int64(0), np.int64(other)
        noise = ndimage.gaussian_filter(rng.standard_normal(parent.shape), (1, 1, 0))
        start = np.clip(_levels(parent) + _LOUDEST * degree * noise / noise.std(), -1, 1) if degree else _levels(parent)
        return start.astype(np.float32), np.int64(steps - ceil(degree * steps)), np.int64(place)

    def aligned(
        self, images: Pixels, labels: npt.NDArray[np.int64], begin: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint8], Pixels]:
        """The aligned images, uint8 n×h×w×c, and the teacher's probabilities for them, float32 (n, classes)."""
        pixels = torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2)
        targets, first = (torch.from_numpy(each).to(self.device) for each in (labels, begin))
        moved = align(pixels, targets, self.aim, self.way, first, self.alignment)
        levels = ((moved.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255).byte().cpu().numpy()
        with torch.no_grad():
            logits, *_ = self.aim.reader(tensors(levels, self.device))
        return levels, logits.softmax(dim=1).cpu().numpy()


def _levels(image: npt.NDArray[np.uint8]) -> Pixels:
    return image.astype(np.float32) / np.float32(127.5) - np.float32(1)


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=seed))


# The classifier that is trained on the private records: any network with GroupNorm.


_WIDTHS = (16, 32, 32)
_GROUPS = 4
_LARGE = 64


def make_teacher(kind: str, channels: int, side: int, classes: int, seed: int) -> nn.Module:
    """A new classifier: float32 (n, classes) from n×channels×h×w.

    Args:
        kind: `small`: three convolutions; `resnet18`; or `package.module:function`, a function of your own that takes
            the numbers of channels and of classes.
        channels: of the images.
        side: the images' shorter side, pixels.
        classes: how many.
        seed: of the weights, through PyTorch's generator.

    Raises:
        RecipeError: an unknown kind, or a network without GroupNorm.
        MissingDependency: resnet18 needs torchvision.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(seed, "teacher/weights"))
        if kind == "small":
            model: nn.Module = _small(channels, classes)
        elif kind == "resnet18":
            model = _resnet18(channels, side, classes)
        else:
            model = _own(kind)(channels, classes)
    if not any(isinstance(module, nn.GroupNorm) for module in model.modules()):
        raise RecipeError(
            f"teacher: '{kind}' has no GroupNorm layer, and moments of what enters such layers are what images are "
            "aligned with: put GroupNorm where it normalises."
        )
    return model


def check_own(kind: str, shape: tuple[int, int, int], classes: int, loss: CrossEntropy) -> None:
    """Check, on noise, that a teacher can be trained and read as the guarantee has it.

    Args:
        kind: see `make_teacher`; the toolkit's own need no trial.
        shape: height, width, channels of the images.
        classes: how many.
        loss: of its training.

    Raises:
        RecipeError: see `make_teacher`.
        PluginError: it cannot be trained by DP-SGD, keeps state, or makes no logits of such images.
    """
    if kind in TEACHERS:
        return
    height, width, channels = shape
    model = make_teacher(kind, channels, min(height, width), classes, seed=0)
    parameters = trained_parameters(model)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((3, channels, height, width), generator=generator) * 2 - 1
    drawn = loss.draw(3, 1, (channels, height, width), generator)
    try:
        check_stateless(model, images)
        found = tuple(model(images).shape)
        record_gradients(model, loss, parameters, images, torch.zeros(3, dtype=torch.int64), drawn)
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        raise PluginError(
            f"teacher: '{kind}' cannot be trained record by record on images of {height}×{width}×{channels} ({said}): "
            "take layers that fit them, and that torch.func.vmap can run."
        ) from error
    if found != (3, classes):
        raise PluginError(
            f"teacher: '{kind}' makes {'×'.join(map(str, found))} numbers of 3 images, not 3×{classes} logits: "
            "let it end in one for each class."
        )


class CrossEntropy:
    """A `Loss` of DP-SGD: cross-entropy of shifted copies of a record."""

    def __init__(self, shift: int) -> None:
        self._shift = shift

    def draw(
        self, records: int, draws: int, shape: tuple[int, int, int], generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Shifts down and to the right, int64 (records, draws, 2)."""
        size, device = (records, draws, 2), generator.device
        return (torch.randint(-self._shift, self._shift + 1, size, generator=generator, device=device),)

    def __call__(
        self, model: Callable[..., Any], image: Tensor, label: Tensor, randomness: tuple[Tensor, ...]
    ) -> Tensor:
        """The losses, (draws,), of ONE record."""
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
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(before * 4, classes))


def _resnet18(channels: int, side: int, classes: int) -> nn.Module:
    """torchvision's, with GroupNorm; small images are not shrunk at the entry."""
    try:
        from torchvision.models import resnet18
    except ImportError as error:
        raise MissingDependency.of("torchvision", "trained", "The teacher 'resnet18'") from error

    model: nn.Module = resnet18(num_classes=classes, norm_layer=lambda width: nn.GroupNorm(min(32, width // 4), width))
    if side < _LARGE:
        model.conv1, model.maxpool = nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.Identity()
    elif channels != 3:
        model.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    return model


def _own(name: str) -> Callable[[int, int], nn.Module]:
    module, colon, function = name.partition(":")
    try:
        if not colon:
            raise ImportError(f"'{name}' is no name of the form package.module:function")
        found: Callable[[int, int], nn.Module] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"teacher: '{name}' cannot be had ({error}): take small, resnet18 or package.module:function."
        ) from error
    return found


# The fit of DP-ImgSyn: a teacher by DP-SGD, the private images' moments as one noisy sum, the companions' way.


def fit_model(
    fitting: Fitting,
    *,
    teacher: nn.Module,
    loss: CrossEntropy,
    training: DPSGD,
    moments: Release,
    public: PublicSet,
    alignment: Alignment,
    batch_size: int,
    devices: list[torch.device],
) -> Model:
    """Train `teacher`, release the moments, and align the companions.

    Guarantee: that of `training`'s blocks and of `moments`; all else is post-processing of them, or public. The private
    records are read only while one of them is drawn.

    Args:
        fitting: terms, ledger and records.
        teacher: new.
        loss: of its training on the private records.
        training: how.
        moments: their release.
        public: the images to begin with.
        alignment: how they are aligned.
        batch_size: public images read at once.
        devices: where each process of the training computes; the first of them does all else.

    Raises:
        Interrupted: it was told to stop.
        RecipeError: memory does not suffice.
    """
    terms, private, device = fitting.terms, cache(fitting.private), devices[0]
    steps = Training(teacher, loss, training, *devices)
    reader = Reader(steps.load(train_blocks(steps, blocks_of(training, terms), fitting, private)))
    with _enough_memory(f"batch_size is {batch_size}"):
        starts = range(0, len(public.images), batch_size)
        parts = [reader.moments(public.images[start : start + batch_size], device) for start in starts]
        means, squares = (np.concatenate(part) for part in zip(*parts, strict=True))
        scale = Scale.of(means, squares, reader.widths)

    def vector(image: npt.NDArray[np.uint8]) -> Vector:
        found: Vector = np.hstack(reader.moments(image[None], device))[0] * scale.factors
        return found

    noisy = fitting.ledger.release(
        moments, lambda noise: noisy_sum(private(), vector, len(scale.factors), moments, noise)
    )
    found = Moments.of_sum(noisy, scale, moments.grid, terms.declared_size)
    with _enough_memory(f"alignment.companions is {alignment.companions}"):
        return Model.fitted(reader, found, public, terms.classes, alignment, device)


@contextmanager
def _enough_memory(said: str) -> Iterator[None]:
    """What needs memory by a setting; `said` names it and its value."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if memory_refused(error):
            raise RecipeError(f"{said}, and for so many images at once memory does not suffice: take less.") from error
        raise
