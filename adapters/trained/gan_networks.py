"""The networks of the GANs, and the generator that is fitted to a noisy mean."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.dp_sgd.gradients import Network, Randomness
from adapters.trained.fit import StepDone
from adapters.trained.public import PublicSet
from adapters.trained.settings import PlainTraining
from adapters.trained.torch_tools import step_down, torch_seed
from pe.data.arrays import Float32Array, ImageShape, Int64Array, UInt8Array

# Length of the code z that an image is made from, beside its label.
CODE = 8

# Widths of the generator's layers.
_DENSE = 256
_CHANNELS = 16


class ImageGenerator(nn.Module):
    """Code and label → image in [0, 1], h×w×c: two dense layers, two up-sampling convolutions."""

    def __init__(self, classes: int, shape: ImageShape) -> None:
        super().__init__()
        self.shape = shape
        height, across, depth = shape
        self._base = (math.ceil(height / 4), math.ceil(across / 4))
        inner = _CHANNELS * math.prod(self._base)
        self.dense = nn.Sequential(
            nn.Linear(CODE + classes, _DENSE),
            nn.BatchNorm1d(_DENSE),
            nn.ReLU(),
            nn.Linear(_DENSE, inner),
            nn.BatchNorm1d(inner),
            nn.ReLU(),
        )
        self.middle = nn.Conv2d(_CHANNELS, _CHANNELS // 2, 5, padding=2)
        self.last = nn.Conv2d(_CHANNELS // 2, depth, 5, padding=2)
        self._classes = classes

    @property
    def code_length(self) -> int:
        """Length of a code: CODE."""
        return CODE

    def forward(self, code: Tensor, labels: Tensor) -> Tensor:
        """Return float32 (n, h, w, c), from float32 (n, CODE) and int64 (n,)."""
        return torch.sigmoid(self.logits(code, labels))

    def logits(self, code: Tensor, labels: Tensor) -> Tensor:
        """Return the images before the sigmoid, float32 (n, h, w, c)."""
        one_hot = functional.one_hot(labels, self._classes).to(code.dtype)
        x = self.dense(torch.cat([code, one_hot], dim=1)).unflatten(1, (-1, *self._base))
        x = functional.relu(
            self.middle(functional.interpolate(x, scale_factor=2.0, mode="bilinear"))
        )
        images: Tensor = self.last(functional.interpolate(x, scale_factor=2.0, mode="bilinear"))
        return images[:, :, : self.shape[0], : self.shape[1]].permute(0, 2, 3, 1)

    def images(self, codes: Float32Array, labels: Int64Array) -> UInt8Array:
        """Return uint8 (n, h, w, c).

        An image depends on its own code and label alone, to within a grey level.
        """
        self.eval()
        with torch.no_grad():
            pixels = self(torch.from_numpy(codes), torch.from_numpy(labels))
        images: UInt8Array = (pixels * 255).round().clamp(0, 255).byte().numpy()
        return images


# The discriminator, and the loss of one record that DP-SGD trains it by.


_WIDTHS = 16, 32
_GROUPS = 4


class Discriminator(nn.Module):
    """A classifier of images: its logit says "real".

    It has two strided convolutions with GroupNorm, and a dense layer whose weights the label
    shifts.
    """

    def __init__(self, classes: int, shape: ImageShape) -> None:
        super().__init__()
        height, across, channels = shape
        widths = (channels, *_WIDTHS)
        self.layers = nn.ModuleList(
            nn.Conv2d(*pair, 5, stride=2, padding=2) for pair in pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(_GROUPS, width) for width in _WIDTHS)
        inner = _WIDTHS[-1] * math.ceil(height / 4) * math.ceil(across / 4)
        self.last = nn.Linear(inner, 1)
        self.kind = nn.Embedding(classes, inner)
        nn.init.zeros_(self.kind.weight)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return logits, (n,), of float32 n×c×h×w images in [−1, 1] with labels int64 (n,)."""
        x = images
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = functional.leaky_relu(norm(layer(x)), 0.2)
        x = x.flatten(1)
        logits: Tensor = self.last(x)[:, 0] + (self.kind(labels) * x).sum(dim=1)
        return logits


@dataclass(frozen=True, eq=False)
class DiscriminatorLoss:
    """The logistic loss of telling a record from generated images (Goodfellow et al. 2014).

    A `Loss` of DP-SGD.

    Attributes:
        generator: computed from public values and earlier releases alone; this loss does not train
            it.
        classes: how many labels there are.
    """

    generator: ImageGenerator
    classes: int

    def draw(
        self,
        draws: int,
        shape: ImageShape,
        generator: torch.Generator,
    ) -> Randomness:
        """Return generated images, float32 (draws, c, h, w) in [−1, 1], and their random labels."""
        codes = torch.randn((draws, CODE), generator=generator)
        labels = torch.randint(self.classes, (draws,), generator=generator)
        return generate(self.generator, codes, labels), labels

    def __call__(
        self, model: Network, image: Tensor, label: Tensor, randomness: Randomness
    ) -> Tensor:
        """Return, for each draw, the record's loss plus the generated image's loss, (draws,)."""
        images, labels = randomness
        real = model(image[None], label[None])
        return functional.softplus(-real) + functional.softplus(model(images, labels))


def generate(generator: ImageGenerator, codes: Tensor, labels: Tensor) -> Tensor:
    """Return images, float32 n×c×h×w in [−1, 1]. Each depends on its own code and label alone."""
    training = generator.training
    device = next(generator.parameters()).device
    with torch.no_grad():
        images: Tensor = generator.eval()(codes.to(device), labels.to(device))
    generator.train(training)
    return images.permute(0, 3, 1, 2) * 2 - 1


# The generator learns from the discriminator, and both from public images. No private record is
# seen here.


_BETAS = 0.5, 0.9
_DECAY = 0.99

# A generator whose pixels are all nearly black or white, as when it has learned first that digits
# are mostly black, gets almost no gradient, because its sigmoid is flat there. While the sigmoid's
# mean slope is below _FLAT, logits are drawn back to within ±_NEAR; at other times they are not,
# because a black background is a trait of digits, too.
_FLAT = 1e-3
_NEAR = 3.0


class Learner:
    """A generator, and its training against a discriminator that is held fixed meanwhile.

    Guarantee: it is computed from `generator`, the discriminators that `learn` gets and public
    seeds alone.

    Args:
        generator: on the device where it is trained.
        classes: how many labels.
        settings: of each training by `learn`.
        seed: the recipe's.
    """

    def __init__(
        self,
        generator: ImageGenerator,
        classes: int,
        settings: PlainTraining,
        seed: int,
    ) -> None:
        self.generator = generator
        self._classes = classes
        self._settings = settings
        self.average = deepcopy(generator)
        device = next(generator.parameters()).device
        self._random = torch.Generator(device).manual_seed(torch_seed(seed, "gan/codes"))
        self._optimiser = torch.optim.Adam(
            generator.parameters(), lr=settings.learning_rate, betas=_BETAS
        )

    def learn(self, discriminator: nn.Module, steps: int | None = None) -> None:
        """Train the generator against `discriminator`.

        `steps`: None: as many as the settings say.
        """
        discriminator.requires_grad_(False)
        self.generator.train()
        for _ in range(self._settings.steps if steps is None else steps):
            codes, labels = self._draw()
            logits = self.generator.logits(codes, labels).permute(0, 3, 1, 2)
            images = torch.sigmoid(logits)
            loss = functional.softplus(-discriminator(images * 2 - 1, labels)).mean()
            if (images * (1 - images)).mean() < _FLAT:
                loss = loss + functional.relu(logits.abs() - _NEAR).square().mean()
            step_down(self._optimiser, loss)
            self._follow()
        discriminator.requires_grad_(True)

    def fakes(self) -> tuple[Tensor, Tensor]:
        """Return a batch of generated images, float32 n×c×h×w in [−1, 1], and their labels."""
        codes, labels = self._draw()
        return generate(self.generator, codes, labels), labels

    def _draw(self) -> tuple[Tensor, Tensor]:
        batch = self._settings.batch
        device = self._random.device
        codes = torch.randn((batch, CODE), generator=self._random, device=device)
        return codes, torch.randint(self._classes, (batch,), generator=self._random, device=device)

    def _follow(self) -> None:
        """Update the moving average of the weights, and copy BatchNorm's latest statistics."""
        with torch.no_grad():
            for mean, value in zip(
                self.average.parameters(), self.generator.parameters(), strict=True
            ):
                mean.lerp_(value, 1 - _DECAY)
            for last, now in zip(self.average.buffers(), self.generator.buffers(), strict=True):
                last.copy_(now)


def train_on_public(
    discriminator: Discriminator,
    generator: ImageGenerator,
    seed: int,
    public: PublicSet,
    settings: PlainTraining,
    step_done: StepDone,
) -> None:
    """Train both networks on public images, a step of each in turn.

    The generator ends with its average weights.
    """
    device = next(discriminator.parameters()).device
    batches = np.random.default_rng(torch_seed(seed, "gan/batches"))
    optimiser = torch.optim.Adam(
        discriminator.parameters(), lr=settings.learning_rate, betas=_BETAS
    )
    learner = Learner(generator, public.classes, settings, seed)
    # The learner trains the generator against the discriminator as it is after each of its own
    # steps.
    for _ in range(settings.steps):
        images, labels = public.draw(batches, settings.batch, device)
        fakes, kinds = learner.fakes()
        real = functional.softplus(-discriminator(images, labels))
        fake = functional.softplus(discriminator(fakes, kinds))
        step_down(optimiser, real.mean() + fake.mean())
        learner.learn(discriminator, 1)
        step_done()
    generator.load_state_dict(learner.average.state_dict())
