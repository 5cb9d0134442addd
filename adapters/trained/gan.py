"""DPGAN as a generator, and PrivImage's half that trains a GAN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from adapters.diffusion.device import check_arithmetic, choose_devices
from adapters.trained.answers import AnswersByCodes, check_labels, write_generator
from adapters.trained.public import Public, PublicSet, ReadsPublic
from adapters.trained.releases import (
    TRAINING,
    blocks_of,
    counted_steps,
    settled,
    train_blocks,
    training_device,
    training_devices,
)
from adapters.trained.semantics import SelectsPublic
from adapters.trained.settings import FineTuning, PlainTraining
from pe.data.samples import generator as seeded
from pe.plugins.devices import require_torch
from pe.plugins.protocols import PluginInfo

if TYPE_CHECKING:
    import torch

    from adapters.trained.dp_sgd.training import FloatArray
    from adapters.trained.gan_networks import Discriminator, Generator
    from adapters.trained.settings import DPSGD
    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords
    from pe.privacy.release import Release


_KEPT = "pretrained-gan.safetensors"


@dataclass(kw_only=True, eq=False, repr=False)
class FittedGAN(AnswersByCodes):
    """A discriminator is trained by DP-SGD to tell records from made images; a generator learns from it alone.

    The generator learns between the blocks of the discriminator's steps, as long as it likes: it sees released weights.
    A sample carries the code that it was made from; a variation of degree d moves it to √(1−d²)·z + d·ξ.

    Conditions: `code` (float32, n×8).

    Args:
        training: of the discriminator, on the private records; `block`: its steps between two lessons.
        lesson: of the generator, after each block.
        device: auto, cpu, cuda, cuda:1, or a list of cards for `training.processes`.

    Raises:
        RecipeError: a setting out of range.
    """

    info = PluginInfo(
        hosts=(), by_label=True, machine_settings=("device", "training.micro_batch", "training.processes")
    )

    training: FineTuning = FineTuning(draws=1, block=20, learning_rate=1e-3, ema=0.9)
    lesson: PlainTraining = PlainTraining(steps=20, batch=64, learning_rate=1e-3)
    device: str | list[str] = "auto"

    def __post_init__(self) -> None:
        check_arithmetic(self.device, "fp32")

    def check_machine(self) -> None:
        """Raise RecipeError if the device is not there."""
        choose_devices(self.device)

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """What else it releases, then each block of the discriminator's steps, calibrated together to the budget.

        Raises:
            RecipeError: a setting is out of range, or the public set does not serve.
            PrivacyError: the budget is too small for one useful step, or the unit is larger than a record.
        """
        self._check(terms)
        return [*self._others(terms), *blocks_of(self._settled(terms), terms)]

    def fit(self, fitting: Fitting) -> None:
        """Begin on public images, where there are some; then blocks of DP-SGD, with a lesson after each.

        Guarantee: the planned releases'; the generator is post-processing of them and of public images. The private
        records are read only while a release is drawn. When a fit goes on that was broken off, the generator learns
        again what it had learned, from the same states.

        Raises:
            Interrupted: it was told to stop.
            RecipeError: memory does not suffice.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.dp_sgd.training import Training
        from adapters.trained.gan_networks import Learner, Told, write_discriminator

        terms, private = fitting.terms, cache(fitting.private)
        settings, devices = self._settled(terms), training_devices(self.device, self.training)
        discriminator, generator = self._new(terms)
        self._begin(discriminator, generator, fitting, private)
        learner = Learner(generator, len(terms.classes), self.lesson, terms.seed)
        training = Training(discriminator, Told(generator, len(terms.classes)), settings, *devices)

        def lesson(state: FloatArray) -> None:
            learner.learn(training.load(state))

        state = train_blocks(training, blocks_of(settings, terms), fitting, private, after=lesson)
        write_generator(learner.average.cpu(), terms, fitting.folder)
        write_discriminator(training.load(state), fitting.folder)

    def record_losses(
        self, folder: Path, samples: npt.NDArray[np.uint8], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """The discriminator's logistic loss of calling each image real, float64 (n,).

        Raises:
            RecipeError: no discriminator is in `folder`, or it was fitted for other labels.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.gan_networks import read_discriminator, real_losses

        self.load(folder)
        check_labels(labels, self._labels)
        numbers = np.array([self._labels[label] for label in labels], dtype=np.int64)
        height, width, channels = samples.shape[1:]
        model = read_discriminator(folder, len(self._labels), (height, width, channels))
        return real_losses(model, samples, numbers)

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """A step of the discriminator, on random images; lessons and public training are not told.

        Raises:
            RecipeError: a setting is out of range, or memory does not suffice.
            PrivacyError: the budget is too small.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.dp_sgd.forecast import dry_run
        from adapters.trained.gan_networks import Told

        discriminator, generator = self._new(terms)
        told = Told(generator, len(terms.classes))
        device = training_devices(self.device, self.training)[0]
        return [dry_run(discriminator, told, terms.image_shape, self._settled(terms), device, TRAINING)]

    def _new(self, terms: FitTerms) -> tuple[Discriminator, Generator]:
        """Networks that were never trained."""
        import torch

        from adapters.trained.gan_networks import Discriminator, Generator
        from adapters.trained.plain import torch_seed

        classes = len(terms.classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(terms.seed, "gan/weights"))
            discriminator, generator = Discriminator(classes, terms.image_shape), Generator(classes, terms.image_shape)
        return discriminator.to(self._place()), generator.to(self._place())

    def _begin(
        self,
        discriminator: Discriminator,
        generator: Generator,
        fitting: Fitting,
        private: Callable[[], PrivateRecords],
    ) -> None:
        """Train both on public images; not at all where there are none."""

    def _pretrain(
        self,
        discriminator: Discriminator,
        generator: Generator,
        public: Callable[[], PublicSet],
        settings: PlainTraining,
        fitting: Fitting,
    ) -> None:
        """Train both on `public()`, or take what a fit that was broken off had kept of that."""
        from safetensors.torch import load, save
        from torch import nn

        from adapters.trained.gan_networks import train_on_public

        both = nn.ModuleList([discriminator, generator])
        if (found := fitting.kept.find(_KEPT)) is not None:
            both.load_state_dict(load(found))
            return
        images = public()
        with counted_steps(fitting, "training on public images", settings.steps) as step_done:
            train_on_public(discriminator, generator, images, settings, fitting.terms.seed, step_done)
        fitting.kept.keep(_KEPT, save({name: value.cpu().contiguous() for name, value in both.state_dict().items()}))

    def _settled(self, terms: FitTerms) -> DPSGD:
        return settled(self.training, terms, self._others(terms))

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        """What is released beside the training."""
        return ()

    def _check(self, terms: FitTerms) -> None:
        """Raise RecipeError if it takes public images, and they do not serve for these terms."""

    def _place(self) -> torch.device:
        return training_device(self.device)


@dataclass(kw_only=True, eq=False, repr=False)
class DPGAN(ReadsPublic, FittedGAN):
    """A GAN whose discriminator learns from the records by DP-SGD (Xie, Lin, Wang, Wang and Zhou 2018).

    All else, the other arguments too, is as in `FittedGAN`.

    Args:
        public: images that both networks begin with, whatever they show; None: none.
        pretraining: on them.

    Raises:
        RecipeError: a setting out of range.
    """

    public: Public | None = None
    pretraining: PlainTraining = PlainTraining(steps=2000, batch=64, learning_rate=1e-3)

    def _check(self, terms: FitTerms) -> None:
        if self.public is not None:
            self.public.check(terms.image_shape)

    def _begin(
        self,
        discriminator: Discriminator,
        generator: Generator,
        fitting: Fitting,
        private: Callable[[], PrivateRecords],
    ) -> None:
        if self.public is None:
            return
        source, terms = self.public, fitting.terms

        def shuffled() -> PublicSet:
            images = source.read(terms.image_shape, terms.seed).images
            labels = seeded(terms.seed, "gan/labels").integers(len(terms.classes), size=len(images))
            return PublicSet(images, labels, terms.classes)

        self._pretrain(discriminator, generator, shuffled, self.pretraining, fitting)


@dataclass(kw_only=True, eq=False, repr=False)
class PrivImageGAN(SelectsPublic, FittedGAN):
    """PrivImage+G: a GAN of the public images that are most like the private ones, then DP-SGD (Li et al. 2024).

    The semantic query is that of `privimage`. All else, the other arguments too, is as in `FittedGAN`.

    Args:
        public: the public images, labelled.
        semantics: k: both how many a record has and how many a label takes.
        semantics_share: of the fit's ε, which the release of the semantics alone takes.
        query: the query function, and its training.
        pretraining: on the selected images.

    Raises:
        RecipeError: a setting is out of range.
    """

    pretraining: PlainTraining = PlainTraining(steps=2000, batch=64, learning_rate=1e-3)

    def __post_init__(self) -> None:
        FittedGAN.__post_init__(self)
        SelectsPublic.__post_init__(self)

    def _begin(
        self,
        discriminator: Discriminator,
        generator: Generator,
        fitting: Fitting,
        private: Callable[[], PrivateRecords],
    ) -> None:
        selected = self._selected(fitting, private, self._place())
        self._pretrain(discriminator, generator, lambda: selected, self.pretraining, fitting)
