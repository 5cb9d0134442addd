"""Pixels: near images get near vectors, and a vector is a function of its image alone."""

import numpy as np
import pytest

from embeddings.pixels import Pixels, _reduction
from pe.data.images import Images
from pe.errors import ContractError, RecipeError


def noise(count, *, height=28, width=28):
    return Images(
        np.random.default_rng(0).integers(0, 256, (count, height, width, 1)).astype(np.uint8)
    )


def bar(column, *, level=255):
    pixels = np.zeros((1, 28, 28, 1), np.uint8)
    pixels[:, 4:24, column : column + 3] = level
    return Images(pixels)


@pytest.mark.parametrize("features", ["pixels", "pyramid", "gradients"])
def test_the_farther_an_image_is_shifted_the_farther_its_vector_lies(features):
    embedding = Pixels(features=features, blur=2.0)
    one, *others = (embedding.embed(bar(10 + shift)) for shift in (0, 1, 2, 5))
    near, middle, far = (float(np.linalg.norm(other - one)) for other in others)
    assert 0 < near < middle < far


@pytest.mark.parametrize(("side", "blur"), [(28, 0.0), (28, 1.5), (200, 1.5)])
def test_the_blur_is_the_whole_gaussian_to_the_rounding_of_float32(side, blur):
    images, distances = noise(4, height=side, width=side), np.arange(28)[:, None] - np.arange(28)
    whole = (
        np.exp(-0.5 * (distances / blur) ** 2) / (blur * np.sqrt(2 * np.pi)) if blur else np.eye(28)
    )
    resampled = np.eye(28) if side == 28 else _reduction(28, side, 0).astype(np.float64)
    exact = np.einsum(
        "is,nsr,jr->nij", whole @ resampled, images.pixels[..., 0] / 255, whole @ resampled
    )
    np.testing.assert_allclose(Pixels(blur=blur).embed(images).reshape(4, 28, 28), exact, rtol=2e-6)


def test_images_of_any_proportion_are_brought_to_the_size_and_keep_their_mean():
    for height, width in ((100, 61), (8, 8)):
        flat = Images(np.full((2, height, width, 3), 51, np.uint8))
        vectors = Pixels(size=16, blur=0.0).embed(flat)
        assert vectors.shape == (2, 16 * 16 * 3)
        np.testing.assert_allclose(vectors, 0.2, rtol=1e-5)
        assert Pixels(size=16, colour=False).embed(flat).shape == (2, 256)


@pytest.mark.parametrize("features", ["pixels", "pyramid"])
def test_normalised_vectors_have_length_one_and_forget_contrast_and_black_stays_zero(features):
    images = Images(
        np.concatenate([bar(9).pixels, bar(9, level=100).pixels, bar(9, level=0).pixels])
    )
    vectors = Pixels(features=features, normalise="l2").embed(images)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 1, 0], rtol=1e-5)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)


@pytest.mark.parametrize("blur", [-1.0, 28.0])
def test_a_blur_out_of_range_and_samples_that_are_no_images_are_refused(blur):
    with pytest.raises(RecipeError, match=f"blur is {blur}"):
        Pixels(blur=blur)
    with pytest.raises(ContractError, match="takes images"):
        Pixels().embed(["text"])
