"""Runs of one recipe over scikit-learn's digits that differ in the noise alone.

A run takes about a second, so that many can be compared. What is learned from a run is tested on
nearly ten thousand digits, so its measure is known almost exactly.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits

import pe
from pe.data.images import Images
from pe.judgement.classifiers import pixels_in_unit_interval
from pe.judgement.judge import PRIVATE
from pe.judgement.labelled import Labelled, Labels
from pe.judgement.learners import Lesson, guesses, panel
from pe.judgement.scale import Guesses
from pe.progress import Progress

DELTA = 1e-5
LEARNERS = tuple(one for one in panel("images") if one.view == "vectors")
"""The linear learners of the panel. Training the network as well would take hours."""
PARTS = {"private": (0, 800, 5), "pool": (800, 1400, 5), "test": (1400, 1797, 25)}
"""Part → its first digit, its end, and the number of variants of each digit."""


def parts(labels: int) -> dict[str, Labelled]:
    """Return the digits of each part, in random order. The label is the digit modulo `labels`.

    Images are uint8 (n, 8, 8, 1). Each variant is shifted and turned a little.
    """
    source = load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(source.target))
    found = {}
    for name, (start, end, variants) in PARTS.items():
        rows = rng.permutation(np.repeat(order[start:end], variants))
        images = np.stack([_varied(source.images[row], rng) for row in rows])
        pixels = np.round(images * (255 / 16)).astype(np.uint8)[..., None]
        found[name] = Labelled(Images(pixels), (source.target[rows] % labels).astype(np.int32))
    return found


def _varied(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    turn = rng.normal(0, 0.12)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    middle = np.array([3.5, 3.5])
    shift = rng.normal(0, 0.4, 2)
    varied: np.ndarray = affine_transform(image, matrix, middle - matrix @ middle + shift, order=1)
    return varied


def repeated(
    records: int, labels: int, epsilon: float, runs: int
) -> tuple[dict[str, Guesses], Labels]:
    """Return the predictions for all test digits after each of `runs` runs, and the true labels.

    The predictions after the private records are there under PRIVATE.

    Raises:
        PEError: the plan refuses so few records at this ε.
    """
    digits = parts(labels)
    private = digits["private"].take(np.arange(records))
    sets = {f"run {i}": _evolve(private, digits["pool"], labels, epsilon) for i in range(runs)}
    return _learn(sets | {PRIVATE: private}, digits["test"], labels), digits["test"].labels


def _evolve(private: Labelled, pool: Labelled, labels: int, epsilon: float) -> Labelled:
    """Return the data of a run whose generator is the pool without its labels."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = [str(label) for label in range(labels)]
        named = private.labels.astype(str)
        np.savez(folder / "private.npz", images=private.images.pixels, labels=named)
        np.savez(folder / "pool.npz", images=pool.images.pixels)
        run = pe.evolve(
            pe.ImageNpz(
                folder / "private.npz",
                size=8,
                channels=1,
                classes=names,
                declared_size=len(private),
            ),
            pe.api("public_images", path=str(folder / "pool.npz"), channels=1),
            embedding=pe.embedding("pixels", size=8, blur=0),
            epsilon=epsilon,
            delta=DELTA,
            out=folder / "run",
            progress=Progress(),
        )
        last = run.populations()[-1]
    return Labelled(last.samples, last.labels)


def _learn(sets: Mapping[str, Labelled], test: Labelled, labels: int) -> dict[str, Guesses]:
    lessons = {name: Lesson(_vectors(one), one.labels) for name, one in sets.items()}
    found: dict[str, Guesses] = {
        **guesses(LEARNERS, lessons, _vectors(test), labels, (0,), Progress())
    }
    return found


def _vectors(one: Labelled) -> dict[str, np.ndarray]:
    return {"vectors": pixels_in_unit_interval(one.images)}
