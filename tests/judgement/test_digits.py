"""What is known of a set of images, the judgement finds: digits of the package, shrunk."""

from functools import cache

import numpy as np

from pe.data.images import Images
from pe.judgement.judge import Compared, Judgement, judge
from pe.judgement.labelled import Labelled
from pe.judgement.views import Viewed, views_of
from pe.judgement.words import lines
from pe.private.npz import MnistSample
from pe.progress import Progress

NAMES = tuple("0123456789")
SIDE = 14


@cache
def digits(split: str) -> Labelled:
    dataset = MnistSample(split=split, size=SIDE, resize="stretch").open()
    images, _ = next(dataset.blocks(len(dataset)))
    return Labelled(images, dataset.labels)


ORDER = np.random.default_rng(0).permutation(4000)
PRIVATE = digits("private").take(ORDER[:700])
FRESH = digits("private").take(ORDER[700:1400])
TEST = digits("test")


def seen(whole: Labelled) -> Viewed:
    def embed(images: Images) -> np.ndarray:
        return images.pixels.reshape(len(images), -1).astype(np.float32) / 255

    return views_of(whole, embed, TEST, None)


def judged(whole: Labelled, private: Labelled = PRIVATE) -> Judgement:
    generated = {"synthetic": seen(whole)}
    return judge(
        Compared("images", "images", NAMES, generated, seen(private), seen(TEST)), Progress()
    )


def test_fresh_digits_are_as_good_as_the_records():
    found = judged(FRESH)
    assert found.train.score >= 9.5
    assert found.variety.score >= 9.5
    assert found.shown.coverage >= 0.95 * found.shown.real_coverage


def test_rare_labels_cost_little_and_are_named():
    rng = np.random.default_rng(0)
    private, fresh = (digits("private").take(rows) for rows in (ORDER[:2000], ORDER[2000:]))
    kept = (fresh.labels < 5) | (rng.random(len(fresh)) < 1 / 25)
    found = judged(fresh.take(np.flatnonzero(kept)), private)
    assert found.train.score >= 8
    recalls = found.trained["synthetic"].recalls
    assert min(recalls, key=recalls.__getitem__) in NAMES[5:]


def test_a_grey_background_is_named():
    pixels = np.maximum(FRESH.images.pixels, 60)
    found = judged(Labelled(Images(pixels), FRESH.labels))
    assert {"brightness", "darkest parts"} & {name for name, _ in found.shown.noticed.features}
    assert found.shown.noticed.after == 1
    assert "What gives the data away: " in dict(lines(found, {}))["show"]


def test_soft_labels_teach_what_hard_ones_hide():
    """Between two labels a sample says more by its probabilities than by the larger of them."""
    rng = np.random.default_rng(0)
    count = len(FRESH)
    partner = rng.permutation(count)
    share = rng.uniform(0, 0.5, count)
    first, second = FRESH.images.pixels, FRESH.images.pixels[partner]
    mixed = first * (1 - share)[:, None, None, None] + second * share[:, None, None, None]
    soft = np.zeros((count, len(NAMES)), np.float32)
    soft[np.arange(count), FRESH.labels] += 1 - share
    soft[np.arange(count), FRESH.labels[partner]] += share
    images = Images(mixed.astype(np.uint8))
    with_soft = judged(Labelled(images, FRESH.labels, soft))
    assert with_soft.train.score >= 9.3
