"""Sets in the forms in which learners and measures see them."""

import numpy as np
import pytest

from pe.data.images import Images
from pe.data.samples import SOFT_LABEL, Conditions
from pe.data.texts import Texts
from pe.judgement.features import OF_IMAGES, OF_TEXTS, of_images, of_texts
from pe.judgement.labelled import KEPT, Labelled, few, label_samples
from pe.judgement.views import MOST_DIMENSIONS, shrink, views_of


def noise(count: int, *shape: int) -> Labelled:
    rng = np.random.default_rng(count)
    pixels = rng.integers(0, 256, (count, *shape)).astype(np.uint8)
    return Labelled(Images(pixels), np.zeros(count, np.int32))


def means(images: Images) -> np.ndarray:
    return images.pixels.reshape(len(images), -1).mean(axis=1, keepdims=True).astype(np.float32)


def test_what_a_generator_says_of_its_samples_takes_the_place_of_the_label_asked_for():
    images, asked = Images(np.zeros((3, 4, 4, 1), np.uint8)), np.array([0, 0, 1], np.int32)
    soft = np.array([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], np.float32)
    whole = label_samples(images, asked, Conditions({SOFT_LABEL: soft}))
    assert whole.labels.tolist() == [0, 1, 1]
    np.testing.assert_array_equal(whole.take(np.array([2])).soft, soft[2:])
    assert label_samples(images, asked, Conditions()).labels is asked


def test_of_a_large_set_some_are_kept_in_their_order():
    labels = np.arange(KEPT + 50, dtype=np.int32)
    whole = Labelled(Images(np.zeros((len(labels), 1, 1, 1), np.uint8)), labels)
    kept = few(whole, 0)
    assert len(kept) == KEPT
    assert (np.diff(kept.labels) > 0).all()
    assert few(kept, 0) is kept


def test_images_of_another_size_are_seen_in_the_test_images_shape():
    test = noise(5, 8, 8, 1)
    one, other = (
        views_of(whole, means, test, None) for whole in (noise(6, 16, 16, 3), noise(7, 8, 8, 1))
    )
    assert one.lesson.views["pixels"].shape == (6, 8, 8, 1)
    assert one.lesson.views["flat"].shape[1] == other.lesson.views["flat"].shape[1] == 64
    assert one.names == other.names == [*OF_IMAGES]
    assert one.features.shape == (6, len(OF_IMAGES))


@pytest.mark.parametrize(
    ("shape", "small"),
    [
        ((8, 8, 1), (8, 8, 1)),
        ((64, 64, 3), (24, 24, 3)),
        ((64, 16, 1), (24, 6, 1)),
        ((1000, 4, 3), (24, 1, 3)),
    ],
)
def test_classifiers_see_small_images_of_the_same_proportions(shape, small):
    assert shrink(shape) == small


def test_the_features_of_an_image_are_those_that_people_name():
    flat = np.full((1, 8, 8, 3), 100, np.uint8)
    bright, striped, red = flat + np.uint8(60), flat.copy(), flat.copy()
    striped[:, ::2] += 60
    red[..., 0] += 60
    names, (plain, *rows) = of_images(Images(np.concatenate([flat, bright, striped, red])))
    told = [{name for name, a, b in zip(names, plain, row, strict=True) if b > a} for row in rows]
    assert told[0] == {"brightness", "darkest parts", "brightest parts"}
    assert {"edges", "contrast"} <= told[1]
    assert "colour" not in told[1]
    assert "colour" in told[2]
    assert not {"edges", "contrast", "noise"} & told[2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 3), (2, 2, 1)])
def test_images_of_any_size_have_all_features(shape):
    assert np.isfinite(of_images(noise(3, *shape).images)[1]).all()


@pytest.mark.filterwarnings("error")
def test_the_features_of_a_text_are_those_that_people_name():
    texts = ["", "two words", "Two WORDS!", "12 words\nwords", "日本語"]
    names, rows = of_texts(Texts.of(texts))
    assert names == [*OF_TEXTS]
    assert np.isfinite(rows).all()
    empty, plain, loud, numbers, letters = (dict(zip(names, row, strict=True)) for row in rows)
    assert set(empty.values()) == {0, 1}  # it has one line
    assert (plain["length"], plain["words"], plain["lines"]) == (9, 2, 1)
    assert loud["capitals"] == 6 / 10
    assert loud["punctuation"] == 1 / 10
    assert numbers["digits"] == 2 / 14
    assert (numbers["repeated words"], numbers["lines"]) == (pytest.approx(1 / 3), 2)
    assert (letters["letters beyond ASCII"], letters["words"]) == (1, 3)
    assert of_texts(Texts.of([]))[1].shape == (0, len(OF_TEXTS))


def test_vectors_of_very_many_dimensions_are_projected_and_keep_their_distances():
    test = noise(8, 64, 64, 3)
    seen = views_of(test, lambda images: images.pixels.reshape(len(images), -1) / 255.0, test, None)
    whole = test.images.pixels.reshape(len(test), -1) / 255.0
    assert seen.vectors.shape[1] == MOST_DIMENSIONS < whole.shape[1]
    for i in range(1, len(test)):
        ours, theirs = (np.linalg.norm(one[i] - one[0]) for one in (seen.vectors, whole))
        assert ours == pytest.approx(theirs, rel=0.1)
