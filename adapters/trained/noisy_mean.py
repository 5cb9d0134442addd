"""DP-MERF and DP-MEPF: a small generator is fitted to one noisy sum of features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from adapters.trained.answers import AnswersByCodes, write_generator
from adapters.trained.fit import Fit, FittedMethod
from adapters.trained.public import NoiseImages
from adapters.trained.settings import Fraction, Rate
from adapters.trained.torch_tools import step_down
from pe.data.arrays import Float64Array, ImageShape, UInt8Array
from pe.data.samples import generator
from pe.errors import RecipeError
from pe.fit.trainer import FitTerms
from pe.plugins.registry import load
from pe.plugins.settings import Count
from pe.plugins.specs import plugin

if TYPE_CHECKING:
    from torch import Tensor

    from adapters.trained.gan_networks import ImageGenerator


class RecordFeatures(Protocol):
    """Features φ of an image x, computed from the image and public values alone."""

    @property
    def size(self) -> int:
        """D, the number of features."""
        ...

    def of_record(self, image: UInt8Array) -> Float64Array:
        """Return φ(x), float64 (D,), of one private image (h, w, c).

        Guarantee: ‖φ(x)‖₂ ≤ 1, up to rounding, and no bit of it depends on anything but this image
        and public values.
        """
        ...

    def of_batch(self, images: Tensor) -> Tensor:
        """Return c·φ(x), (n, D), differentiable, with one c > 0 for all images.

        Images are float32 (n, h, w, c) in [0, 1].
        """
        ...


@plugin
class NoisyMean(AnswersByCodes):
    """A generator of images that is fitted to one noisy sum of the records' features.

    Args:
        steps: of fitting the generator.
        batch: images per step.
        rate: Adam's highest learning rate, which falls as a cosine.
    """

    steps: Count = 1000
    batch: Count = 200
    rate: Rate = 1e-2

    def fit_to_mean(
        self,
        fit: Fit,
        features_of: Callable[[FitTerms], RecordFeatures],
    ) -> None:
        """Release the sum of the records' features, then fit a generator to it and write it."""
        terms = fit.terms
        classes = len(fit.terms.classes)
        if self.batch < max(2, classes):
            raise RecipeError(
                f"`api.batch` is {self.batch}, but each step needs an image of each of {classes} "
                f"labels, and at least two images. Set it to {max(2, classes)} or more."
            )
        mean = fit.sum("mean_features")
        fit.begin()
        # From here on the records are summed once: the generator sees the noisy sum alone.
        features = features_of(terms)
        total = fit.sums(mean, features.of_record, (classes, features.size))
        target = total / (mean.grid * terms.declared_size)
        write_generator(self._fitted(fit, target, features), terms, fit.folder)

    def _fitted(
        self,
        fit: Fit,
        target: Float64Array,
        features: RecordFeatures,
    ) -> ImageGenerator:
        """Return a generator whose mean features m, per label, point in the direction of `target`.

        `target` is the noisy μ̃, float64 (classes, D). Post-processing.

        For each label the distance ‖μ̃ − w·m‖² is least at w = ⟨μ̃, m⟩/‖m‖², whatever the label's
        private size, so the size need not be known. Minimised is the sum over labels of
        −⟨μ̃, m⟩·|⟨μ̃, m⟩|/‖m‖²; its terms keep the sign of ⟨μ̃, m⟩, so that a label whose ⟨μ̃, m⟩
        begins below 0 is led back.
        """
        import torch
        from torch.nn import functional

        from adapters.trained.gan_networks import CODE, ImageGenerator

        classes = len(target)
        with (
            torch.random.fork_rng(devices=[]),
            fit.steps("fitting the generator", self.steps) as step_done,
        ):
            torch.manual_seed(fit.terms.seed % 2**63)
            model = ImageGenerator(classes, fit.terms.image_shape)
            direction = torch.from_numpy(target.astype(np.float32))
            direction = direction / direction.norm()
            # Labels of a batch are as evenly many as can be, so that each label's mean is as good.
            labels = torch.arange(self.batch) % classes
            shares = functional.one_hot(labels, classes).float()
            shares = (shares / shares.sum(dim=0)).T
            optimiser = torch.optim.Adam(model.parameters(), lr=self.rate)
            falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, self.steps)
            for _ in range(self.steps):
                images = model(torch.randn(self.batch, CODE), labels)
                mean = shares @ features.of_batch(images)
                cosine = (direction * mean).sum(dim=1)
                step_down(optimiser, -(cosine * cosine.abs() / mean.square().sum(dim=1)).sum())
                falling.step()
                step_done()
        return model.eval()


@plugin
class DPMERF(NoisyMean, FittedMethod):
    """Small, simple images in a minute: one noisy mean of random features.

    Harder et al., AISTATS 2021.

    Every private image becomes a vector of random features of norm 1. The vectors' sum per label is
    released once, with noise, and a small generator is fitted to the sum without seeing the images
    again. A sample carries the code z that it was made from; a variation of degree d carries
    √(1−d²)·z + d·ξ with a new code ξ: 0 keeps z, 1 gives ξ.

    Conditions: `code` (float32, n×8).

    Args:
        features: D, the number of random features; even.
        bandwidth: of the Gaussian kernel on pixel values in [0, 1], divided by the root of their
            number; or a list of bandwidths, each for an equal share of the features, which gives
            the mean of the kernels.
    """

    features: Annotated[int, Field(ge=2, multiple_of=2)] = 4000
    bandwidth: Rate | Annotated[list[Rate], Field(min_length=1)] = 0.2

    def _fit(self, fit: Fit) -> None:
        bandwidths = self.bandwidth if isinstance(self.bandwidth, list) else [self.bandwidth]
        if self.features < 2 * len(bandwidths):
            raise RecipeError(
                f"`features` is {self.features}, too few for {len(bandwidths)} bandwidths. Take "
                f"at least {2 * len(bandwidths)}."
            )

        def features(terms: FitTerms) -> RandomFourier:
            dimensions = int(np.prod(terms.image_shape))
            scaled = [bandwidth * float(np.sqrt(dimensions)) for bandwidth in bandwidths]
            return RandomFourier(frequencies(self.features, dimensions, scaled, terms.seed))

        self.fit_to_mean(fit, features)


def frequencies(
    count: int, dimensions: int, bandwidths: Sequence[float], seed: int
) -> Float64Array:
    """Return W of `RandomFourier`, float64 (count/2, dimensions), from a public seed.

    Bandwidths have a block each.
    """
    rows = count // 2
    of_row = np.array(bandwidths)[np.arange(rows) * len(bandwidths) // rows]
    normal = generator(seed, "dp_merf/frequencies").standard_normal((rows, dimensions))
    return np.asarray(normal / of_row[:, None])


@dataclass(frozen=True, eq=False)
class RandomFourier:
    """φ(x) = √(2/D)·(cos Wx, sin Wx), of norm 1. A `RecordFeatures`.

    With W's rows from N(0, I/bandwidth²), ⟨φ(x), φ(y)⟩ is near the Gaussian kernel exp(−‖x −
    y‖²/(2·bandwidth²)); with several bandwidths, near the mean of their kernels.
    """

    frequencies: Float64Array  # W, float64 (D/2, h·w·c)

    @property
    def size(self) -> int:
        """See `RecordFeatures`."""
        return 2 * len(self.frequencies)

    def of_record(self, image: UInt8Array) -> Float64Array:
        """See `RecordFeatures`.

        The matrix-vector product is of this record alone, so no other affects its rounding.
        """
        angles = self.frequencies @ (image.reshape(-1) / 255.0)
        waves = np.concatenate([np.cos(angles), np.sin(angles)])
        return np.asarray(waves / np.sqrt(len(self.frequencies)))

    def of_batch(self, images: Tensor) -> Tensor:
        """See `RecordFeatures`."""
        import torch

        angles = images.flatten(1) @ self._transpose
        return torch.cat([angles.cos(), angles.sin()], dim=1)

    @cached_property
    def _transpose(self) -> Tensor:
        import torch

        return torch.from_numpy(self.frequencies.astype(np.float32)).T.contiguous()


_CENTRED = 100


@plugin
class DPMEPF(NoisyMean, FittedMethod):
    """To compare with `dp_merf`: one noisy mean of a pretrained network's features.

    Harder et al., TMLR 2023.

    Every private image becomes a vector of norm at most 1: the values after some stages of
    EfficientNet-Lite0, trained on ImageNet, and their squares. The vectors' sum per label is
    released once, with noise, and a small generator is fitted to the sum, through the network,
    without seeing the images again. Samples carry codes, as for `dp_merf`. Each stage has the same
    weight, and its mean over public noise images is subtracted from its values. This differs from
    the paper, where the values of all stages are scaled to norm 1 together, and nothing is
    subtracted.

    Conditions: `code` (float32, n×8).

    Args:
        side: pixels of the square that images are resized to for the network, ≥ 16.
        stages: of the network, ascending, from 1 to 7; the network is not computed beyond the last.
            None: 2, 3, 4, 5.
        squares: weight of the squares, from 0 (no squares) to below 1; as published 0.5.
    """

    side: Annotated[int, Field(ge=16)] = 32
    stages: Annotated[list[Annotated[int, Field(ge=1, le=7)]], Field(min_length=1)] | None = None
    squares: Fraction = 0.5
    rate: Rate = 5e-3

    def _fit(self, fit: Fit) -> None:
        stages = [2, 3, 4, 5] if self.stages is None else self.stages
        if sorted(set(stages)) != stages:
            raise RecipeError(f"`stages` is {stages}. List different numbers, ascending.")

        def features(terms: FitTerms) -> Perceptual:
            return Perceptual.of(
                self.side,
                stages,
                self.squares,
                terms.image_shape,
                terms.seed,
                _CENTRED,
            )

        self.fit_to_mean(fit, features)


# Norm below which a block counts as zero.
_LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class Perceptual:
    """φ(x) = (√w_j · (b_j − c_j)/‖b_j − c_j‖)_j with Σ w_j = 1, so that ‖φ(x)‖ ≤ 1.

    A `RecordFeatures`.

    The blocks b_j(x) are the values after each chosen stage of EfficientNet-Lite0, one per channel
    and place, then their squares; c_j is the mean of a block over public noise images.
    """

    module: Any  # the network, frozen, in evaluation mode
    side: int  # pixels of the square that images are resized to
    stages: tuple[int, ...]  # those whose values are taken, ascending, from 1 to 7
    # w_j of each stage's values, then of each stage's squares, if squares count; the weights sum to
    # 1
    weights: tuple[float, ...]
    centres: tuple[Tensor, ...]  # c_j, float32 (1, d_j), in the order of the weights

    @classmethod
    def of(
        cls,
        side: int,
        stages: Sequence[int],
        squares: float,
        shape: ImageShape,
        seed: int,
        images: int,
    ) -> Perceptual:
        """Return features of the published network for images of h×w×c.

        The means over `images` public noise images centre them.
        """
        import torch

        module = load("pe.embeddings", "efficientnet_lite").load_network(None, "Fitting 'dp_mepf'")
        shares = [1 - squares, squares] if squares else [1.0]
        each = [share / len(stages) for share in shares for _ in stages]
        plain = cls(module, side, tuple(stages), tuple(each), ())
        noise = NoiseImages(count=images).read(shape, seed).images
        with torch.inference_mode():
            centres = [
                block.mean(dim=0, keepdim=True).clone() for block in plain._blocks(_pixels(noise))
            ]
        return replace(plain, centres=tuple(torch.tensor(one.numpy()) for one in centres))

    @property
    def size(self) -> int:
        """See `RecordFeatures`."""
        return sum(centre.shape[1] for centre in self.centres)

    def of_record(self, image: UInt8Array) -> Float64Array:
        """See `RecordFeatures`. The guarantee holds whatever numbers the network returns."""
        # Each block is brought to norm 1 in float64, and one that is not finite, or nearly zero,
        # counts as zero. The network is frozen, keeps no statistics and sees the image alone.
        import torch

        with torch.inference_mode():
            blocks = [
                block[0].numpy().astype(np.float64) for block in self._centre(_pixels(image[None]))
            ]
        return np.concatenate(
            [np.sqrt(w) * _unit(block) for w, block in zip(self.weights, blocks, strict=True)]
        )

    def of_batch(self, images: Tensor) -> Tensor:
        """See `RecordFeatures`."""
        import torch
        from torch.nn.functional import normalize

        blocks = self._centre(images)
        return torch.cat(
            [w**0.5 * normalize(b, eps=_LEAST) for w, b in zip(self.weights, blocks, strict=True)],
            dim=1,
        )

    def _centre(self, images: Tensor) -> list[Tensor]:
        return [
            block - centre for block, centre in zip(self._blocks(images), self.centres, strict=True)
        ]

    def _blocks(self, images: Tensor) -> list[Tensor]:
        """Return the blocks b_j, each float32 (n, d_j).

        Images are float32 (n, h, w, c) in [0, 1], of 1 or 3 channels.
        """
        from torch.nn import functional

        x = images.permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
        size = (self.side, self.side)
        x = functional.interpolate(x, size=size, mode="bilinear", antialias=True)
        x = self.module.bn1(self.module.conv_stem((x * 255 - 127) / 128))
        values = []
        # No layer behind the last chosen stage is computed.
        for stage, block in enumerate(self.module.blocks[: self.stages[-1]], start=1):
            x = block(x)
            if stage in self.stages:
                values.append(x.flatten(1))
        if len(self.weights) > len(values):
            values += [value.square() for value in values]
        return values


def _pixels(images: UInt8Array) -> Tensor:
    import torch

    return torch.from_numpy(images / np.float32(255))


def _unit(vector: Float64Array) -> Float64Array:
    norm = float(np.linalg.norm(vector))
    return vector / norm if _LEAST < norm < np.inf else np.zeros_like(vector)
