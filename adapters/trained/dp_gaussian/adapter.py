"""DP-Gaussian as a generator: a Gaussian of images for each label, fitted to one noisy sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from adapters.trained.codes import Codes, draw_codes, move_codes
from adapters.trained.dp_gaussian.gaussians import Gaussians, edge, gaussians_of
from adapters.trained.dp_gaussian.sums import GRID, Ball, Layout, noisy_sum
from adapters.trained.labels import check_labels
from adapters.trained.public import Public, ReadsPublic
from adapters.trained.releases import sum_release
from pe.data.conditions import Conditions
from pe.data.images import Images
from pe.errors import APIError, PrivacyError, RecipeError
from pe.fit.trainer import FIT, FitTerms, Fitting
from pe.plugins.protocols import Answer, Capabilities, PluginInfo, RandomRequest, VariationRequest
from pe.privacy.release import Relation, Release

Covariance = Literal["auto", "pooled", "per_label"]

CUT = 0.25
"""The quantile of public images' distances from their mean, beyond which private ones are cut."""

CLEAR = 0.1
"""With `auto` each label has its own covariance if the edge of its noise is at most this, in squared radii."""

MOST_NUMBERS = 2**25
_MODEL = "gaussians.npz"


@dataclass(kw_only=True, eq=False, repr=False)
class DPGaussian(ReadsPublic):
    """RANDOM_API and VARIATION_API by Gaussians: the baseline that a fitted generator is to be measured against.

    Every private image is cut to a ball around the mean of public images. For each label there leave, in one noisy sum,
    the number of images, their sum, and the sum of their products xxᵀ, which may also be one for all labels. Mean and
    covariance follow; eigenvalues that noise alone could have are dropped. A sample carries the code z that it was made
    from; a variation of degree d moves it to √(1−d²)·z + d·ξ: 0 changes nothing, 1 forgets all.

    Conditions: `code` (float32, n×r).

    Args:
        public: images, of which only the mean and the usual distance from it are taken; `kind: noise`, where there are
            none.
        covariance: `per_label`, `pooled` for one that all labels share, or `auto`: per label where the noise is small
            enough, by the declared number of records, the labels, the images' size and the budget.

    Raises:
        RecipeError: a setting out of range.
    """

    info = PluginInfo(hosts=(), by_label=True)

    public: Public
    covariance: Covariance = "auto"

    def __post_init__(self) -> None:
        if self.covariance not in get_args(Covariance):
            raise RecipeError(
                f"covariance is '{self.covariance}': it must be one of {', '.join(get_args(Covariance))}."
            )
        self._model: Gaussians | None = None

    @property
    def capabilities(self) -> Capabilities:
        """Any labels in a request."""
        return Capabilities(max_chunk=1024)

    def planned(self, terms: FitTerms) -> Sequence[Release]:
        """The one release: the sum, to which a unit's images add a vector of norm 1 together.

        Raises:
            RecipeError: the public images do not serve, or the images are too large.
            PrivacyError: no noise meets the budget, or so much is needed that no count would be known.
        """
        self.public.check(terms.image_shape)
        sensitivity = 2.0 if terms.relation is Relation.REPLACE_ONE else 1.0
        release = sum_release(f"{FIT}sums", sensitivity, terms.budget, terms.relation, terms.unit, grid=GRID)
        layout = self._layout(terms, release)
        if layout.numbers > MOST_NUMBERS:
            raise RecipeError(
                f"api.covariance is {self.covariance}: of images of {layout.dimensions:,} pixel values with "
                f"{layout.classes} labels that takes {layout.numbers:,} numbers, more than {MOST_NUMBERS:,}: make "
                "private.size smaller, or take covariance: auto."
            )
        if (noise := _deviation(release) / np.sqrt(layout.shares.count)) > terms.declared_size:
            raise PrivacyError(
                f"dp_gaussian would add noise of {noise:,.0f} to the number of records, of which "
                f"{terms.declared_size:,} are declared: raise epsilon."
            )
        return [release]

    def fit(self, fitting: Fitting) -> None:
        """Release the sum, and compute the Gaussians.

        Guarantee: the release's; all that follows is post-processing.

        Raises:
            RecipeError: the public images do not serve.
        """
        terms = fitting.terms
        (release,) = self.planned(terms)
        layout = self._layout(terms, release)
        ball = Ball.of_public(self.public.read(terms.image_shape, terms.seed).images, CUT)
        total = fitting.ledger.release(
            release, lambda noise: noisy_sum(fitting.private(), ball, layout, release, noise)
        )
        model = gaussians_of(
            total,
            layout,
            ball,
            grid=release.grid,
            deviation=_deviation(release),
            classes=terms.classes,
            shape=terms.image_shape,
        )
        model.write(fitting.folder / _MODEL)

    def load(self, folder: Path) -> None:
        """Answer from the Gaussians in `folder`.

        Raises:
            RecipeError: there are none, or they are damaged.
        """
        self._model = Gaussians.read(folder / _MODEL)

    def random_api(self, request: RandomRequest) -> Answer:
        """New images, each from a code drawn by its seed.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet.
        """
        return self._answer(draw_codes(request.seeds, self._fitted().code_length), request.labels)

    def record_losses(
        self, folder: Path, samples: npt.NDArray[np.uint8], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """−2·log density of each image under its label's Gaussian, but for a constant: float64 (n,).

        Raises:
            RecipeError: there are no Gaussians in `folder`, or they were fitted for other labels.
        """
        self.load(folder)
        return self._fitted().surprises(samples, self._numbers(labels))

    def variation_api(self, request: VariationRequest) -> Answer:
        """The parents' codes, moved.

        Raises:
            RecipeError: the model was fitted for other labels.
            APIError: it is not fitted yet, or the parents carry no codes.
        """
        if "code" not in request.conditions:
            raise APIError("A variation by dp_gaussian needs the parent's code: evolve samples that it made itself.")
        return self._answer(move_codes(request.conditions["code"], request.seeds, request.degree), request.labels)

    def _answer(self, codes: Codes, labels: Sequence[str]) -> Answer:
        model = self._fitted()
        return Answer(Images(model.images(codes, self._numbers(labels))), Conditions({"code": codes}))

    def _numbers(self, labels: Sequence[str]) -> npt.NDArray[np.int64]:
        numbers = {name: i for i, name in enumerate(self._fitted().classes)}
        check_labels(labels, numbers)
        return np.array([numbers[label] for label in labels], dtype=np.int64)

    def _fitted(self) -> Gaussians:
        if self._model is None:
            raise APIError("dp_gaussian answers once it is fitted: `pe run` does that first.")
        return self._model

    def _layout(self, terms: FitTerms, release: Release) -> Layout:
        """By public numbers alone."""
        classes, dimensions = len(terms.classes), int(np.prod(terms.image_shape))
        each = Layout(classes, dimensions, per_label=True)
        clear = edge(each, _deviation(release), terms.declared_size / classes) <= CLEAR
        auto = clear and each.numbers <= MOST_NUMBERS
        per_label = auto if self.covariance == "auto" else self.covariance == "per_label"
        return Layout(classes, dimensions, per_label)


def _deviation(release: Release) -> float:
    return release.sensitivity * release.noise_multiplier
