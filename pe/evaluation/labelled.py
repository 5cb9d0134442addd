"""Samples with their classes: a held-out part of them, and images in another shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.data.conditions import SOFT_LABEL, Conditions
from pe.data.decoding import Channels, convert_pixels
from pe.data.images import Images
from pe.data.samples import Indices, Samples
from pe.data.seeds import generator
from pe.plugins.protocols import Vectors

Labels = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Labelled:
    """n samples and the class of each.

    Attributes:
        samples: of one modality and shape.
        labels: int32 (n,), index into the class list.
        soft: float32 (n, classes): the probabilities of the classes, where a generator gives them; students are then
            taught with these, and `labels` are the most probable ones.
        vectors: float32 (n, d): what an embedding makes of the samples; None: of no matter.
    """

    samples: Samples
    labels: Labels
    soft: npt.NDArray[np.float32] | None = None
    vectors: Vectors | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Images:
        """The samples, of what only images are asked for."""
        assert isinstance(self.samples, Images)
        return self.samples

    def take(self, indices: Indices) -> Labelled:
        """The samples at `indices` with their classes."""
        soft, vectors = (None if rows is None else rows[indices] for rows in (self.soft, self.vectors))
        return Labelled(self.samples.take(indices), self.labels[indices], soft, vectors)


def label_samples(samples: Samples, labels: Labels, conditions: Conditions) -> Labelled:
    """Generated samples with the labels they were made for, or with soft ones where their conditions hold such."""
    if SOFT_LABEL not in conditions:
        return Labelled(samples, labels)
    soft = np.asarray(conditions[SOFT_LABEL], dtype=np.float32)
    return Labelled(samples, soft.argmax(axis=1).astype(np.int32), soft)


def hold_out(whole: Labelled, share: float, seed: int) -> tuple[Labelled, Labelled]:
    """(the rest, `share` of each class), shuffled; of a class of two or more at least one is in each part.

    Args:
        whole: the samples.
        share: in (0, 1).
        seed: of the choice.
    """
    rng = generator(seed, "evaluation/hold-out")
    rest, held = [], []
    for label in np.unique(whole.labels):
        members = rng.permutation(np.flatnonzero(whole.labels == label))
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        held.append(members[:count])
        rest.append(members[count:])
    return whole.take(rng.permutation(np.concatenate(rest))), whole.take(rng.permutation(np.concatenate(held)))


def shrunk(shape: tuple[int, int, int], longest: int) -> tuple[int, int, int]:
    """Height, width and channels with a longer side of at most `longest` pixels, in about the same proportions."""
    height, width, channels = shape
    factor = min(1.0, longest / max(height, width))
    return max(1, round(height * factor)), max(1, round(width * factor)), channels


def in_shape(images: Images, shape: tuple[int, int, int]) -> Images:
    """The images with height, width and channels as in `shape`: stretched (antialiased), made grey or coloured."""
    if images.shape == shape:
        return images
    height, width, channels = shape
    wanted: Channels = 1 if channels == 1 else 3
    return Images(
        np.stack(
            [
                convert_pixels(each, size=(height, width), resize="stretch", channels=wanted, name="A sample")
                for each in images.pixels
            ]
        )
    )
