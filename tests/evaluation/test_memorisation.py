"""Memorisation shows where it was planted, and nowhere else."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score

from embeddings.pixels import Pixels
from pe.data.images import Images
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.memorisation import PAIRS, membership, memorisation
from pe.evaluation.methods import ImageMethods

SEEN = CachedEmbedding("pixels", Pixels(size=8, blur=0))


def noise(count: int, seed: int, channels: int = 1) -> Images:
    return Images(np.random.default_rng(seed).integers(0, 256, (count, 8, 8, channels)).astype(np.uint8))


def test_copies_of_private_records_are_found() -> None:
    private, heldout = noise(60, 0), noise(50, 1)
    generated = noise(80, 2)
    generated.pixels[10:50] = private.pixels[:40]
    found = memorisation(generated, private, heldout, SEEN)
    assert sorted(map(tuple, found.pairs.tolist())) == [(10 + i, i) for i in range(PAIRS)]
    assert not found.pair_distances.any()
    assert found.membership.low > 0.6
    assert np.median(found.generated_to_private) < 0.5 * np.median(found.heldout_to_private)


def test_where_nothing_is_memorised_private_and_heldout_look_alike() -> None:
    found = memorisation(noise(80, 2), noise(200, 0), noise(150, 1), SEEN)
    assert found.membership.low < 0.5 < found.membership.high
    assert np.median(found.private_to_generated) == pytest.approx(np.median(found.heldout_to_generated), rel=0.05)


def test_distances_are_those_of_brute_force() -> None:
    generated, private, heldout = noise(30, 2), noise(20, 0), noise(25, 1)
    vectors = [SEEN.vectors(each).astype(np.float64) for each in (generated, private, heldout)]
    found = memorisation(generated, private, heldout, SEEN)

    def to_nearest(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.linalg.norm(x[:, None] - y, axis=2).min(axis=1)

    made, records, unseen = vectors
    np.testing.assert_allclose(found.generated_to_private, to_nearest(made, records), rtol=1e-9)
    np.testing.assert_allclose(found.private_to_generated, to_nearest(records, made), rtol=1e-9)
    np.testing.assert_allclose(found.heldout_to_private, to_nearest(unseen, records), rtol=1e-9)
    np.testing.assert_allclose(found.heldout_to_generated, to_nearest(unseen, made), rtol=1e-9)
    quantiles = found.to_dict()["generated_to_private"]
    assert quantiles["quantiles"][50] == pytest.approx(np.median(found.generated_to_private))
    assert len(quantiles["levels"]) == len(quantiles["quantiles"]) == 101


def test_the_auc_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 20, 70).astype(float), rng.integers(3, 25, 50).astype(float)  # with ties
    truth = np.repeat([1, 0], [70, 50])
    found = membership(members, others)
    assert found.auc == pytest.approx(roc_auc_score(truth, -np.concatenate([members, others])))
    assert found.low < found.auc < found.high


@pytest.mark.parametrize("shift", [0.0, 1.2])
def test_the_interval_holds_the_true_area_as_often_as_it_says(shift: float) -> None:
    """Normal distances a shift apart: the true area is Φ(shift/√2)."""
    from scipy.stats import norm

    rng, truth = np.random.default_rng(1), norm.cdf(shift / np.sqrt(2))
    drawn = (membership(rng.normal(0, 1, 40), rng.normal(shift, 1, 30)) for _ in range(1000))
    held = np.mean([found.low <= truth <= found.high for found in drawn])
    assert 0.93 < held <= 0.98


@pytest.mark.parametrize("swap", [False, True])
def test_a_perfect_separation_has_an_interval_all_the_same(swap: bool) -> None:
    near, far = np.zeros(20), np.ones(20)
    found = membership(far, near) if swap else membership(near, far)
    assert found.auc == (0 if swap else 1)
    assert found.high - found.low > 0.05
    assert (found.low, found.high)[0 if swap else 1] == found.auc


def test_one_private_record_is_enough() -> None:
    found = memorisation(noise(2, 2), noise(1, 0), noise(2, 1), SEEN)
    assert len(found.pairs) == 1
    assert 0 <= found.membership.low <= found.membership.high <= 1


def test_pairs_are_drawn_side_by_side_and_called_confidential() -> None:
    suffix, picture = ImageMethods().pairs(noise(9, 0, 3), noise(9, 1, 3), np.linspace(0, 1, 9))
    assert suffix == "png"
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        assert image.size[0] > 4 * 2 * 96
        assert image.size[1] > 3 * 96
