"""Cheap noised statistics before DP-SGD: generators that are fitted first, whose images the network learns from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from adapters.trained.diffusion.base import FineTuned
from adapters.trained.public import PublicSet, Shape
from adapters.trained.sections import PlainTraining
from pe.data.samples import Array
from pe.data.seeds import item_seeds
from pe.errors import RecipeError
from pe.plugins.protocols import RandomRequest, ReadsPublicSamples
from pe.plugins.registry import construct, require
from pe.plugins.specs import PartSpec
from pe.plugins.validation import Count
from pe.privacy.ledger import Budget

if TYPE_CHECKING:
    from diffusers import UNet2DModel

    from pe.fit.trainer import DryRun, FitTerms, Fitting, PrivateRecords, Trainer
    from pe.privacy.release import Release

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
        from adapters.trained.diffusion.pretraining import pretraining_dry_run

        model = self._new(terms, len(terms.classes)).to(self._place())
        runs = [pretraining_dry_run(model, terms, one.training) for one in self.easy]
        return [replace(run, part=f"images of {one.kind}") for run, one in zip(runs, self.easy, strict=True)]

    def _taught(self, model: UNet2DModel, fitting: Fitting, private: Callable[[], PrivateRecords]) -> UNet2DModel:
        """`model` after training on the images of each generator in turn."""
        from adapters.trained.diffusion.pretraining import pretrained

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
