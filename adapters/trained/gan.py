"""DPGAN, and PrivImage+G, the variant of PrivImage that trains a GAN."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.trained.answers import AnswersByCodes, write_generator
from adapters.trained.fit import Fit, TrainedMethod, label_numbers, write_weights
from adapters.trained.public import Public, PublicSet, ReadsPublic, drawing_by
from adapters.trained.semantics import SelectsPublic
from adapters.trained.settings import FineTuning, PlainTraining
from pe.data.arrays import Float32Array, Float64Array, UInt8Array
from pe.data.samples import generator as seeded
from pe.plugins.protocols import PluginInfo
from pe.plugins.specs import plugin

if TYPE_CHECKING:
    from adapters.trained.dp_sgd.training import Training
    from adapters.trained.gan_networks import Discriminator, DiscriminatorLoss, Generator
    from pe.fit.trainer import FitTerms

_DISCRIMINATOR = "discriminator.safetensors"
_PRETRAINING = PlainTraining(steps=2000, batch=64, learning_rate=1e-3)


@plugin
class FittedGAN(ReadsPublic, AnswersByCodes, TrainedMethod):
    """A GAN: DP-SGD trains the discriminator to tell records from generated images; the generator learns from it alone.

    The generator learns between the discriminator's blocks, at no cost in ε: it sees released weights only. A sample
    carries the code z that it was made from; a variation of degree d carries √(1−d²)·z + d·ξ with a new code ξ.

    Conditions: `code` (float32, n×8).

    Args:
        training: of the discriminator, on the private records; `block`: its steps between two lessons.
        lesson: training of the generator after each block.
        pretraining: of both networks, on the public images.
        device: auto, cpu, cuda, cuda:1, or a list of GPUs, which share each step of DP-SGD.
    """

    info = PluginInfo(hosts=(), by_label=True, machine_settings=("device", "training.micro_batch"))

    training: FineTuning = FineTuning(draws=1, block=20, learning_rate=1e-3, ema=0.9)
    lesson: PlainTraining = PlainTraining(steps=20, batch=64, learning_rate=1e-3)
    pretraining: PlainTraining = _PRETRAINING
    device: str | list[str] = "auto"

    @abstractmethod
    def _begin_with(self, fit: Fit) -> Callable[[], PublicSet] | None:
        """Return a function that gives the public images to train both networks on first, or None if there are none."""

    def _fit(self, fit: Fit) -> None:
        from torch import nn

        from adapters.trained.gan_networks import DiscriminatorLoss, Learner, train_on_public

        terms, folder = fit.terms, fit.fitting.folder
        discriminator, generator = self._new(terms)
        if (public := self._begin_with(fit)) is not None:
            fit.pretrain(
                nn.ModuleList([discriminator, generator]),
                public,
                lambda images, step_done: train_on_public(
                    discriminator, generator, images, self.pretraining, terms.seed, step_done
                ),
                steps=self.pretraining.steps,
                file="pretrained-gan.safetensors",
            )
        learner = Learner(generator, len(terms.classes), self.lesson, terms.seed)

        def lesson(training: Training, state: Float32Array) -> None:
            if training.step_of(state):
                learner.learn(training.load(state))

        loss = DiscriminatorLoss(generator, len(terms.classes))
        network = fit.dp_sgd(discriminator, loss, self._places(), between=lesson)
        write_generator(learner.average, terms, folder)
        write_weights(network.state_dict(), folder / _DISCRIMINATOR)  # it was released, and a membership attack asks it

    def _start(self, terms: FitTerms) -> tuple[Discriminator, DiscriminatorLoss]:
        from adapters.trained.gan_networks import DiscriminatorLoss

        discriminator, generator = self._new(terms)
        return discriminator, DiscriminatorLoss(generator, len(terms.classes))

    def record_losses(self, folder: Path, samples: UInt8Array, labels: Sequence[str]) -> Float64Array:
        """Return the discriminator's logistic loss of calling each image real, float64 (n,)."""
        self.load(folder)
        from adapters.trained.gan_networks import read_discriminator, real_losses

        numbers = label_numbers(labels, self._classes)
        height, width, channels = samples.shape[1:]
        model = read_discriminator(folder / _DISCRIMINATOR, len(self._classes), (height, width, channels))
        return real_losses(model, samples, numbers)

    def _new(self, terms: FitTerms) -> tuple[Discriminator, Generator]:
        """Return a new, untrained discriminator and generator."""
        from adapters.trained.gan_networks import Discriminator, Generator

        classes = len(terms.classes)
        with drawing_by(terms.seed, "gan/weights"):
            discriminator, generator = Discriminator(classes, terms.image_shape), Generator(classes, terms.image_shape)
        return discriminator.to(self._place()), generator.to(self._place())


@plugin
class DPGAN(FittedGAN):
    """For comparisons: a GAN whose discriminator learns by DP-SGD (Xie et al. 2018).

    For the other arguments see `FittedGAN`.

    Args:
        public: images on which both networks are trained first, under random labels; None: no such images.
    """

    public: Public | None = None

    def _begin_with(self, fit: Fit) -> Callable[[], PublicSet] | None:
        source, terms = self.public, fit.terms
        if source is None:
            return None

        def shuffle() -> PublicSet:
            images = source.read(terms.image_shape, terms.seed).images
            labels = seeded(terms.seed, "gan/labels").integers(len(terms.classes), size=len(images))
            return PublicSet(images, labels, terms.classes)

        return shuffle


@plugin
class PrivImageGAN(SelectsPublic, FittedGAN):
    """As `privimage`, with a GAN: PrivImage+G (Li et al. 2024).

    The public images are selected as for `privimage`. For the arguments see `SelectsPublic` and `FittedGAN`.
    """

    def _begin_with(self, fit: Fit) -> Callable[[], PublicSet]:
        categories = self._select(fit)
        return lambda: categories
