"""What is trained on which images: every classifier, with the sets as it sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pe.data.seeds import generator
from pe.evaluation.classifiers import LINEAR_PROBE, ON_PIXELS, Classifier
from pe.evaluation.features import KEPT, Seen
from pe.evaluation.labelled import Labelled, in_shape, shrunk
from pe.evaluation.request import Request
from pe.evaluation.sets import Sets
from pe.evaluation.shallow import LONGEST
from pe.evaluation.utility import Trial


def trials_of(sets: Sets, request: Request, seen: Sequence[Seen]) -> list[Trial]:
    """A trial for every classifier that is asked for, and for the linear probe one under every embedding.

    Logistic regression and MLP see images of at most LONGEST pixels a side; networks see the test images' size; a probe
    sees the vectors of at most KEPT images of a set, chosen at random.
    """
    test, training = sets.test.content, {}
    for name, whole in sets.all.items():
        if np.count_nonzero(np.bincount(whole.labels) > 1) < 2:
            by = "by its soft labels " if whole.soft is not None else ""
            sets.notes.add(f"No classifier is trained on '{name}': {by}it has not two images each of two classes.")
        else:
            training[name] = whole
    large = {name: _like(whole, test, name, sets) for name, whole in training.items()}
    small_test, small = test, large
    if any(each.single in ON_PIXELS for each in request.trained):
        small_test, small = _shrink(test, large, sets)
    found = []
    for classifier in request.trained:
        if classifier.single == LINEAR_PROBE:
            found += [_probe(classifier, each, training, test, sets.recipe.seed) for each in seen]
        elif classifier.single in ON_PIXELS:
            found.append(Trial(classifier.name, classifier, small, small_test))
        else:
            found.append(Trial(classifier.name, classifier, large, test))
    return found


def _like(whole: Labelled, test: Labelled, name: str, sets: Sets) -> Labelled:
    """The set with images of the test images' shape."""
    if whole.images.shape != test.images.shape:
        sets.notes.add(
            f"For classifiers, images of '{name}' are brought from {_size(whole)} to the test set's {_size(test)}."
        )
    return replace(whole, images=in_shape(whole.images, test.images.shape))


def _shrink(test: Labelled, training: Mapping[str, Labelled], sets: Sets) -> tuple[Labelled, dict[str, Labelled]]:
    """The test set and the training sets with images of at most LONGEST pixels a side."""
    shape = shrunk(test.images.shape, LONGEST)
    small = replace(test, images=in_shape(test.images, shape))
    if shape != test.images.shape:
        sets.notes.keep(f"Logistic regression and MLP see images of {_size(small)}, shrunk from {_size(test)}.")
    return small, {name: replace(each, images=in_shape(each.images, shape)) for name, each in training.items()}


def _probe(classifier: Classifier, seen: Seen, training: Mapping[str, Labelled], test: Labelled, seed: int) -> Trial:
    """The linear probe under an embedding, by whose name it goes."""
    vectors = {name: _with_vectors(_some(whole, seed), seen) for name, whole in training.items()}
    return Trial(f"{classifier.name} on {seen.name}", classifier, vectors, _with_vectors(test, seen))


def _some(whole: Labelled, seed: int) -> Labelled:
    """At most KEPT of the images, the set itself where it has no more."""
    if len(whole) <= KEPT:
        return whole
    return whole.take(np.sort(generator(seed, "evaluation/probe").permutation(len(whole))[:KEPT]))


def _with_vectors(whole: Labelled, seen: Seen) -> Labelled:
    return replace(whole, vectors=seen.vectors(whole.images))


def _size(whole: Labelled) -> str:
    return "×".join(map(str, whole.images.shape))
