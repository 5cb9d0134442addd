"""Pixels: near images get near vectors, and a vector is a function of its image alone."""

import time

import numpy as np
import pytest

from embeddings.pixels import Pixels, _reduction
from pe.data.images import Images
from pe.errors import ContractError, RecipeError
from pe.plugins.protocols import Embedding

ALL = ["pixels", "pyramid", "gradients"]


def noise(count: int, *, height: int = 28, width: int = 28, channels: int = 1, seed: int = 0) -> Images:
    shape = (count, height, width, channels)
    return Images(np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8))


def bar(column: int, *, level: int = 255) -> Images:
    pixels = np.zeros((1, 28, 28, 1), np.uint8)
    pixels[:, 4:24, column : column + 3] = level
    return Images(pixels)


def distance(embedding: Pixels, one: Images, other: Images) -> float:
    return float(np.linalg.norm(embedding.embed(one) - embedding.embed(other)))


def test_it_is_an_embedding():
    assert isinstance(Pixels(), Embedding)
    assert Pixels(batch_size=64).batch_size == 64


@pytest.mark.parametrize("features", ALL)
@pytest.mark.parametrize("normalise", ["none", "l2"])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_row_is_a_function_of_its_image_alone_to_the_last_bit(features, normalise, channels):
    embedding = Pixels(features=features, normalise=normalise)
    images = noise(64, channels=channels)
    whole = embedding.embed(images)
    assert whole.dtype == np.float32
    assert whole.shape[0] == 64
    assert np.isfinite(whole).all()
    order = np.random.default_rng(1).permutation(64)
    assert embedding.embed(images.take(order)).tobytes() == whole[order].tobytes()
    others = noise(64, channels=channels, seed=2).pixels.copy()
    others[17] = images.pixels[40]
    assert embedding.embed(Images(others))[17].tobytes() == whole[40].tobytes()
    for i in (0, 33, 63):
        assert embedding.embed(images.take([i]))[0].tobytes() == whole[i].tobytes()


@pytest.mark.parametrize("features", ALL)
def test_the_farther_an_image_is_shifted_the_farther_its_vector_lies(features):
    embedding = Pixels(features=features, blur=2.0)
    near, middle, far = (distance(embedding, bar(10), bar(10 + shift)) for shift in (1, 2, 5))
    assert 0 < near < middle < far


def test_unblurred_pixels_are_the_pixels():
    images = noise(3)
    np.testing.assert_allclose(Pixels(blur=0.0).embed(images), images.pixels.reshape(3, -1) / 255, rtol=1e-6)


def test_blur_keeps_the_light_of_an_image_away_from_its_border():
    image = np.zeros((1, 28, 28, 1), np.uint8)
    image[0, 14, 14] = 255
    spot = Pixels(blur=2.0).embed(Images(image)).reshape(28, 28)
    assert spot.sum() == pytest.approx(1.0, abs=1e-3)
    assert (spot * (np.arange(28) - 14) ** 2).sum() == pytest.approx(4.0, rel=0.01)  # variance of the blur
    assert spot.argmax() == 14 * 28 + 14


@pytest.mark.parametrize("side", [28, 200])
def test_the_blur_is_the_whole_gaussian_to_the_rounding_of_float32(side):
    images, blur = noise(4, height=side, width=side), 1.5
    places = np.arange(28)
    whole = np.exp(-0.5 * ((places[:, None] - places) / blur) ** 2) / (blur * np.sqrt(2 * np.pi))
    resampled = np.eye(28) if side == 28 else _reduction(28, side, 0).astype(np.float64)
    exact = np.einsum("is,nsr,jr->nij", whole @ resampled, images.pixels[..., 0] / 255, whole @ resampled)
    np.testing.assert_allclose(Pixels(blur=blur).embed(images).reshape(4, 28, 28), exact, rtol=2e-6)


def test_large_images_of_any_proportion_are_shrunk_to_the_size_and_keep_their_mean():
    flat = Images(np.full((2, 100, 61, 3), 51, np.uint8))
    vectors = Pixels(size=16, blur=0.0).embed(flat)
    assert vectors.shape == (2, 16 * 16 * 3)
    np.testing.assert_allclose(vectors, 0.2, rtol=1e-5)
    assert Pixels(size=16, colour=False).embed(flat).shape == (2, 256)


def test_small_images_are_enlarged():
    assert Pixels(size=28).embed(noise(2, height=8, width=8)).shape == (2, 784)


def test_gradients_ignore_a_constant_brightness_and_know_the_direction_of_an_edge():
    embedding = Pixels(features="gradients", cells=7)
    flat = embedding.embed(Images(np.full((1, 28, 28, 1), 128, np.uint8))).reshape(8, 7, 7)
    assert np.abs(flat[:, 2:5, 2:5]).max() < 1e-3
    ramp = Images(np.tile(np.arange(28, dtype=np.uint8) * 9, (28, 1))[None, :, :, None])
    by_direction = embedding.embed(ramp).reshape(8, 7, 7)[:, 3, 3]
    assert by_direction.argmax() == 0  # brighter to the right
    assert by_direction[4] < 1e-3  # not to the left


def test_normalised_vectors_have_length_one_and_forget_contrast():
    embedding = Pixels(normalise="l2")
    vectors = embedding.embed(Images(np.concatenate([bar(9).pixels, bar(9, level=100).pixels])))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


def test_a_black_image_has_the_vector_zero():
    black = Images(np.zeros((1, 28, 28, 1), np.uint8))
    for features in ("pixels", "pyramid"):
        assert not Pixels(features=features, normalise="l2").embed(black).any()


def test_no_images_give_no_vectors():
    assert Pixels().embed(noise(0)).shape == (0, 784)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"size": 3}, "size must be at least 4, not 3"),
        ({"blur": -1.0}, "blur is -1.0"),
        ({"blur": 28.0}, "blur is 28.0"),
        ({"cells": 0}, "cells must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"features": "pixel"}, "features must be 'pixels', 'pyramid' or 'gradients'"),
        ({"normalise": "l1"}, "normalise must be 'none' or 'l2'"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, named):
    with pytest.raises(RecipeError, match=named):
        Pixels(**settings)


def test_samples_that_are_no_images_are_refused():
    with pytest.raises(ContractError, match="takes images"):
        Pixels().embed(["text"])


def test_ten_thousand_digits_take_a_few_seconds_at_most():
    embedding, images = Pixels(), noise(256)
    started = time.perf_counter()
    for _ in range(40):
        embedding.embed(images)
    assert time.perf_counter() - started < 10
