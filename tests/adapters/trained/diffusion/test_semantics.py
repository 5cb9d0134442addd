"""PrivImage's query: what one record can move, and which semantics each label gets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from adapters.trained.diffusion import PrivImage
from adapters.trained.semantics import (
    QueryTraining,
    Tops,
    chosen_semantics,
    noisy_semantics,
    train_query,
)
from pe.errors import PrivacyError
from pe.fit.trainer import FitTerms, PrivateRecords
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Relation, Release
from tests.adapters.trained.clean import NoNoise
from tests.adapters.trained.diffusion.small import PUBLIC, SHAPE, records
from tests.adapters.trained.sources import source

BUDGET = Budget(1.0, 1e-5)
LABELS, SEMANTICS = 3, 7


def declared(budget: Budget, k: int, relation: Relation) -> Release:
    alone = replace(PrivImage(public=source(PUBLIC), semantics=k)._semantics_sum(), share=1.0)
    return alone.release(FitTerms(("a",), SHAPE, 100, relation, "record", budget))


RELEASES = {k: declared(BUDGET, k, Relation.ADD_REMOVE) for k in (1, 2, 3, 4)}
REPLACED = {k: declared(BUDGET, k, Relation.REPLACE_ONE) for k in (1, 2, 3, 4)}


def by_brightness(k: int) -> Tops:
    """Semantics that an image itself names: its first pixel, and those that follow."""
    return lambda image: (int(image[0, 0, 0]) + np.arange(k)) % SEMANTICS


def some(count: int, seed: int) -> PrivateRecords:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *SHAPE)).astype(np.uint8)
    return PrivateRecords(images, rng.integers(0, LABELS, count).astype(np.int32), np.arange(count))


def without(private: PrivateRecords, index: int) -> PrivateRecords:
    kept = np.arange(len(private.samples)) != index
    return PrivateRecords(private.samples[kept], private.labels[kept], private.units[kept])


def clean(private: PrivateRecords, tops: Tops, release: Release) -> np.ndarray:
    return noisy_semantics(private, tops, LABELS, SEMANTICS, release, NoNoise()) / release.grid


def moves(private: PrivateRecords, tops: Tops, release: Release) -> list[float]:
    """How far the removal of each record moves the clean counts, in L2 norm."""
    whole = clean(private, tops, release)
    return [np.linalg.norm(whole - clean(without(private, i), tops, release)) for i in range(len(private.samples))]


@given(st.integers(1, 12), st.integers(0, 10**6), st.integers(1, 4))
def test_a_record_moves_k_bins_of_its_own_label_by_one(count: int, seed: int, k: int) -> None:
    private, release = some(count, seed), RELEASES[k]
    whole, rest = (clean(each, by_brightness(k), release) for each in (private, without(private, 0)))
    moved = whole - rest
    assert sorted(moved[private.labels[0]]) == [0] * (SEMANTICS - k) + [1] * k
    assert np.abs(moved).sum() == k
    assert max(moves(private, by_brightness(k), release)) <= release.sensitivity == math.sqrt(k)


@given(st.integers(1, 8), st.integers(0, 10**6), st.integers(1, 4))
def test_another_record_in_its_place_moves_no_more_than_declared(count: int, seed: int, k: int) -> None:
    private, other = some(count, seed), some(count, seed + 1)
    release = REPLACED[k]
    images, labels = private.samples.copy(), private.labels.copy()
    images[0], labels[0] = other.samples[0], other.labels[0]
    replaced = PrivateRecords(images, labels, private.units)
    moved = clean(private, by_brightness(k), release) - clean(replaced, by_brightness(k), release)
    assert np.linalg.norm(moved) <= release.sensitivity + 1e-12


def test_a_version_that_lets_a_record_vote_for_more_than_k_is_caught() -> None:
    release = RELEASES[1]
    assert max(moves(some(9, 1), by_brightness(2), release)) > release.sensitivity


def test_a_version_that_divides_by_the_label_s_size_is_caught() -> None:
    release, private = RELEASES[1], some(9, 1)

    def shares(records: PrivateRecords) -> np.ndarray:
        counts = clean(records, by_brightness(1), release)
        return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

    rows = [(shares(private) - shares(without(private, i))).any(axis=1).sum() for i in range(9)]
    bins = [np.count_nonzero(shares(private) - shares(without(private, i))) for i in range(9)]
    assert max(rows) == 1
    assert max(bins) > 1


def test_the_noise_is_what_its_share_of_the_budget_asks_for() -> None:
    for k, release in ((1, RELEASES[1]), (3, REPLACED[3])):
        assert 1 - 1e-6 < epsilon([release], BUDGET.delta) <= 1
        drawn = noisy_semantics(some(0, 0), by_brightness(k), 40, 60, release, SystemNoise())
        spread = drawn.std() / release.grid
        assert spread == pytest.approx(release.sensitivity * release.noise_multiplier, rel=0.06)


def test_the_largest_count_of_all_takes_its_semantic_first_and_ties_go_to_the_first() -> None:
    noisy = np.array([[9, 8, 1, 0, 5], [10, 7, 6, 0, 5]])
    np.testing.assert_array_equal(chosen_semantics(noisy, 1), [[1], [0]])
    np.testing.assert_array_equal(chosen_semantics(noisy, 2), [[1, 4], [0, 2]])
    tied = np.full((3, 500), 7)
    np.testing.assert_array_equal(chosen_semantics(tied, 2), [[0, 1], [2, 3], [4, 5]])


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_the_selection_is_greedy_and_takes_no_semantic_twice(labels: int, k: int, seed: int) -> None:
    noisy = np.random.default_rng(seed).integers(-3, 4, (labels, labels * k + seed % 60))  # many ties
    chosen: list[list[int]] = [[] for _ in range(labels)]
    free = set(range(noisy.shape[1]))
    while any(len(row) < k for row in chosen):
        wanting = [(label, semantic) for label in range(labels) if len(chosen[label]) < k for semantic in free]
        label, semantic = max(wanting, key=lambda cell: (noisy[cell], -cell[0], -cell[1]))
        chosen[label].append(semantic)
        free.remove(semantic)
    np.testing.assert_array_equal(chosen_semantics(noisy, k), chosen)


def test_the_query_finds_the_public_labels_of_private_images_and_no_record_sways_another() -> None:
    public = source(PUBLIC | {"count": 400}).read(SHAPE, seed=0)
    settings = QueryTraining(steps=80, batch=32, learning_rate=3e-3)
    query = train_query(public, settings, 0, torch.device("cpu"), lambda: None)
    private = records(80)
    found = [int(query.tops(image, 1)[0]) for image in private.samples]
    ells, ohs = (public.names.index(letter) for letter in "LO")
    right = np.mean(np.array(found) == np.where(private.labels == 0, ells, ohs))
    assert right > 0.7
    again = [int(query.tops(image, 1)[0]) for image in private.samples[::-1]]
    assert again[::-1] == found
    assert len(set(query.tops(private.samples[0], 4))) == 4
    release = declared(Budget(8.0, 1e-3), 1, Relation.ADD_REMOVE)
    noisy = noisy_semantics(private, lambda image: query.tops(image, 1), 2, 4, release, SystemNoise())
    np.testing.assert_array_equal(chosen_semantics(noisy, 1), [[ells], [ohs]])


def test_a_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(PrivacyError):
        declared(Budget(1e-12, 1e-15), 1, Relation.ADD_REMOVE)
