"""Diffusion models in pixel space, fitted on the private records; the kinds differ in the training before DP-SGD."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from adapters.diffusion.items import describe_steps
from adapters.diffusion.pixel import PixelFiles, PixelSpace, Sampler
from adapters.prompts import Choices
from adapters.public_files import paths_of, samples_of
from adapters.trained.fit import (
    TRAINING,
    Draws,
    Fit,
    Plan,
    TrainedMethod,
    label_numbers,
    not_fitted,
    part_of,
    read_json,
)
from adapters.trained.public import PUBLIC_IMAGES, Public, PublicSet, ReadsPublic
from adapters.trained.semantics import SelectsPublic
from adapters.trained.settings import FineTuning, Network, PlainTraining, Share
from pe.data.arrays import Float64Array, ImageShape, UInt8Array
from pe.data.samples import Array
from pe.errors import RecipeError
from pe.fit.trainer import Trainer
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    GenerationAPI,
    PluginInfo,
    RandomRequest,
    VariationRequest,
)
from pe.plugins.registry import require
from pe.plugins.settings import Count, Settings
from pe.plugins.specs import PartSpec, construct, plugin

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from adapters.trained.dp_sgd.gradients import Loss
    from pe.fit.trainer import DryRun, FitTerms


class Sampling(Settings):
    """Sampling of the fitted model; see `PixelSpace`.

    Attributes:
        steps: number of denoising steps from pure noise to an image, at most 1,000 (the noise schedule's timesteps).
        sampler: ddim or ddpm.
        eta: randomness of ddim: with 0 the first noise determines the image, with 1 it is as random as ddpm.
        chunk: most images in one request.
    """

    steps: Annotated[int, Field(ge=1, le=1000)] = 25
    sampler: Sampler = "ddim"
    eta: Annotated[float, Field(ge=0, le=1)] = 0.0
    chunk: Count = 1024


@plugin
class AnsweringDiffusion(TrainedMethod):
    """A class-conditional diffusion model in pixel space, fine-tuned on the private records by DP-SGD.

    Its classes are the private labels. RANDOM_API samples the class of each label; VARIATION_API noises the parent and
    denoises it again (SDEdit), as `pixel_diffusion` does. Both use the moving average of the weights.

    Args:
        training: DP-SGD on the private records.
        sampling: of images from the fitted model.
        device: auto, cpu, cuda, cuda:1, or a list of GPUs, which share each step of DP-SGD.
        batch_size: images per forward pass of sampling; None: found by trying.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=("device", "batch_size", "training.micro_batch"),
        by_label=True,
    )
    _guidance = 1.0
    _model: GenerationAPI | None = None
    _labels: tuple[str, ...] = ()

    training: FineTuning = FineTuning()
    sampling: Sampling = Sampling()
    device: str | list[str] = "auto"
    batch_size: Count | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Any mix of labels in a request; two requests at once, of which the second waits for the first."""
        return Capabilities(self.sampling.chunk, 2)

    def describe_degree(self, degree: float, iteration: int = 1) -> str:
        """Describe what this degree means for this generator."""
        return describe_steps(self.sampling.steps, degree)

    def load(self, folder: Path) -> None:
        """Answer from the model in `folder`; raise RecipeError if there is none, or it is damaged."""
        self._require_torch()
        files = PixelFiles.find(str(folder), None, offline=True)
        if not files.classes or not files.weights.is_file():
            raise RecipeError(f"{folder} holds no fitted diffusion model: fit it in a new run.")
        labels = labels_of(folder)
        # a label may have had several classes
        of_label: dict[str | int, Choices] = {
            label: [number for number, own in enumerate(labels) if own == label] for label in labels
        }
        self._labels = tuple(dict.fromkeys(labels))
        self._model = PixelSpace(
            model=str(folder),
            steps=self.sampling.steps,
            sampler=self.sampling.sampler,
            eta=self.sampling.eta,
            classes=of_label,
            guidance=self._guidance,
            device=self.device,
            batch_size=self.batch_size,
            chunk=self.sampling.chunk,
            offline=True,
        )

    def random_api(self, request: RandomRequest) -> Answer:
        """Sample new images of each label's class."""
        return self._answering(request.labels).random_api(request)

    def variation_api(self, request: VariationRequest) -> Answer:
        """Noise each parent and denoise it again (SDEdit)."""
        return self._answering(request.labels).variation_api(request)

    def _answering(self, labels: Sequence[str]) -> GenerationAPI:
        if self._model is None:
            raise not_fitted("The diffusion model")
        label_numbers(labels, self._labels)
        return self._model


def labels_of(folder: Path) -> list[str]:
    """Return the label of each class of the model in `folder`; raise RecipeError if classes.json cannot be read."""
    try:
        return list(map(str, read_json(folder / "classes.json")["labels"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecipeError(f"{folder / 'classes.json'} is damaged: fit the model in a new run.") from error


@plugin
class FittedDiffusion(ReadsPublic, AnsweringDiffusion):
    """A fitted diffusion model with the toolkit's own UNet; for all other arguments see `AnsweringDiffusion`.

    Args:
        network: size of the UNet.
    """

    network: Network = Network()

    def _check(self, terms: FitTerms) -> None:
        self.network.levels(*terms.image_shape[:2])
        super()._check(terms)

    def record_losses(self, folder: Path, samples: UInt8Array, labels: Sequence[str]) -> Float64Array:
        """Return the denoising loss of each image, float64 (n,), averaged over fixed, public noise and timesteps."""
        self._require_torch()
        from adapters.trained.diffusion_networks import Velocity, mean_losses, stored_network

        return mean_losses(stored_network(folder), Velocity(), samples, labels, labels_of(folder), self._place())

    def _new(self, terms: FitTerms, classes: int) -> UNet2DModel:
        """Return a new, untrained network with `classes` classes, on the first device."""
        from adapters.trained.diffusion_networks import unet

        return unet(self.network, terms.image_shape, classes, terms.seed, "weights").to(self._place())

    def _pretrainings(self) -> dict[str, PlainTraining]:
        """Return the trainings before DP-SGD, in order: the name of the public or released images → the settings."""
        return {}

    def _other_dry_runs(self, terms: FitTerms, plan: Plan) -> list[DryRun]:
        from adapters.trained.diffusion_networks import pretraining_dry_run

        if not (trainings := self._pretrainings()):
            return []
        model = self._new(terms, self._first_classes(terms))
        return [pretraining_dry_run(model, terms, training, name) for name, training in trainings.items()]

    def _first_classes(self, terms: FitTerms) -> int:
        """Return the number of classes of the network on which the dry run measures the trainings before DP-SGD."""
        return len(terms.classes)


class FineTuned(FittedDiffusion):
    """A fitted diffusion model whose network may be trained on public or released images before DP-SGD.

    For the arguments see `FittedDiffusion`. Subclasses say which network DP-SGD starts from (`_begin`), what is
    released besides DP-SGD (`_draws`), and which parameters DP-SGD leaves as they are (`_prepare`).
    """

    _freezes: ClassVar[bool] = False
    """True if DP-SGD freezes some parameters: its states do not hold them, so a resumed fit computes them again."""

    @abstractmethod
    def _begin(self, fit: Fit) -> UNet2DModel:
        """Return the network on which DP-SGD starts; its classes are the private labels."""

    def _prepare(self, model: UNet2DModel) -> UNet2DModel:
        """Return `model`, after freezing the parameters that DP-SGD is to leave as they are."""
        return model

    def _fit(self, fit: Fit) -> None:
        from adapters.trained.diffusion_networks import Velocity, write_model

        classes = fit.terms.classes
        # Once the first block of DP-SGD is released, its state holds all that was learned before.
        begins = self._freezes or not fit.is_drawn(TRAINING)
        model = self._begin(fit) if begins else self._new(fit.terms, len(classes))
        model = fit.dp_sgd(self._prepare(model), Velocity(), self._places())
        write_model(model, classes, fit.fitting.folder)

    def _start(self, terms: FitTerms) -> tuple[UNet2DModel, Loss]:
        from adapters.trained.diffusion_networks import Velocity

        return self._prepare(self._new(terms, len(terms.classes))), Velocity()


class DPDM(FineTuned):
    """If neither a generator nor public images are like yours: diffusion by DP-SGD alone (Dockhorn et al. 2023).

    For the arguments see `FittedDiffusion`.
    """

    public = None

    def _begin(self, fit: Fit) -> UNet2DModel:
        return self._new(fit.terms, len(fit.terms.classes))


@plugin
class PDPDiffusion(FineTuned):
    """If public images of the same kind exist: diffusion trained on them, then by DP-SGD (Ghalebikesabi et al. 2023).

    The public labels, if there are any, are its classes at first. Before DP-SGD the network gets a new class embedding,
    for the private labels, and keeps its other weights. For the other arguments see `FittedDiffusion`.

    Args:
        public: the public images.
        pretraining: on the public images.
    """

    public: Public
    pretraining: PlainTraining = PlainTraining()

    def _pretrainings(self) -> dict[str, PlainTraining]:
        return {PUBLIC_IMAGES: self.pretraining}

    def _first_classes(self, terms: FitTerms) -> int:
        return 1

    def _begin(self, fit: Fit) -> UNet2DModel:
        from adapters.trained.diffusion_networks import pretrain, with_new_classes

        terms = fit.terms
        public = self.public.read(terms.image_shape, terms.seed)
        model = self._new(terms, public.classes)
        model = pretrain(fit, model, lambda: public, self.pretraining)
        return with_new_classes(model, len(terms.classes), terms.seed)


class DPLDM(PDPDiffusion):
    """As `pdp_diffusion`, but DP-SGD trains the attention and the class embedding alone (Liu et al. 2023).

    It works on pixels, as all models of this module do, and not on an autoencoder's latents.
    """

    _freezes: ClassVar[bool] = True

    def _prepare(self, model: UNet2DModel) -> UNet2DModel:
        from adapters.trained.diffusion_networks import only_attention_and_classes

        return only_attention_and_classes(model)


class Easy(PartSpec):
    """A generator that is fitted before the diffusion model, with a share of the budget."""

    kind: str = Field(description="of each entry of the list: central_images, dp_gaussian, dp_merf, dp_mepf")
    share: Share = Field(0.2, description="of the fit's ε, which this fit alone takes")
    images: Count = Field(4000, description="that it makes to train the diffusion model on")
    training: PlainTraining = Field(PlainTraining(), description="of the diffusion model on these images")


@plugin
class BeginsEasy(FineTuned):
    """A diffusion model that learns from images of generators that are cheaper to fit, then by DP-SGD.

    Each entry of `easy` is a generator that is fitted with a share of the budget. The network is trained on the images
    of each, in the order of the list. For the other arguments see `FittedDiffusion`.

    Args:
        easy: the generators: each entry has kind, share, images, training, and the generator's own settings.
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
    def _generators(self) -> list[tuple[Easy, Trainer]]:
        generators = []
        for one in self.easy:
            generator = construct("pe.adapters", one.kind, one.settings)
            if not isinstance(generator, Trainer) or isinstance(generator, FineTuned):
                raise RecipeError(
                    f"easy: '{one.kind}' is no cheap generator that is fitted: take central_images or dp_merf."
                )
            generators.append((one, generator))
        return generators

    def public_paths(self) -> tuple[Path, ...]:
        """See `ReadsPublicSamples`."""
        return (*super().public_paths(), *paths_of(generator for _, generator in self._generators))

    def public_samples(self, shape: ImageShape, rule: str | None) -> Iterator[tuple[str, Array]]:
        """See `ReadsPublicSamples`."""
        yield from super().public_samples(shape, rule)
        yield from samples_of((generator for _, generator in self._generators), shape, rule)

    def _draws(self, terms: FitTerms) -> Draws:
        parts = [generator.plan_releases(part_of(terms, one.share)) for one, generator in self._generators]
        return [*chain.from_iterable(parts), *super()._draws(terms)]

    def _pretrainings(self) -> dict[str, PlainTraining]:
        return {f"images of {one.kind}": one.training for one in self.easy}

    def _begin(self, fit: Fit) -> UNet2DModel:
        """Return a new network after training on the images of each generator in turn."""
        return self._learn_from_easy(fit, self._new(fit.terms, len(fit.terms.classes)))

    def _learn_from_easy(self, fit: Fit, model: UNet2DModel) -> UNet2DModel:
        from adapters.trained.diffusion_networks import pretrain

        terms = fit.terms
        for one, generator in self._generators:

            def images(one: Easy = one, generator: Trainer = generator) -> PublicSet:
                with TemporaryDirectory() as folder:
                    part = replace(fit.fitting, terms=part_of(terms, one.share), folder=Path(folder))
                    generator.fit(part)
                    generator.load(Path(folder))
                assert isinstance(generator, GenerationAPI)
                return PublicSet.of_generator(generator, terms.classes, one.images, terms.seed, f"easy/{one.kind}")

            model = pretrain(fit, model, images, one.training, name=f"images of {one.kind}")
        return model


# DP-FETA, from easy to hard: Li et al. 2025; FETA-Pro: 2601.06368. PrivImage: Li et al., USENIX 2024.


@plugin
class DPFETA(BeginsEasy):
    """If nothing public is like the records: cheap fits first, then a diffusion model by DP-SGD.

    Each entry of `easy` is a generator that is fitted with a share of the budget, charged to the same ledger. The
    diffusion model is trained on the images of each, in the order of the list, then by DP-SGD. DP-FETA lists
    `central_images`, and FETA-Pro lists `dp_merf` after it. For the other arguments see `FittedDiffusion`.
    """

    public = None

    easy: list[Easy]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.easy:
            raise RecipeError("easy is empty: name what is fitted first, or take kind: dpdm.")


@plugin
class PrivImage(SelectsPublic, BeginsEasy):
    """If you do not know which public images are like yours: DP picks them, then diffusion learns by DP-SGD.

    Semantics are the public labels. A classifier of them, the semantic query function, names the k most probable
    semantics of each private image; the counts of each semantic under each private label are released once, with noise.
    Each private label takes the public images of its k most frequent semantics; no semantic goes to two labels. If
    `easy` names generators, each is fitted with a share of the budget, and the network is trained on their images, too,
    before DP-SGD; see `dp_feta`. For the other arguments see `SelectsPublic` and `FittedDiffusion`.

    Args:
        pretraining: on the selected images.
        easy: generators to learn from after the selected images; entries as in `dp_feta`.
    """

    pretraining: PlainTraining = PlainTraining()

    def __post_init__(self) -> None:
        super().__post_init__()
        if (total := self.semantics_share + sum(one.share for one in self.easy)) >= 1:
            raise RecipeError(
                f"semantics_share and the shares of easy add up to {total:g}, which leaves DP-SGD nothing: "
                "make them smaller."
            )

    def _pretrainings(self) -> dict[str, PlainTraining]:
        return {PUBLIC_IMAGES: self.pretraining} | super()._pretrainings()

    def _begin(self, fit: Fit) -> UNet2DModel:
        from adapters.trained.diffusion_networks import pretrain

        categories = self._select(fit)
        model = self._new(fit.terms, len(fit.terms.classes))
        return self._learn_from_easy(fit, pretrain(fit, model, lambda: categories, self.pretraining))
