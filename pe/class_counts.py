"""Label sizes, released under DP (App. D of the paper), where they are not public."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pe.errors import PrivacyError
from pe.privacy.ledger import Ledger
from pe.privacy.noise import Noise, grid_for
from pe.privacy.release import Relation, Release
from pe.private.dataset import NOBODY, PrivateDataset

Counts = npt.NDArray[np.int64]

CLASS_COUNTS = "class_counts"


def class_counts_release(share: float, epsilon: float, relation: Relation, unit: str) -> Release:
    """The release that the label counts are: discrete Laplace noise that alone is (share·epsilon)-DP.

    Guarantee: L1 sensitivity 1, because a unit's counts are scaled to L1 norm at most 1; 2 under
    replace-one, where one label can lose a unit and another gain it.

    Args:
        share: of epsilon, in (0, 1).
        epsilon: of the whole run.
        relation: the neighbouring relation.
        unit: the privacy unit; counts are fractions unless it is the record.

    Raises:
        PrivacyError: a share outside its range.
    """
    if not 0 < share < 1:
        raise PrivacyError(f"The class counts' share of epsilon lies between 0 and 1, not {share!r}.")
    sensitivity = 2.0 if relation is Relation.REPLACE_ONE else 1.0
    z = 1 / (share * epsilon)
    grid = 1 if unit == "record" else grid_for(z, sensitivity, fractional=True)
    return Release(
        name=CLASS_COUNTS,
        mechanism="discrete_laplace",
        sensitivity=sensitivity,
        noise_multiplier=z,
        relation=relation,
        unit=unit,
        grid=grid,
    )


def dp_class_counts(private: Callable[[], PrivateDataset], release: Release, ledger: Ledger) -> npt.NDArray[np.float64]:
    """Noisy numbers of private records per label, float64 (labels,), in units; may be negative.

    The clean counts exist only inside this call.

    Args:
        private: gives the private data set; called only when the release has not been drawn yet.
        release: from `class_counts_release`.
        ledger: the door to noise.

    Guarantee: the release's. A label without records gets noise alone.
    """
    grid = release.grid
    dataset = None if ledger.drawn(release) else private()

    def draw(noise: Noise) -> Counts:
        assert dataset is not None
        counts = count_labels(dataset, grid)
        return counts + noise.discrete_laplace(len(counts), release.scale)

    return ledger.release(release, draw) / grid


def count_labels(private: PrivateDataset, grid: int) -> Counts:
    """CONFIDENTIAL: the clean counts in grid steps, int64 (labels,).

    Guarantee: adding or removing one unit changes the result by a vector of L1 norm at most `grid`. A record whose unit
    cannot be read is not counted: several of them may be one unit's.
    """
    known = private.units != NOBODY
    owners, labels = private.units[known], private.labels[known].astype(np.int64)
    pairs, records = np.unique(np.stack([owners, labels]), axis=1, return_counts=True)
    _, unit = np.unique(pairs[0], return_inverse=True)
    of_unit = np.bincount(unit, weights=records).astype(np.int64)
    counts = np.zeros(len(private.classes), dtype=np.int64)
    np.add.at(counts, pairs[1], grid * records // of_unit[unit])
    return counts
