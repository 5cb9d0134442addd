"""Copies: generated samples that are private records, or lie nearer to one than chance brings samples. Confidential."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pe.data.samples import Samples, distinct
from pe.evaluation.chance import beyond_chance
from pe.evaluation.frechet import Reals
from pe.evaluation.methods import Mask
from pe.evaluation.modalities import methods_of
from pe.private.digests import sample_digest

NEIGHBOURS = 50
"""Private records around the nearest one, by whose mean distance nearness is judged (Carlini et al. 2023, §5.2)."""
NEAR = 0.25
"""A near copy lies at less than this share of that mean from the nearest record."""


@dataclass(frozen=True)
class Copies:
    """How many generated samples are copies of private records. Confidential.

    What shows nothing of a record, such as an image of one colour, is never counted.

    Attributes:
        noun: what people call the samples.
        equality: how exact copies are equal to a record, in words.
        generated: generated samples.
        exact: those equal to a private record.
        near: the others that are near copies.
        heldout: held-out samples.
        heldout_near: near copies among them: what chance, or the like of a record in the test set, brings.
        beyond_chance: whether near copies are more than held-out samples explain: Fisher's exact test on distinct
            samples, see `beyond_chance`.
    """

    noun: str
    equality: str
    generated: int
    exact: int
    near: int
    heldout: int
    heldout_near: int
    beyond_chance: bool

    @property
    def warnings(self) -> list[str]:
        """What the owner must know before anything is shared, one sentence each."""
        made, told = f"{self.generated:,} generated {self.noun}", []
        if self.exact:
            told.append(
                f"{self.exact:,} of {made} are private records, {self.equality}: find out why before you share them."
            )
        if self.beyond_chance:
            told.append(
                f"{self.near:,} of {made} are near copies of private records, more than chance brings "
                f"({self.heldout_near:,} of {self.heldout:,} held-out {self.noun} are as near): look at the nearest "
                "pairs before you share them."
            )
        return told

    def to_dict(self) -> dict[str, Any]:
        """As docs/evaluation.md has it."""
        shown = {key: value for key, value in vars(self).items() if key not in ("noun", "equality")}
        return shown | {"rule": {"share": NEAR, "neighbors": NEIGHBOURS}, "warnings": self.warnings}


def count_copies(
    generated: Samples, private: Samples, heldout: Samples, made_to_private: Reals, heldout_to_private: Reals
) -> Copies:
    """Count exact and near copies.

    Guarantee: none. The result is confidential.

    Args:
        generated: n samples.
        private: the private records, r ≥ 1.
        heldout: m samples that no run has seen.
        made_to_private: float64 (n, min(r, NEIGHBOURS)), ascending: distances of each to its nearest records.
        heldout_to_private: the same of held-out samples.
    """
    methods = methods_of(generated)
    exact = are_among(generated, private)
    near = _near(made_to_private) & methods.shows(generated) & ~exact
    unseen = _near(heldout_to_private) & methods.shows(heldout)
    first, _ = distinct(generated)
    others = first[~exact[first]]
    beyond = beyond_chance(int(near[others].sum()), len(others), int(unseen.sum()), len(unseen))
    return Copies(
        noun=generated.noun,
        equality=methods.equality,
        generated=len(generated),
        exact=int(exact.sum()),
        near=int(near.sum()),
        heldout=len(heldout),
        heldout_near=int(unseen.sum()),
        beyond_chance=beyond,
    )


def are_among(samples: Samples, others: Samples) -> Mask:
    """Which of n samples equal one of `others`, bool (n,); what shows nothing of a record never counts."""
    known = set(map(sample_digest, others.array))
    equal = np.array([sample_digest(sample) in known for sample in samples.array], dtype=bool)
    return equal & methods_of(samples).shows(samples)


def _near(distances: Reals) -> Mask:
    near: Mask = distances[:, 0] < NEAR * distances.mean(axis=1)
    return near
