"""Samples with their classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pe.data.arrays import Float32Array, Float64Array, Int32Array
from pe.data.images import Images
from pe.data.samples import SOFT_LABEL, Conditions, Indices, Samples, generator
from pe.plugins.protocols import Vectors

Labels = Int32Array
Values = dict[str, Any]
"""A part of metrics.json, as docs/evaluation.md has it."""

KEPT = 10_000
"""Most samples of a set that are kept for measures that compare pairs, and for training where it is
slow."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """n samples and the class of each."""

    samples: Samples  # of one modality and shape
    labels: Labels  # int32 (n,), index into the class list
    # class probabilities from a generator that gives them, float32 (n, classes); learners use
    # these, and `labels` are the most probable ones
    soft: Float32Array | None = None
    vectors: Vectors | None = (
        None  # the samples under an embedding, float32 (n, d), for classifiers that need it
    )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Images:
        """The samples, which must be images."""
        assert isinstance(self.samples, Images)
        return self.samples

    def take(self, indices: Indices) -> Labelled:
        """Return the samples at `indices` with their classes."""
        soft, vectors = (
            None if rows is None else rows[indices] for rows in (self.soft, self.vectors)
        )
        return Labelled(self.samples.take(indices), self.labels[indices], soft, vectors)


def label_samples(samples: Samples, labels: Labels, conditions: Conditions) -> Labelled:
    """Return generated samples with the soft labels in their conditions.

    If there are none, return them with `labels`.
    """
    if SOFT_LABEL not in conditions:
        return Labelled(samples, labels)
    soft = np.asarray(conditions[SOFT_LABEL], dtype=np.float32)
    return Labelled(samples, soft.argmax(axis=1).astype(np.int32), soft)


def few(whole: Labelled, seed: int) -> Labelled:
    """Return at most KEPT of the samples, drawn at random, in their order."""
    if len(whole) <= KEPT:
        return whole
    return whole.take(np.sort(generator(seed, "evaluation/probe").permutation(len(whole))[:KEPT]))


Logits = Float64Array
