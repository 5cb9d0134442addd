"""Runs whose truth is known get the grade and the advice that fit; following the advice raises the
grade.

Private records, pools and test images are parts of scikit-learn's digits of 8×8; runs and
evaluations are whole.
"""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import pe
from pe.data.images import Images
from pe.evaluation.grade import LINES
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
def graded(tmp_path, digits):
    pixels, truth = digits

    def grade(name, records=RECORDS, pool=POOL, labels=None, epsilon=10.0, api=None, **settings):
        """Evolve digits and evaluate them; `labels` are those of the pool. The grade."""
        folder = tmp_path / name
        folder.mkdir()
        for what, rows in (("private", records), ("pool", pool), ("test", TEST)):
            names = truth if what != "pool" else labels
            columns = {} if names is None else {"labels": names[rows].astype(str)}
            np.savez(folder / f"{what}.npz", images=pixels[rows], **columns)
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
        request = {"classifiers": ["linear_probe"], "progress": Progress()} | (
            {} if api is None else {"api": api}
        )
        values = pe.evaluate(run, folder / "test.npz", **request)
        assert (
            values["verdict"]["remedies"][:1]
            == [values["grade"]["next"]][: len(values["verdict"]["remedies"])]
        )
        assert [name for name, _ in values["grade"]["lines"]] == [*LINES]
        shown, _, folded = values._repr_html_().partition("<details>")
        assert all(name in shown for name in LINES)
        assert "unevolved" in folded
        return values["grade"]

    return grade


def test_good_data_are_to_be_shared(graded):
    grade = graded("good")
    assert grade["usefulness"]["low"] > 7
    assert grade["fidelity"]["value"] > 8
    assert grade["privacy"]["low"] < 0.6
    assert grade["next"].startswith("Share it, if the owner")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("hardly any budget", {"epsilon": 0.05}),
        ("few records", {"records": slice(0, 25), "epsilon": 1.0}),
    ],
)
def test_under_strong_noise_more_budget_is_advised_by_how_much_and_helps(graded, name, settings):
    grade = graded(name, **settings)
    assert grade["usefulness"]["value"] < 5
    assert grade["next"].startswith("The noise is too strong")
    more = float(grade["next"].partition("ε = ")[2].split()[0])
    again = graded("again", **settings | {"epsilon": more})["usefulness"]["value"]
    assert again > grade["usefulness"]["value"] + 2


def test_a_class_that_the_generator_does_not_make_is_named_and_one_that_does_raises_the_grade(
    graded, digits
):
    grade = graded("without", api=Dealer(digits[0][POOL], blank="0"))
    assert grade["next"].startswith(
        "The generator lacks images of '0': take another prompt, model or generator"
    )
    assert (
        graded("with", api=Dealer(digits[0][POOL]))["usefulness"]["value"]
        > grade["usefulness"]["value"] + 0.5
    )


def test_copies_of_a_few_images_are_named_and_more_public_images_raise_the_grade(graded):
    grade = graded("few", pool=slice(400, 412), votes="raw")
    assert grade["variety"]["value"] < 1
    assert grade["next"].startswith("The data are the same few images")
    assert graded("more")["variety"]["value"] > grade["variety"]["value"] + 2


def test_a_generator_that_returns_private_records_is_stopped(graded, digits):
    grade = graded("leak", api=Dealer(digits[0][RECORDS]))
    assert grade["privacy"]["low"] > 0.5
    assert grade["next"].startswith(
        "Do not share it, but find out how private records came into the generator."
    )


def test_a_pool_whose_own_labels_are_better_is_to_be_used_with_them(graded, digits):
    grade = graded("noisy", labels=digits[1], epsilon=0.5)
    assert grade["usefulness"]["control"] == "pool_labels"
    assert grade["next"].startswith("Use the pool's own labels (api.by_label: true")
