"""What the fitted diffusion models share: the plan, the fit, and the answers of the fitted model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from adapters.diffusion.device import check_arithmetic, choose_devices
from adapters.diffusion.items import describe_steps
from adapters.trained.answers import check_labels
from adapters.trained.files import Sampling, open_model, write_model
from adapters.trained.public import Public, PublicSet, ReadsPublic, Shape
from adapters.trained.releases import TRAINING, blocks_of, settled, train_blocks, training_device, training_devices
from adapters.trained.semantics import SelectsPublic
from adapters.trained.settings import FineTuning, Network, PlainTraining, levels
from pe.data.samples import Array, item_seeds
from pe.errors import APIError, RecipeError
from pe.plugins.devices import require_torch
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    GenerationAPI,
    PluginInfo,
    RandomRequest,
    ReadsPublicSamples,
    VariationRequest,
)
from pe.plugins.registry import PartSpec, construct, require
from pe.plugins.settings import Count
from pe.privacy.ledger import Budget

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch
    from diffusers import UNet2DModel

    from adapters.trained.settings import DPSGD
    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords, Trainer
    from pe.privacy.release import Release


_MACHINE = ("device", "batch_size", "training.micro_batch", "training.processes")


@dataclass(kw_only=True, eq=False, repr=False)
class AnsweringDiffusion:
    """A class-conditional diffusion model in pixel space, fine-tuned on the private records by DP-SGD.

    Its classes are the private labels. RANDOM_API samples the class of each label; VARIATION_API noises the parent and
    denoises it again (SDEdit), as `pixel_diffusion` does; it is the moving average of the weights that answers.

    Args:
        training: on the private records.
        sampling: of the fitted model.
        device: auto, cpu, cuda, cuda:1, or a list of cards; it is trained on the first of them, or on as many as
            `training.processes` says.
        batch_size: images per forward pass of sampling; None: found by trying.
    """

    info = PluginInfo(hosts=(), machine_settings=_MACHINE, by_label=True)
    _guidance = 1.0

    training: FineTuning = FineTuning()
    sampling: Sampling = Sampling()
    device: str | list[str] = "auto"
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_arithmetic(self.device, "fp32")
        if self.batch_size is not None and self.batch_size < 1:
            raise RecipeError(f"batch_size is {self.batch_size}: it must be at least 1.")
        self._model: GenerationAPI | None = None
        self._labels: frozenset[str] = frozenset()

    @property
    def capabilities(self) -> Capabilities:
        """Any labels in a request; a second request waits while one is made."""
        return Capabilities(self.sampling.chunk, 2, "nothing", "exact")

    def check_machine(self) -> None:
        """Raise RecipeError if the device is not there."""
        choose_devices(self.device)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return describe_steps(self.sampling.steps, degree)

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`.

        Raises:
            RecipeError: there is none, or it is damaged.
        """
        require_torch("trained", "Fitting a generator")
        self._model, labels = open_model(folder, self.sampling, self.device, self.batch_size, self._guidance)
        self._labels = frozenset(labels)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images of each label's class.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, or the device has not enough memory for one image.
        """
        return self._answering(request.labels).random_api(request)

    def variation_api(self, request: VariationRequest) -> Answer:
        """SDEdit of each parent.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, the parents are no images, or memory does not suffice for one.
        """
        return self._answering(request.labels).variation_api(request)

    def _place(self) -> torch.device:
        return training_device(self.device)

    def _places(self, training: FineTuning) -> list[torch.device]:
        """Of each process of a training."""
        return training_devices(self.device, training)

    def _answering(self, labels: Sequence[str]) -> GenerationAPI:
        if self._model is None:
            raise APIError("The diffusion model answers once it is fitted: `pe run` does that first.")
        check_labels(labels, self._labels)
        return self._model


@dataclass(kw_only=True, eq=False, repr=False)
class FittedDiffusion(AnsweringDiffusion):
    """One whose network is the toolkit's own; all else, the other arguments too, is as in `AnsweringDiffusion`.

    Args:
        network: its size.
    """

    network: Network = Network()

    def record_losses(
        self, folder: Path, samples: npt.NDArray[np.uint8], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """The denoising loss of each image, float64 (n,), averaged over noise and timesteps that are fixed and public.

        Raises:
            RecipeError: there is no model in `folder`, or it was fitted for other labels.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.record_loss import record_losses

        return record_losses(folder, samples, labels, self._place())

    def _new(self, terms: FitTerms, classes: int) -> UNet2DModel:
        """A network that was never trained."""
        from adapters.trained.diffusion_training import unet

        return unet(self.network, terms.image_shape, classes, terms.seed, "weights")


class FineTuned(FittedDiffusion):
    """A network that is fine-tuned by DP-SGD; all else, the arguments too, is as in `FittedDiffusion`.

    A kind differs from the others in what its network is before the first private step (`_begun`), in what else it
    releases (`_others`), and in which of its parameters are trained (`_frozen`).
    """

    _frozen: ClassVar[bool] = False
    """Whether some parameters are not trained, so that they are in no release."""

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """What else it releases, then each block of DP-SGD steps; all calibrated together to the budget.

        Raises:
            RecipeError: a setting is out of range, the images are too small, or the public set does not serve.
            PrivacyError: the budget is too small for one useful step, or the unit is larger than a record.
        """
        height, width, _ = terms.image_shape
        levels(self.network, height, width)
        self._check(terms)
        return [*self._others(terms), *blocks_of(self._settled(terms), terms)]

    def fit(self, fitting: Fitting) -> None:
        """Begin on public images, then go on, block by block, on the private ones.

        Guarantee: the planned releases'; all else is post-processing of them, or public. The private records are read
        only while a block is drawn. When a fit goes on that was broken off, what public training had made is taken
        up again; where the first block was released, it holds all that came before it.

        Raises:
            Interrupted: it was told to stop.
            RecipeError: memory does not suffice.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.diffusion_training import Velocity
        from adapters.trained.dp_sgd.training import Training

        terms, private = fitting.terms, cache(fitting.private)
        settings, devices = self._settled(terms), self._places(self.training)
        blocks = blocks_of(settings, terms)
        if self._frozen or not fitting.ledger.drawn(blocks[0]):
            model = self._begun(fitting, private)
        else:
            model = self._new(terms, len(terms.classes))
        training = Training(self._prepared(model), Velocity(), settings, *devices)
        state = train_blocks(training, blocks, fitting, private)
        write_model(training.load(state), terms.classes, fitting.folder)

    def dry_run(self, terms: FitTerms) -> Sequence[DryRun]:
        """A step of each part, on random images.

        Raises:
            RecipeError: a setting is out of range, or memory does not suffice.
            PrivacyError: the budget is too small.
        """
        require_torch("trained", "Fitting a generator")
        from adapters.trained.diffusion_training import Velocity
        from adapters.trained.dp_sgd.forecast import dry_run

        settings = self._settled(terms)
        model = self._prepared(self._new(terms, len(terms.classes)))
        device = self._places(self.training)[0]
        private = dry_run(model, Velocity(), terms.image_shape, settings, device, TRAINING)
        return [*self._public_dry_runs(terms), private]

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        """The network before the first private step, its classes the private labels: a new one.

        The private records are to be asked for only while another release is drawn.
        """
        return self._new(fitting.terms, len(fitting.terms.classes))

    def _settled(self, terms: FitTerms) -> DPSGD:
        """The training, with the least noise for which all that the fit may be charged meets its budget."""
        return settled(self.training, terms, self._others(terms))

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        """What is released beside the training."""
        return ()

    def _prepared(self, model: UNet2DModel) -> UNet2DModel:
        """The network with those parameters frozen that DP-SGD does not train."""
        return model

    def _public_dry_runs(self, terms: FitTerms) -> Sequence[DryRun]:
        """Of what is trained on public images."""
        return ()

    def _check(self, terms: FitTerms) -> None:
        """Raise RecipeError if it takes public images, and they do not serve for these terms."""


# DPDM: a diffusion model trained on the private records alone (Dockhorn, Cao, Vahdat and Kreis 2023).


class DPDM(ReadsPublic, FineTuned):
    """Trained by DP-SGD from a new network on, without public images (Dockhorn, Cao, Vahdat and Kreis 2023).

    See `FittedDiffusion`.
    """

    public = None


# PDP-Diffusion and DP-LDM: a diffusion model of all public images, fine-tuned on the private ones.


@dataclass(kw_only=True, eq=False, repr=False)
class PDPDiffusion(ReadsPublic, FineTuned):
    """Trained on the whole public set, by its labels where it has some, then by DP-SGD (Ghalebikesabi et al. 2023).

    The private labels get a new class embedding; all else goes on from where the public images left it. The other
    arguments are as in `FittedDiffusion`.

    Args:
        public: the public images.
        pretraining: on them.
    """

    public: Public
    pretraining: PlainTraining = PlainTraining()

    def _public_dry_runs(self, terms: FitTerms) -> Sequence[DryRun]:
        from adapters.trained.diffusion_training import pretraining_dry_run

        return [pretraining_dry_run(self._new(terms, 1).to(self._place()), terms, self.pretraining)]

    def _check(self, terms: FitTerms) -> None:
        self.public.check(terms.image_shape)

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        from adapters.trained.diffusion_training import pretrained, with_new_classes

        terms = fitting.terms
        public = self.public.read(terms.image_shape, terms.seed)
        model = self._new(terms, public.classes).to(self._place())
        model = pretrained(model, lambda: public, self.pretraining, fitting)
        return with_new_classes(model, len(terms.classes), terms.seed)


class DPLDM(PDPDiffusion):
    """As `PDPDiffusion`, but DP-SGD trains the attention layers and the class embedding alone (Liu et al. 2023).

    It works on pixels, as the others here do, and not on an autoencoder's latents.
    """

    _frozen: ClassVar[bool] = True

    def _prepared(self, model: UNet2DModel) -> UNet2DModel:
        from adapters.trained.diffusion_training import only_attention_and_classes

        return only_attention_and_classes(model)


# Cheap noised statistics before DP-SGD: generators that are fitted first, whose images the network learns from.


_AT_ONCE = 1024


class Easy(PartSpec):
    """A generator that is fitted before the diffusion model, with a share of the budget."""

    kind: str = Field(description="of each entry of the list: central_images, dp_gaussian, dp_merf, dp_mepf")
    share: Annotated[float, Field(gt=0, lt=1)] = Field(0.2, description="of the fit's ε, which this fit alone takes")
    images: Count = Field(4000, description="that it makes to train the diffusion model on")
    training: PlainTraining = Field(PlainTraining(), description="of the diffusion model on these images")


@dataclass(kw_only=True, eq=False, repr=False)
class BeginsEasy(FineTuned):
    """A network that learns from what cheaper fits make before DP-SGD; all else is as in `FittedDiffusion`.

    Each entry of `easy` is a generator that is fitted with a share of the budget. The network learns from its images,
    in the order of the list.

    Args:
        easy: the generators, with the settings of each beside its own keys.

    Raises:
        RecipeError: one comes twice or is not fitted, or the shares leave nothing.
    """

    easy: list[Easy] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if twice := [kind for kind, count in Counter(one.kind for one in self.easy).items() if count > 1]:
            raise RecipeError(f"easy names '{twice[0]}' twice: name each generator once.")
        if (total := sum(one.share for one in self.easy)) >= 1:
            raise RecipeError(f"easy: the shares add up to {total:g}, which leaves DP-SGD nothing: make them smaller.")
        for one in self.easy:
            require("pe.adapters", one.kind)

    @cached_property
    def _trainers(self) -> tuple[Trainer, ...]:
        found = tuple(construct("pe.adapters", one.kind, one.settings) for one in self.easy)
        for one, trainer in zip(self.easy, found, strict=True):
            if not hasattr(trainer, "planned") or isinstance(trainer, FineTuned):
                raise RecipeError(
                    f"easy: '{one.kind}' is no cheap generator that is fitted: take central_images or dp_merf."
                )
        return found

    def public_paths(self) -> tuple[Path, ...]:
        """Where the cheaper fits read public images."""
        return tuple(path for reader in self._readers for path in reader.public_paths())

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Array]]:
        """All that they read: see `ReadsPublicSamples`."""
        for reader in self._readers:
            yield from reader.public_samples(shape, rule)

    @property
    def _readers(self) -> list[ReadsPublicSamples]:
        return [trainer for trainer in self._trainers if isinstance(trainer, ReadsPublicSamples)]

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        pairs = zip(self.easy, self._trainers, strict=True)
        return tuple(release for one, trainer in pairs for release in trainer.planned(_part(terms, one)))

    def _public_dry_runs(self, terms: FitTerms) -> Sequence[DryRun]:
        from adapters.trained.diffusion_training import pretraining_dry_run

        model = self._new(terms, len(terms.classes)).to(self._place())
        runs = [pretraining_dry_run(model, terms, one.training) for one in self.easy]
        return [replace(run, part=f"images of {one.kind}") for run, one in zip(runs, self.easy, strict=True)]

    def _taught(self, model: UNet2DModel, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        """`model` after training on the images of each generator in turn."""
        from adapters.trained.diffusion_training import pretrained

        terms = fitting.terms
        for one, trainer in zip(self.easy, self._trainers, strict=True):

            def made(one: Easy = one, trainer: Trainer = trainer) -> PublicSet:
                with TemporaryDirectory() as folder:
                    part = _part(terms, one)
                    trainer.fit(replace(fitting, terms=part, private=private, folder=Path(folder)))
                    trainer.load(Path(folder))
                return _images_of(trainer, one, terms)

            model = pretrained(model, made, one.training, fitting, what=f"images of {one.kind}")
        return model


def _part(terms: FitTerms, one: Easy) -> FitTerms:
    """What a cheap generator is planned from: the same, with its share of the budget."""
    return replace(terms, budget=Budget(one.share * terms.budget.epsilon, terms.budget.delta))


def _images_of(api: Any, one: Easy, terms: FitTerms) -> PublicSet:
    """As many images of each label as of any other."""
    places = np.arange(one.images, dtype=np.int64)
    labels = places % len(terms.classes)
    seeds = item_seeds(terms.seed, f"easy/{one.kind}", places, np.zeros_like(places))
    parts = []
    for start in range(0, one.images, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        request = RandomRequest(tuple(terms.classes[label] for label in labels[some]), seeds[some])
        parts.append(api.random_api(request).samples.array)
    return PublicSet(np.concatenate(parts), labels, terms.classes)


# DP-FETA: from easy to hard: cheap noised statistics first, then DP-SGD (Li et al. 2025; FETA-Pro, 2601.06368).


@dataclass(kw_only=True, eq=False, repr=False)
class DPFETA(BeginsEasy):
    """Trained on what cheaper fits make, then by DP-SGD, all on one ledger, without public images.

    Each entry of `easy` is a generator that is fitted with a share of the budget. The diffusion model learns from its
    images, in the order of the list, and goes on from there by DP-SGD. DP-FETA takes `central_images`, FETA-Pro
    `dp_merf` after it. All else, the other arguments too, is as in `FittedDiffusion`.

    Args:
        easy: the generators, with the settings of each beside its own keys.

    Raises:
        RecipeError: none is given, one comes twice or is not fitted, or the shares leave nothing.
    """

    easy: list[Easy]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.easy:
            raise RecipeError("easy is empty: name what is fitted first, or take kind: dpdm.")

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        model = super()._begun(fitting, private).to(self._place())
        return self._taught(model, fitting, private)


# PrivImage: a diffusion model of the public images that are most like the private ones (Li et al., USENIX 2024).


@dataclass(kw_only=True, eq=False, repr=False)
class PrivImage(SelectsPublic, BeginsEasy):
    """Trained on selected public images under the private labels, then by DP-SGD.

    A classifier of the public labels, the semantic query function, is asked for the k most probable semantics of each
    private image; how often each label has each is released once, with noise. Each label takes the images of its k
    most frequent semantics, and none is taken twice. Where `easy` names generators, each is fitted with a share of the
    budget, and the network learns from their images, too, before DP-SGD; see dp_feta. All else, the other arguments
    too, is as in `FittedDiffusion`.

    Args:
        public: the public images, labelled.
        semantics: k: both how many a record has and how many a label takes.
        semantics_share: of the fit's ε, which the release of the semantics alone takes.
        query: the query function, and its training.
        pretraining: on the selected images.
        easy: generators to learn from after the selected images, with the settings of each beside its own keys.

    Raises:
        RecipeError: a setting is out of range, or the shares leave nothing.
    """

    pretraining: PlainTraining = PlainTraining()

    def __post_init__(self) -> None:
        BeginsEasy.__post_init__(self)
        SelectsPublic.__post_init__(self)
        if (total := self.semantics_share + sum(one.share for one in self.easy)) >= 1:
            raise RecipeError(
                f"semantics_share and the shares of easy add up to {total:g}, which leaves DP-SGD nothing: "
                "make them smaller."
            )

    def public_paths(self) -> tuple[Path, ...]:
        """Where the public images are read from."""
        return (*SelectsPublic.public_paths(self), *BeginsEasy.public_paths(self))

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Array]]:
        """All that are read: see `ReadsPublicSamples`."""
        yield from SelectsPublic.public_samples(self, shape, rule)
        yield from BeginsEasy.public_samples(self, shape, rule)

    def _others(self, terms: FitTerms) -> tuple[Release, ...]:
        return (*SelectsPublic._others(self, terms), *BeginsEasy._others(self, terms))

    def _public_dry_runs(self, terms: FitTerms) -> Sequence[DryRun]:
        from adapters.trained.diffusion_training import pretraining_dry_run

        model = self._new(terms, len(terms.classes)).to(self._place())
        return [pretraining_dry_run(model, terms, self.pretraining), *BeginsEasy._public_dry_runs(self, terms)]

    def _begun(self, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        from adapters.trained.diffusion_training import pretrained

        terms = fitting.terms
        selected = self._selected(fitting, private, self._place())
        model = self._new(terms, len(terms.classes)).to(self._place())
        return self._taught(pretrained(model, lambda: selected, self.pretraining, fitting), fitting, private)
