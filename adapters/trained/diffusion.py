"""Diffusion models in pixel space, fitted on the private records.

The kinds differ in the training before DP-SGD.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import Field

from adapters.public_files import paths_of, samples_of
from adapters.trained.diffusion_model import FittedDiffusion
from adapters.trained.fit import Fit, with_share
from adapters.trained.own_network import OwnNetwork
from adapters.trained.public import Public, PublicSet, ReadsPublic
from adapters.trained.semantics import SelectsPublic
from adapters.trained.settings import PlainTraining, Share
from adapters.trained.trainings import PlannedTraining
from pe.data.samples import Array, Shape
from pe.errors import RecipeError
from pe.fit.trainer import Trainer
from pe.plugins.protocols import GenerationAPI
from pe.plugins.registry import require
from pe.plugins.settings import Count
from pe.plugins.specs import PartSpec, construct, plugin

if TYPE_CHECKING:
    from diffusers import UNet2DModel


@plugin
class DPDM(OwnNetwork, FittedDiffusion):
    """If neither a generator nor public images are like yours: diffusion by DP-SGD alone.

    Dockhorn et al. 2023. For the arguments see `FittedDiffusion`.
    """

    def _fit(self, fit: Fit) -> None:
        training = self.declare_dp_sgd(fit)
        fit.begin()
        self.finish(fit, self.new(fit.terms, len(fit.terms.classes)), training)


@plugin
class LearnsFromPublic(ReadsPublic, OwnNetwork):
    """A diffusion model that is trained on public images first.

    The public labels, if there are any, are its classes at first. Before DP-SGD the network gets a
    new class embedding, for the private labels, and keeps its other weights.

    Args:
        public: the public images.
        pretraining: on the public images.
    """

    public: Public
    pretraining: PlainTraining = PlainTraining()

    def declare_dp_sgd(self, fit: Fit) -> PlannedTraining:
        """See `OwnNetwork`. Raise RecipeError if the public images do not serve, too."""
        self.public.check(fit.terms.image_shape)
        return super().declare_dp_sgd(fit)

    def pretrained(self, fit: Fit) -> UNet2DModel:
        """Return the network that DP-SGD begins with."""
        from adapters.trained.diffusion_networks import with_new_classes

        terms = fit.terms
        model = self.new(terms, max(1, len(self.public.label_names())))
        self.pretrain(
            fit,
            model,
            lambda: self.public.read(terms.image_shape, terms.seed),
            self.pretraining,
        )
        return with_new_classes(model, len(terms.classes), terms.seed)


@plugin
class PDPDiffusion(LearnsFromPublic, FittedDiffusion):
    """If public images of the same kind exist: diffusion trained on them, then by DP-SGD.

    Ghalebikesabi et al. 2023. The public labels, if there are any, are its classes at first. Before
    DP-SGD the network gets a new class embedding, for the private labels, and keeps its other
    weights. For the other arguments see `FittedDiffusion`.
    """

    def _fit(self, fit: Fit) -> None:
        training = self.declare_dp_sgd(fit)
        fit.begin()
        self.finish(fit, self.pretrained(fit), training)


@plugin
class DPLDM(LearnsFromPublic, FittedDiffusion):
    """As `pdp_diffusion`, but DP-SGD trains the attention and the class embedding alone.

    Liu et al. 2023. It works on pixels, as all models of this module do, and not on an
    autoencoder's latents.
    """

    def _fit(self, fit: Fit) -> None:
        training = self.declare_dp_sgd(fit)
        fit.begin()
        from adapters.trained.diffusion_networks import only_attention_and_classes

        self.finish(fit, only_attention_and_classes(self.pretrained(fit)), training)


class Easy(PartSpec):
    """A generator that is fitted before the diffusion model, with a share of the budget."""

    kind: str = Field(
        description="of each entry of the list: central_images, dp_gaussian, dp_merf, dp_mepf"
    )
    share: Share = Field(0.2, description="of the fit's ε, which this fit alone takes")
    images: Count = Field(4000, description="that it makes to train the diffusion model on")
    training: PlainTraining = Field(
        PlainTraining(), description="of the diffusion model on these images"
    )


@plugin
class LearnsFromEasy(ReadsPublic, OwnNetwork):
    """A diffusion model that learns from images of cheaper generators first, then by DP-SGD.

    Each entry of `easy` is a generator that is fitted with a share of the budget. The network is
    trained on the images of each, in the order of the list. For the other arguments see
    `FittedDiffusion`.

    Args:
        easy: the generators: each entry has kind, share, images, training, and the generator's own
            settings.
    """

    easy: list[Easy] = field(default_factory=list)

    @cached_property
    def _generators(self) -> list[Trainer]:
        generators = []
        for one in self.easy:
            require("pe.adapters", one.kind)
            generator = construct("pe.adapters", one.kind, one.settings)
            if not isinstance(generator, Trainer) or isinstance(generator, FittedDiffusion):
                raise RecipeError(
                    f"`easy`: '{one.kind}' is not a generator that is cheap to fit. Use "
                    "central_images or dp_merf."
                )
            generators.append(generator)
        return generators

    def public_paths(self) -> tuple[Path, ...]:
        """See `ReadsPublicSamples`."""
        return (*super().public_paths(), *paths_of(self._generators))

    def public_samples(
        self,
        shape: Shape,
        rule: str | None,
    ) -> Iterator[tuple[str, Array]]:
        """See `ReadsPublicSamples`."""
        yield from super().public_samples(shape, rule)
        yield from samples_of(self._generators, shape, rule)

    def declare_easy(self, fit: Fit, taken: float = 0.0) -> None:
        """Declare the releases of all generators.

        Raise RecipeError if these, and the share `taken`, leave nothing.
        """
        total = taken + sum(one.share for one in self.easy)
        if total >= 1:
            raise RecipeError(
                f"The fits before DP-SGD have shares of ε that add up to {total:g}, which leaves "
                "DP-SGD nothing. Make `api.semantics_share` or the shares in `api.easy` smaller."
            )
        for one, generator in zip(self.easy, self._generators, strict=True):
            fit.declare(*generator.plan_releases(with_share(fit.terms, one.share)))

    def learn_from_easy(self, fit: Fit, model: UNet2DModel) -> None:
        """Train the model on images of each generator in turn."""
        for one, generator in zip(self.easy, self._generators, strict=True):
            images = partial(_images_of, fit, one, generator)
            self.pretrain(fit, model, images, one.training, name=f"images of {one.kind}")


def _images_of(fit: Fit, one: Easy, generator: Trainer) -> PublicSet:
    """Fit the generator with its share of the budget, and return images that it makes."""
    terms = fit.terms
    with TemporaryDirectory() as folder:
        generator.fit(replace(fit.fitting, terms=with_share(terms, one.share), folder=Path(folder)))
        generator.load(Path(folder))
    assert isinstance(generator, GenerationAPI)
    return PublicSet.of_generator(
        generator, terms.classes, one.images, terms.seed, f"easy/{one.kind}"
    )


# DP-FETA, from easy to hard: Li et al. 2025; FETA-Pro: 2601.06368. PrivImage: Li et al., USENIX
# 2024.


@plugin
class DPFETA(LearnsFromEasy, FittedDiffusion):
    """If nothing public is like the records: cheap fits first, then a diffusion model by DP-SGD.

    Each entry of `easy` is a generator that is fitted with a share of the budget, charged to the
    same ledger. The diffusion model is trained on the images of each, in the order of the list,
    then by DP-SGD. DP-FETA lists `central_images`, and FETA-Pro lists `dp_merf` after it. For the
    other arguments see `FittedDiffusion`.
    """

    public = None

    easy: list[Easy]

    def _fit(self, fit: Fit) -> None:
        if not self.easy:
            raise RecipeError("`easy` is empty. Name what is fitted first, or use `kind: dpdm`.")
        self.declare_easy(fit)
        training = self.declare_dp_sgd(fit)
        fit.begin()
        model = self.new(fit.terms, len(fit.terms.classes))
        self.learn_from_easy(fit, model)
        self.finish(fit, model, training)


@plugin
class PrivImage(SelectsPublic, LearnsFromEasy, FittedDiffusion):
    """If you do not know which public images are like yours: DP picks them, then diffusion learns.

    Semantics are the public labels. A classifier of them, the semantic query function, names the k
    most probable semantics of each private image; the counts of each semantic under each private
    label are released once, with noise. Each private label takes the public images of its k most
    frequent semantics; no semantic goes to two labels. If `easy` names generators, each is fitted
    with a share of the budget, and the network is trained on their images, too, before DP-SGD; see
    `dp_feta`. For the other arguments see `SelectsPublic` and `FittedDiffusion`.

    Args:
        pretraining: on the selected images.
        easy: generators to learn from after the selected images; entries as in `dp_feta`.
    """

    pretraining: PlainTraining = PlainTraining()

    def _fit(self, fit: Fit) -> None:
        public = self.select_public(fit, self.places)
        self.declare_easy(fit, taken=self.semantics_share)
        training = self.declare_dp_sgd(fit)
        fit.begin()
        model = self.new(fit.terms, len(fit.terms.classes))
        self.pretrain(fit, model, public, self.pretraining)
        self.learn_from_easy(fit, model)
        self.finish(fit, model, training)
