"""The parts of a fit: public images, query, network, loss, plain training, GANs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from adapters.trained.diffusion_networks import (
    Denoising,
    scheduler,
    unet,
)
from adapters.trained.fit import Recording
from adapters.trained.pretraining import train
from adapters.trained.public import Folder, PublicSet
from adapters.trained.semantics import (
    QueryTraining,
    Tops,
    chosen_semantics,
    declared_semantics,
    noisy_semantics,
    train_query,
)
from adapters.trained.settings import NetworkSize, PlainTraining
from pe.errors import RecipeError
from pe.fit.trainer import PrivateRecords
from pe.privacy.accounting import epsilon
from pe.privacy.ledger import Budget
from pe.privacy.noise import SystemNoise
from pe.privacy.release import Relation, Release
from tests.adapters.trained.diffusion.small import NETWORK, PUBLIC, SHAPE, records
from tests.adapters.trained.public import NoNoise, only, source
from tests.contracts.fitted import terms

TINY = NetworkSize.model_validate(NETWORK)


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.rand((count, 1, 8, 8), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_the_loss_is_that_of_the_schedule_which_samples() -> None:
    loss, schedule = Denoising(), scheduler()
    drawn = loss.draw(5, (1, 8, 8), torch.Generator().manual_seed(3))
    steps, _, noise = drawn
    x, seen = images(5), []

    class Oracle:
        """Knows the velocity, but for 0.5."""

        def __call__(
            self, noisy: torch.Tensor, t: torch.Tensor, class_labels: torch.Tensor
        ) -> object:
            seen.append((noisy, t))
            sample = schedule.get_velocity(x, noise, t) + 0.5
            return type("Output", (), {"sample": sample})

    losses = loss(Oracle(), x, torch.zeros(5, dtype=torch.int64), drawn)
    torch.testing.assert_close(losses, torch.full((5,), 0.25))
    torch.testing.assert_close(seen[0][0], schedule.add_noise(x, noise, steps))


def test_plain_training_learns_and_repeats_itself_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    pixels = np.repeat(
        np.where(np.arange(32) % 2, 220, 30)[:, None, None, None], 64, axis=1
    ).reshape(32, 8, 8, 1)
    public = PublicSet(
        (pixels + rng.integers(0, 10, pixels.shape)).astype(np.uint8), np.arange(32) % 2, ("a", "b")
    )
    loss, ends = Denoising(), []
    for _ in range(2):
        model, losses = unet(TINY, SHAPE, 2, 0, "test"), []

        def loss_of(
            x: torch.Tensor, labels: torch.Tensor, generator: torch.Generator
        ) -> torch.Tensor:
            drawn = loss.draw(len(x), (1, 8, 8), generator)
            losses.append(loss(model, x, labels, drawn).mean())  # noqa: B023
            return losses[-1]  # noqa: B023

        ends.append(
            train(
                model, public, PlainTraining(steps=16, batch=16), loss_of, 0, "test", lambda: None
            )
        )
    assert torch.stack(losses[-4:]).mean() < 0.8 * torch.stack(losses[:4]).mean()
    for one, other in zip(ends[0].parameters(), ends[1].parameters(), strict=True):
        assert torch.equal(one, other)


def folder_of(place: Path) -> Path:
    for name, shade in (("dark", 20), ("light", 230)):
        (place / name).mkdir()
        for i in range(3):
            Image.fromarray(np.full((16, 12), shade + i, dtype=np.uint8)).save(
                place / name / f"{i}.png"
            )
    return place


def test_public_images_come_from_a_folder_an_npz_or_the_pen(tmp_path: Path) -> None:
    folder = source(str(folder_of(tmp_path))).read(SHAPE, 0)
    assert folder.images.shape == (6, *SHAPE)
    assert folder.names == Folder(path=tmp_path).label_names() == ("dark", "light")
    np.testing.assert_array_equal(folder.labels, [0, 0, 0, 1, 1, 1])

    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(
        tmp_path / "alone.png"
    )  # in no folder of a label's
    assert Folder(path=tmp_path).label_names() == Folder(path=tmp_path).read(SHAPE, 0).names == ()

    np.savez(tmp_path / "some.npz", images=folder.images, labels=np.array(list("baabba")))
    arrays = source(tmp_path / "some.npz").read(SHAPE, 0)
    assert arrays.names == source(tmp_path / "some.npz").label_names() == ("a", "b")
    np.testing.assert_array_equal(arrays.labels, [1, 0, 0, 1, 1, 0])

    drawn = source({"kind": "glyphs", "characters": "BAB", "count": 5})
    glyphs = drawn.read(SHAPE, 0)
    assert glyphs.names == drawn.label_names() == ("B", "A")
    np.testing.assert_array_equal(glyphs.labels, [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(glyphs.images, drawn.read(SHAPE, 0).images)
    assert (glyphs.images != drawn.read(SHAPE, 1).images).any()


def test_images_that_a_network_cannot_halve_are_refused() -> None:
    with pytest.raises(
        RecipeError,
        match=r"10×12 cannot be halved so often. Take fewer levels, or sides .* that 4 divides",
    ):
        NetworkSize(channels=(8, 8, 8)).levels(10, 12)


BUDGET = Budget(1.0, 1e-5)
LABELS, SEMANTICS = 3, 7


def declared(budget: Budget, k: int, relation: Relation) -> Release:
    return declared_semantics(Recording(terms(budget=budget, relation=relation)), k, 1.0)


RELEASES = {k: declared(BUDGET, k, Relation.ADD_REMOVE) for k in (1, 2, 3, 4)}
REPLACED = {k: declared(BUDGET, k, Relation.REPLACE_ONE) for k in (1, 2, 3, 4)}


def by_brightness(k: int) -> Tops:
    """Semantics that an image itself names: its first pixel, and those that follow."""
    return lambda image: (int(image[0, 0, 0]) + np.arange(k)) % SEMANTICS


def some(count: int, seed: int) -> PrivateRecords:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, *SHAPE)).astype(np.uint8)
    return PrivateRecords(images, rng.integers(0, LABELS, count).astype(np.int32), np.arange(count))


def clean(private: PrivateRecords, k: int, release: Release) -> np.ndarray:
    return (
        noisy_semantics(private, by_brightness(k), LABELS, SEMANTICS, release, NoNoise())
        / release.grid
    )


@given(st.integers(1, 12), st.integers(0, 10**6), st.integers(1, 4))
def test_a_record_moves_k_bins_of_its_own_label_by_one_and_another_in_its_place_no_more_than_declared(
    count: int, seed: int, k: int
) -> None:
    private, other, release = some(count, seed), some(count, seed + 1), RELEASES[k]
    for i in range(count):
        moved = clean(private, k, release) - clean(only(private, np.arange(count) != i), k, release)
        assert sorted(moved[private.labels[i]]) == [0] * (SEMANTICS - k) + [1] * k
        assert np.abs(moved).sum() == k
        assert np.linalg.norm(moved) <= release.sensitivity == math.sqrt(k)
    images, labels = private.samples.copy(), private.labels.copy()
    images[0], labels[0] = other.samples[0], other.labels[0]
    replaced = clean(PrivateRecords(images, labels, private.units), k, REPLACED[k])
    assert (
        np.linalg.norm(clean(private, k, REPLACED[k]) - replaced) <= REPLACED[k].sensitivity + 1e-12
    )


def test_a_version_that_lets_a_record_vote_for_more_than_k_is_caught() -> None:
    private = some(9, 1)
    moved = clean(private, 2, RELEASES[1]) - clean(only(private, np.arange(9) != 0), 2, RELEASES[1])
    assert np.linalg.norm(moved) > RELEASES[1].sensitivity


def test_the_noise_is_what_its_share_of_the_budget_asks_for() -> None:
    for k, release in ((1, RELEASES[1]), (3, REPLACED[3])):
        assert 1 - 1e-6 < epsilon([release], BUDGET.delta) <= 1
        drawn = noisy_semantics(some(0, 0), by_brightness(k), 40, 60, release, SystemNoise())
        spread = drawn.std() / release.grid
        assert spread == pytest.approx(release.sensitivity * release.noise_multiplier, rel=0.06)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_the_selection_is_greedy_takes_no_semantic_twice_and_ties_go_to_the_first(
    labels: int, k: int, seed: int
) -> None:
    noisy = np.random.default_rng(seed).integers(
        -3, 4, (labels, labels * k + seed % 60)
    )  # many ties
    chosen: list[list[int]] = [[] for _ in range(labels)]
    free = set(range(noisy.shape[1]))
    while any(len(row) < k for row in chosen):
        wanting = [
            (label, semantic)
            for label in range(labels)
            if len(chosen[label]) < k
            for semantic in free
        ]
        label, semantic = max(wanting, key=lambda cell: (noisy[cell], -cell[0], -cell[1]))
        chosen[label].append(semantic)
        free.remove(semantic)
    np.testing.assert_array_equal(chosen_semantics(noisy, k), chosen)


def test_the_query_finds_the_public_labels_of_private_images_and_no_record_sways_another() -> None:
    public = source(PUBLIC | {"count": 400}).read(SHAPE, seed=0)
    settings = QueryTraining(steps=80, batch=32, learning_rate=3e-3)
    query, fourfold = (
        train_query(public, k, settings, 0, torch.device("cpu"), lambda: None) for k in (1, 4)
    )
    private = records(80)
    found = [int(query(image)[0]) for image in private.samples]
    ells, ohs = (public.names.index(letter) for letter in "LO")
    right = np.mean(np.array(found) == np.where(private.labels == 0, ells, ohs))
    assert right > 0.7
    again = [int(query(image)[0]) for image in private.samples[::-1]]
    assert again[::-1] == found
    assert len(set(fourfold(private.samples[0]))) == 4
    release = declared(Budget(8.0, 1e-3), 1, Relation.ADD_REMOVE)
    noisy = noisy_semantics(private, query, 2, 4, release, SystemNoise())
    np.testing.assert_array_equal(chosen_semantics(noisy, 1), [[ells], [ohs]])
