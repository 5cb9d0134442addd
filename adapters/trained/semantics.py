"""PrivImage's private query: how often each label's records have each public semantic.

Li et al. 2024, §3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from adapters.diffusion.items import tensors
from adapters.trained.fit import Fit, StepDone
from adapters.trained.pretraining import train
from adapters.trained.public import Public, PublicSet, ReadsPublic
from adapters.trained.settings import PlainTraining, Share
from adapters.trained.torch_tools import drawing_by
from pe.data.arrays import Int64Array, UInt8Array
from pe.errors import RecipeError
from pe.fit.trainer import FitTerms, PrivateRecords
from pe.plugins.settings import Count
from pe.plugins.specs import plugin
from pe.privacy.noise import Noise
from pe.privacy.release import Release

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Counts = Int64Array

# Function from one image to its k different semantics, which depend on that image alone.
Tops = Callable[[UInt8Array], Int64Array]

_WIDTH = 32
_GRID = 3


class QueryTraining(PlainTraining):
    """Training of PrivImage's semantic query function.

    The function names the most probable public labels of an image.
    """

    steps: Count = 1000
    batch: Count = 128


def noisy_semantics(
    records: PrivateRecords,
    tops: Tops,
    classes: int,
    semantics: int,
    release: Release,
    noise: Noise,
) -> Counts:
    """Return noisy counts, int64 (classes, semantics), in the release's grid steps.

    Guarantee: the release's. A record adds 1 to the count of each of its k semantics, in the row of
    its label; which semantics these are depends on that record and the public query alone. No row
    is divided by its label's size.
    """
    counts = np.zeros((classes, semantics), dtype=np.int64)
    for image, label in zip(records.samples, records.labels, strict=True):
        counts[label, tops(image)] += release.grid
    return counts + noise.discrete_gaussian(counts.shape, release.scale)


def chosen_semantics(noisy: Counts, k: int) -> Counts:
    """Return the k semantics of each label, int64 (classes, k), the most frequent first.

    None belongs to two labels.

    Greedy: from the largest noisy count to the least, each count gives its semantic to its label,
    if the semantic is free and the label has fewer than k. Ties go to the first label, and the
    first semantic. Post-processing.
    """
    classes, semantics = noisy.shape
    rows: list[list[int]] = [[] for _ in range(classes)]
    free = np.ones(semantics, dtype=np.bool_)
    for place in np.argsort(-noisy, axis=None, kind="stable"):
        label, semantic = divmod(int(place), semantics)
        if len(rows[label]) < k and free[semantic]:
            rows[label].append(semantic)
            free[semantic] = False
    return np.array(rows, dtype=np.int64)


def train_query(
    public: PublicSet,
    k: int,
    settings: QueryTraining,
    seed: int,
    device: torch.device,
    step_done: StepDone,
) -> Tops:
    """Return the semantic query function, which names an image's k most probable public labels.

    It is a classifier that is trained on a labelled public set: three convolutions with GroupNorm,
    and a dense layer.

    Raises:
        RecipeError: memory does not suffice.
    """
    import torch
    from torch.nn import functional

    with drawing_by(seed, "query/weights"):
        model = _classifier(public.images.shape[3], public.classes).to(device)

    def loss_of(images: Tensor, labels: Tensor, _: torch.Generator) -> Tensor:
        return functional.cross_entropy(model(images), labels)

    classifier = train(model, public, settings, loss_of, seed, "query", step_done).eval()

    def tops(image: UInt8Array) -> Counts:
        # One image is classified at a time, so that the answer depends on no other image, to the
        # last bit.
        with torch.no_grad():
            logits = classifier(tensors(image[None], device))[0].double()
        labels: Counts = logits.log_softmax(dim=0).topk(k).indices.cpu().numpy()
        return labels

    return tops


def _classifier(channels: int, classes: int) -> nn.Module:
    from torch import nn

    def block(channels: int, width: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU()]

    return nn.Sequential(
        *block(channels, _WIDTH),
        nn.MaxPool2d(2),
        *block(_WIDTH, 2 * _WIDTH),
        nn.MaxPool2d(2),
        *block(2 * _WIDTH, 2 * _WIDTH),
        nn.AdaptiveAvgPool2d(_GRID),
        nn.Flatten(),
        nn.Linear(2 * _WIDTH * _GRID**2, classes),
    )


def declared_semantics(fit: Fit, k: int, share: float) -> Release:
    """Declare the release of the noisy counts of semantics, of which each record has k.

    A record adds 1 to k bins of its own label's row (Theorem 3.1). Under replace-one it may take as
    many away.
    """
    return fit.sum("semantics", share, (math.sqrt(k), math.sqrt(2 * k)), fractional=False)


@plugin
class SelectsPublic(ReadsPublic):
    """A fit that asks once, under DP, which public images are most like the private ones.

    Li et al., USENIX 2024.

    Semantics are the public labels. A classifier of them, the semantic query function, names the k
    most probable semantics of each private image; the counts of each semantic under each private
    label are released once, with noise. Each private label takes the public images of its k most
    frequent semantics; no semantic goes to two labels.

    Args:
        public: the public images, labelled.
        semantics: k, the number of semantics that each record has, and that each label takes.
        semantics_share: the share of the fit's ε that the release of the semantics costs, taken
            alone.
        query: training of the semantic query function.
    """

    public: Public
    semantics: Count = 1
    semantics_share: Share = 0.05
    query: QueryTraining = QueryTraining()

    def select_public(
        self, fit: Fit, places: Callable[[], list[torch.device]]
    ) -> Callable[[], PublicSet]:
        """Declare the release of the semantics.

        Return a function that gives the selected images after `fit.begin`.

        The images have the private labels' numbers. `places` gives the devices, on the first of
        which the query is trained. Raises RecipeError if the public images do not serve.
        """
        terms = fit.terms
        self._check_labels(terms)
        release = declared_semantics(fit, self.semantics, self.semantics_share)

        def selected() -> PublicSet:
            public = self.public.read(terms.image_shape, terms.seed)
            tops: Tops | None = None
            # The query is asked of private images alone: a stored release needs no query.
            if not fit.is_drawn(release):
                device = places()[0]
                with fit.steps("training the semantic query", self.query.steps) as step_done:
                    tops = train_query(
                        public,
                        self.semantics,
                        self.query,
                        terms.seed,
                        device,
                        step_done,
                    )

            def draw(records: PrivateRecords, noise: Noise) -> Counts:
                assert tops is not None, "a stored release is not drawn again"
                return noisy_semantics(
                    records, tops, len(terms.classes), public.classes, release, noise
                )

            return public.select(chosen_semantics(fit.release(release, draw), self.semantics))

        return selected

    def _check_labels(self, terms: FitTerms) -> None:
        """Raise RecipeError unless there are public labels enough."""
        self.public.check(terms.image_shape)
        names = self.public.label_names()
        count = self.semantics * len(terms.classes)
        if not names:
            raise RecipeError(
                f"`public`: '{self.public.place}' has no labels, by which PrivImage selects. Put "
                "each label's images into a folder of its name, add `labels` to the .npz file, "
                "or use `kind: pdp_diffusion`."
            )
        if len(names) < count:
            raise RecipeError(
                f"`semantics` is {self.semantics}: {len(terms.classes)} labels take {count} "
                f"public labels, but the public set has {len(names)}. Take fewer semantics, or "
                "more public labels."
            )
