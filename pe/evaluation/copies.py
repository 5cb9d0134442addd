"""Copies: generated images that are private records, or lie nearer to one than chance brings images. Confidential."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.images import Images
from pe.evaluation.frechet import Reals
from pe.private.digests import sample_digest

NEIGHBOURS = 50
"""Private records around the nearest one, by whose mean distance nearness is judged (Carlini et al. 2023, §5.2)."""
NEAR = 0.25
"""A near copy lies at less than this share of that mean from the nearest record."""
LEVEL = 0.01
"""How often near copies would be alarming, if generated images were as real ones are."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Copies:
    """How many generated images are copies of private records. Confidential.

    An image of one colour is never counted: it shows nothing of a record.

    Attributes:
        generated: generated images.
        exact: those equal to a private record in every pixel.
        near: the others that are near copies.
        heldout: held-out images.
        heldout_near: near copies among them: what chance, or the like of a record in the test set, brings.
        beyond_chance: whether near copies are more than held-out images explain: Fisher's exact test on distinct
            images, one-sided, at LEVEL.
    """

    generated: int
    exact: int
    near: int
    heldout: int
    heldout_near: int
    beyond_chance: bool

    @property
    def warnings(self) -> list[str]:
        """What the owner must know before anything is shared, one sentence each."""
        made, told = f"{self.generated:,} generated images", []
        if self.exact:
            told.append(
                f"{self.exact:,} of {made} are private records, pixel by pixel: find out why before you share them."
            )
        if self.beyond_chance:
            told.append(
                f"{self.near:,} of {made} are near copies of private records, more than chance brings "
                f"({self.heldout_near:,} of {self.heldout:,} held-out images are as near): look at the nearest pairs "
                "before you share them."
            )
        return told

    def to_dict(self) -> dict[str, Any]:
        """As docs/evaluation.md has it."""
        return vars(self) | {"rule": {"share": NEAR, "neighbors": NEIGHBOURS}, "warnings": self.warnings}


def count_copies(
    generated: Images, private: Images, heldout: Images, made_to_private: Reals, heldout_to_private: Reals
) -> Copies:
    """Count exact and near copies.

    Guarantee: none. The result is confidential.

    Args:
        generated: n images.
        private: the private records, r ≥ 1.
        heldout: m images that no run has seen.
        made_to_private: float64 (n, min(r, NEIGHBOURS)), ascending: distances of each to its nearest records.
        heldout_to_private: the same of held-out images.
    """
    exact = are_among(generated, private)
    near = _near(made_to_private) & _shows(generated) & ~exact
    unseen = _near(heldout_to_private) & _shows(heldout)
    first = np.unique(generated.pixels.reshape(len(generated), -1), axis=0, return_index=True)[1]
    others = first[~exact[first]]
    beyond = _beyond_chance(int(near[others].sum()), len(others), int(unseen.sum()), len(unseen))
    return Copies(
        generated=len(generated),
        exact=int(exact.sum()),
        near=int(near.sum()),
        heldout=len(heldout),
        heldout_near=int(unseen.sum()),
        beyond_chance=beyond,
    )


def are_among(images: Images, others: Images) -> Mask:
    """Which of n images equal one of `others` in every pixel, bool (n,); an image of one colour never counts."""
    known = set(map(sample_digest, others.pixels))
    equal = np.array([sample_digest(image) in known for image in images.pixels], dtype=bool)
    return equal & _shows(images)


def _near(distances: Reals) -> Mask:
    near: Mask = distances[:, 0] < NEAR * distances.mean(axis=1)
    return near


def _shows(images: Images) -> Mask:
    """Which images have more than one colour."""
    pixels = images.pixels.reshape(len(images), -1, images.pixels.shape[-1])
    shows: Mask = (pixels != pixels[:, :1]).any(axis=(1, 2))
    return shows


def _beyond_chance(near: int, made: int, unseen_near: int, unseen: int) -> bool:
    """Whether a larger share of the generated than of the held-out images is near, by Fisher's exact test."""
    from scipy.stats import hypergeom

    return near > 0 and bool(hypergeom.sf(near - 1, made + unseen, near + unseen_near, made) < LEVEL)
