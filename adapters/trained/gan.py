"""DPGAN, and PrivImage+G, the variant of PrivImage that trains a GAN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.trained.answers import AnswersByCodes, write_generator
from adapters.trained.fit import Fit, FittedMethod, label_numbers, reading, write_weights
from adapters.trained.pretraining import pretrain
from adapters.trained.public import Public, PublicSet, ReadsPublic
from adapters.trained.semantics import SelectsPublic
from adapters.trained.settings import FineTuning, PlainTraining
from adapters.trained.torch_tools import drawing_by, losses_one_by_one
from adapters.trained.trainings import ByDPSGD, declare_training
from pe.data.arrays import Float32Array, Float64Array, UInt8Array
from pe.data.samples import generator as seeded
from pe.plugins.protocols import PluginInfo
from pe.plugins.specs import plugin

if TYPE_CHECKING:
    from adapters.trained.dp_sgd.training import Training

_DISCRIMINATOR = "discriminator.safetensors"


@plugin
class FittedGAN(AnswersByCodes, ByDPSGD):
    """A GAN: DP-SGD trains the discriminator to tell records from generated images.

    The generator learns from it alone.

    The generator learns between the discriminator's blocks, at no cost in ε: it sees released
    weights only. A sample carries the code z that it was made from; a variation of degree d carries
    √(1−d²)·z + d·ξ with a new code ξ.

    Conditions: `code` (float32, n×8).

    Args:
        training: of the discriminator, on the private records; `block`: its steps between two
            lessons.
        lesson: training of the generator after each block.
        pretraining: of both networks, on the public images.
    """

    info = PluginInfo(hosts=(), by_label=True, machine_settings=("device", "training.micro_batch"))

    training: FineTuning = FineTuning(draws=1, block=20, learning_rate=1e-3, ema=0.9)
    lesson: PlainTraining = PlainTraining(steps=20, batch=64, learning_rate=1e-3)
    pretraining: PlainTraining = PlainTraining(steps=2000, batch=64, learning_rate=1e-3)

    def fit_gan(self, fit: Fit, public: Callable[[], PublicSet] | None) -> None:
        """Fit both networks, and write them.

        `public` gives the images to train them on first, if there are any.

        DP-SGD is the last that the fit declares.
        """
        training = declare_training(fit, self.training)
        fit.begin()
        from torch import nn

        from adapters.trained.gan_networks import (
            Discriminator,
            DiscriminatorLoss,
            ImageGenerator,
            Learner,
            train_on_public,
        )

        terms = fit.terms
        classes = len(terms.classes)
        with drawing_by(terms.seed, "gan/weights"):
            discriminator = Discriminator(classes, terms.image_shape)
            generator = ImageGenerator(classes, terms.image_shape)
        both = nn.ModuleList([discriminator, generator]).to(self.places()[0])
        if public is not None:
            train = partial(train_on_public, discriminator, generator, terms.seed)
            pretrain(fit, both, public, train, self.pretraining)
        learner = Learner(generator, classes, self.lesson, terms.seed)

        def lesson(engine: Training, state: Float32Array) -> None:
            # Before its first block the discriminator knows nothing of the records.
            if engine.step_of(state):
                learner.learn(engine.load(state))

        loss = DiscriminatorLoss(generator, classes)
        self.train_by_dp_sgd(fit, discriminator, loss, training, between=lesson)
        write_generator(learner.average, terms, fit.folder)
        # The discriminator was released, and a membership attack asks it.
        write_weights(discriminator.state_dict(), fit.folder / _DISCRIMINATOR)

    def record_losses(
        self, folder: Path, samples: UInt8Array, labels: Sequence[str]
    ) -> Float64Array:
        """Return the discriminator's logistic loss of calling each image real, float64 (n,)."""
        import torch
        from safetensors.torch import load_file
        from torch.nn import functional

        from adapters.trained.gan_networks import Discriminator

        self.load(folder)
        height, width, channels = samples.shape[1:]
        model = Discriminator(len(self._classes), (height, width, channels))
        with reading(folder, "fitted discriminator"):
            model.load_state_dict(load_file(folder / _DISCRIMINATOR))
        model.eval()
        return losses_one_by_one(
            samples,
            label_numbers(labels, self._classes),
            torch.device("cpu"),
            lambda image, label: functional.softplus(-model(image, label)),
        )


@plugin
class DPGAN(ReadsPublic, FittedGAN, FittedMethod):
    """For comparisons: a GAN whose discriminator learns by DP-SGD (Xie et al. 2018).

    For the other arguments see `FittedGAN`.

    Args:
        public: images on which both networks are trained first, under random labels; None: no such
            images.
    """

    public: Public | None = None

    def _fit(self, fit: Fit) -> None:
        source = self.public
        terms = fit.terms
        if source is None:
            self.fit_gan(fit, None)
            return
        source.check(terms.image_shape)

        def shuffled() -> PublicSet:
            images = source.read(terms.image_shape, terms.seed).images
            labels = seeded(terms.seed, "gan/labels").integers(len(terms.classes), size=len(images))
            return PublicSet(images, labels, terms.classes)

        self.fit_gan(fit, shuffled)


@plugin
class PrivImageGAN(SelectsPublic, FittedGAN, FittedMethod):
    """As `privimage`, with a GAN: PrivImage+G (Li et al. 2024).

    The public images are selected as for `privimage`. For the arguments see `SelectsPublic` and
    `FittedGAN`.
    """

    def _fit(self, fit: Fit) -> None:
        self.fit_gan(fit, self.select_public(fit, self.places))
