"""How the generator learns from the discriminator; and both from public images. No private record is seen here."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from adapters.trained.gan.networks import Discriminator, made
from adapters.trained.noisy_mean.generator import CODE, Generator
from adapters.trained.plain import tensors, torch_seed
from adapters.trained.public import PublicSet
from adapters.trained.sections import PlainTraining

_BETAS = 0.5, 0.9
_DECAY = 0.99
_DEAF, _NEAR = 1e-3, 3.0
"""A generator whose images are all black or white for any eye, as when it learns first that digits are mostly black,
hears nothing of what the discriminator says: its sigmoid is flat. Where the mean slope is below _DEAF, logits are drawn
back to ±_NEAR; at all other times nothing is, because that the ground of a digit is quite black is a trait, too."""


class Learner:
    """A generator, and its training against a discriminator that is held fixed meanwhile.

    Guarantee: it is computed from the discriminators that it is handed and from public seeds, and from nothing else.

    Args:
        generator: on the device where it is trained.
        classes: how many labels.
        settings: how it is trained each time.
        seed: the recipe's.
    """

    def __init__(self, generator: Generator, classes: int, settings: PlainTraining, seed: int) -> None:
        self.generator, self._classes, self._settings = generator, classes, settings
        self.average = deepcopy(generator)
        device = next(generator.parameters()).device
        self._random = torch.Generator(device).manual_seed(torch_seed(seed, "gan/codes"))
        self._optimiser = torch.optim.Adam(generator.parameters(), lr=settings.learning_rate, betas=_BETAS)

    def learn(self, discriminator: nn.Module, steps: int | None = None) -> None:
        """Train on against `discriminator`, as many steps as the settings say, or `steps`."""
        discriminator.requires_grad_(False)
        self.generator.train()
        for _ in range(self._settings.steps if steps is None else steps):
            codes, labels = self._drawn()
            logits = self.generator.logits(codes, labels).permute(0, 3, 1, 2)
            images = torch.sigmoid(logits)
            loss = functional.softplus(-discriminator(images * 2 - 1, labels)).mean()
            if (images * (1 - images)).mean() < _DEAF:
                loss = loss + functional.relu(logits.abs() - _NEAR).square().mean()
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            self._follow()
        discriminator.requires_grad_(True)

    def fakes(self) -> tuple[Tensor, Tensor]:
        """A batch of images that it makes now, float32 n×c×h×w in [−1, 1], and their labels."""
        codes, labels = self._drawn()
        return made(self.generator, codes, labels), labels

    def _drawn(self) -> tuple[Tensor, Tensor]:
        batch, device = self._settings.batch, self._random.device
        codes = torch.randn((batch, CODE), generator=self._random, device=device)
        return codes, torch.randint(self._classes, (batch,), generator=self._random, device=device)

    def _follow(self) -> None:
        """The moving average of the weights, and the last statistics."""
        with torch.no_grad():
            for mean, value in zip(self.average.parameters(), self.generator.parameters(), strict=True):
                mean.lerp_(value, 1 - _DECAY)
            for last, now in zip(self.average.buffers(), self.generator.buffers(), strict=True):
                last.copy_(now)


def train_on_public(
    discriminator: Discriminator,
    generator: Generator,
    public: PublicSet,
    settings: PlainTraining,
    seed: int,
    step_done: Callable[[], None],
) -> None:
    """Train both on public images, a step of each in turn; the generator ends with the average of its weights."""
    device = next(discriminator.parameters()).device
    batches = np.random.default_rng(torch_seed(seed, "gan/batches"))
    optimiser = torch.optim.Adam(discriminator.parameters(), lr=settings.learning_rate, betas=_BETAS)
    learner = Learner(generator, public.classes, settings, seed)
    for _ in range(settings.steps):
        chosen = batches.integers(len(public.images), size=settings.batch)
        images, labels = tensors(public.images[chosen], device), torch.from_numpy(public.labels[chosen]).to(device)
        fakes, kinds = learner.fakes()
        optimiser.zero_grad()
        real, fake = discriminator(images, labels), discriminator(fakes, kinds)
        (functional.softplus(-real).mean() + functional.softplus(fake).mean()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        learner.learn(discriminator, 1)
        step_done()
    generator.load_state_dict(learner.average.state_dict())
