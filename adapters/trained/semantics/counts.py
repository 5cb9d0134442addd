"""PrivImage's private query: how often each label's records have each public semantic (Li et al. 2024, §3.3)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from adapters.trained.releases import sum_release
from pe.fit.trainer import FIT, PrivateRecords
from pe.privacy.ledger import Budget
from pe.privacy.noise import Noise
from pe.privacy.release import Relation, Release

NAME = f"{FIT}semantics"

Counts = npt.NDArray[np.int64]
Tops = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.int64]]
"""The k different semantics of one image, a function of that image alone."""


def semantics_release(budget: Budget, k: int, relation: Relation, unit: str) -> Release:
    """The release of the counts, with the least noise that alone meets `budget`.

    Its sensitivity is √k: a record adds 1 to k bins of its own label's row (Theorem 3.1). Under replace-one it may
    take as many away elsewhere: √(2k).
    """
    sensitivity = math.sqrt(2 * k if Relation(relation) is Relation.REPLACE_ONE else k)
    return sum_release(NAME, sensitivity, budget, relation, unit)


def noisy_semantics(
    records: PrivateRecords, tops: Tops, classes: int, semantics: int, release: Release, noise: Noise
) -> Counts:
    """Noisy counts, int64 (classes, semantics), in the release's grid steps.

    Guarantee: the release's. A record adds one vote to each of its k semantics, in the row of its own label, and what
    they are depends on that record and on the public query alone. No row is divided by its label's size.
    """
    counts = np.zeros((classes, semantics), dtype=np.int64)
    for image, label in zip(records.samples, records.labels, strict=True):
        counts[label, tops(image)] += release.grid
    return counts + noise.discrete_gaussian(counts.shape, release.scale)


def chosen_semantics(noisy: Counts, k: int) -> Counts:
    """The k semantics of each label, int64 (classes, k), the most frequent first; none belongs to two labels.

    Greedy: the largest noisy count of all takes its semantic for its label, then the next, until each label has k.
    Ties go to the first label, and the first semantic. Post-processing.

    Args:
        noisy: int64 (classes, semantics), of at least classes·k semantics.
        k: semantics per label.
    """
    classes, semantics = noisy.shape
    chosen: list[list[int]] = [[] for _ in range(classes)]
    taken = np.zeros(semantics, dtype=np.bool_)
    for place in np.argsort(-noisy, axis=None, kind="stable"):
        label, semantic = divmod(int(place), semantics)
        if len(chosen[label]) < k and not taken[semantic]:
            chosen[label].append(semantic)
            taken[semantic] = True
    return np.array(chosen, dtype=np.int64)
