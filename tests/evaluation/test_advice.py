"""Runs whose truth is known get the advice that fits; following it raises the score.

Private records, pools and test images are parts of scikit-learn's digits of 8×8; runs and
evaluations are whole.
"""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import pe
from pe.data.images import Images
from pe.judgement.learners import panel
from pe.plugins.protocols import Answer
from pe.progress import Progress

LABELS = 5
RECORDS, POOL, TEST = slice(0, 400), slice(400, 700), slice(700, None)


@pytest.fixture(scope="module")
def digits():
    source = load_digits()
    rows = np.random.default_rng(0).permutation(np.flatnonzero(source.target < LABELS))
    return np.round(source.images[rows] * (255 / 16)).astype(np.uint8), source.target[rows]


class Dealer:
    """Deals out images, whatever their label; of the label `blank` only black ones."""

    info = pe.PluginInfo(hosts=())
    capabilities = pe.Capabilities(max_chunk=1000)

    def __init__(self, pixels, blank=None):
        self.pixels, self.blank = pixels[..., None], blank

    def random_api(self, request):
        rows = (request.seeds % np.uint64(len(self.pixels))).astype(int)
        shown = np.array([label != self.blank for label in request.labels])
        return Answer(Images(self.pixels[rows] * shown[:, None, None, None].astype(np.uint8)))

    def variation_api(self, request):
        return Answer(request.samples)


@pytest.fixture
def judged(tmp_path, digits, monkeypatch):
    pixels, truth = digits
    # the linear learners, which are the quickest
    monkeypatch.setattr("pe.judgement.judge.panel", lambda _: panel("somebody's"))

    def judge(
        name, records=RECORDS, pool=POOL, labels=None, epsilon=10.0, api=None, grey=0, **settings
    ):
        """Evolve digits and evaluate them.

        `labels` are those of the pool, `grey` is the darkest value of the test images.
        """
        folder = tmp_path / name
        folder.mkdir()
        for what, rows in (("private", records), ("pool", pool), ("test", TEST)):
            names = truth if what != "pool" else labels
            columns = {} if names is None else {"labels": names[rows].astype(str)}
            least = grey if what == "test" else 0
            np.savez(folder / f"{what}.npz", images=np.maximum(pixels[rows], least), **columns)
        size, classes = len(pixels[records]), [str(label) for label in range(LABELS)]
        private = pe.ImageNpz(
            folder / "private.npz", size=8, channels=1, classes=classes, declared_size=size
        )
        run = pe.evolve(
            private,
            api or pe.api("public_images", path=str(folder / "pool.npz"), channels=1),
            embedding=pe.embedding("pixels", size=8, blur=0),
            epsilon=epsilon,
            delta=1e-5,
            out=folder / "run",
            progress=Progress(),
            **settings,
        )
        request = {"metrics": ["judgement", "memorisation"], "seeds": 1, "progress": Progress()}
        request |= {} if api is None else {"api": api, "one_vote": False}
        values = pe.evaluate(run, folder / "test.npz", **request)
        lines = dict(values["judgement"]["lines"])
        assert lines.keys() == {"summary", "train", "brought", "show", "variety"}
        shown, _, folded = values._repr_html_().partition("<details>")
        assert all(name in shown for name in lines)
        assert "unevolved" in folded
        return values

    return judge


def score(values):
    return values["judgement"]["trained"]["synthetic"]["place"]["score"]


def variety(values):
    found = values["judgement"]["variety"]
    return found["ours"] / found["real"]


def test_good_data_are_to_be_shared(judged):
    values = judged("good")
    place = values["judgement"]["trained"]["synthetic"]["place"]
    assert place["low"] > 8
    assert values["judgement"]["brought"]["unevolved"]["low"] > 5
    assert values["memorisation"]["nearer"]["low"] < 0.6
    assert values["judgement"]["next"].startswith("The data may be shared if")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("hardly any budget", {"epsilon": 0.05}),
        ("few records", {"records": slice(0, 25), "epsilon": 1.0}),
    ],
)
def test_under_strong_noise_more_budget_is_advised_by_how_much_and_helps(judged, name, settings):
    values = judged(name, **settings)
    assert score(values) < 5
    advice = values["judgement"]["next"]
    assert advice.startswith("The noise is too strong")
    more = float(advice.partition("ε = ")[2].split()[0])
    assert score(judged("again", **settings | {"epsilon": more})) > score(values) + 2


def test_a_class_that_the_generator_does_not_make_is_named_and_one_that_does_raises_the_score(
    judged, digits
):
    values = judged("without", api=Dealer(digits[0][POOL], blank="0"))
    assert values["judgement"]["next"].startswith(
        "Classifiers hardly recognise '0' after training on the data: the generator makes few good "
        "images of them, or the votes chose wrong ones. Use another prompt, model or generator"
    )
    assert score(judged("with", api=Dealer(digits[0][POOL]))) > score(values) + 0.5


def test_copies_of_a_few_images_are_named_and_more_public_images_add_variety(judged):
    values = judged("few", pool=slice(400, 412), votes="raw")
    assert variety(values) < 0.1
    assert values["judgement"]["next"].startswith("The data repeat the same few images")
    assert variety(judged("more")) > variety(values) + 0.2


def test_a_generator_that_returns_private_records_is_stopped(judged, digits):
    values = judged("leak", api=Dealer(digits[0][RECORDS]))
    assert values["memorisation"]["nearer"]["low"] > 0.5
    assert values["judgement"]["next"].startswith(
        "Do not share the data. First find out how private records got into the generator."
    )


def test_private_records_among_the_data_are_found_with_test_records_from_elsewhere_too(
    judged, digits
):
    values = judged("leak", api=Dealer(digits[0][RECORDS]), grey=60)
    assert "memorisation" not in values
    assert any("are private records, pixel by pixel" in note for note in values["notes"])
    assert values["judgement"]["next"].startswith("Do not share the data.")


def test_public_data_that_are_better_with_their_own_labels_are_to_be_used(judged, digits):
    values = judged("noisy", labels=digits[1], epsilon=0.5)
    assert values["judgement"]["brought"]["public"]["score"] < 0
    assert values["judgement"]["next"].startswith(
        "Use the public data with their own labels instead."
    )
