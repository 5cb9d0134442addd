"""What is trained on which samples: every classifier, with the sets as it sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pe.data.seeds import generator
from pe.errors import RecipeError
from pe.evaluation.classifiers import LINEAR_PROBE, Classifier
from pe.evaluation.features import KEPT, Seen
from pe.evaluation.labelled import Labelled
from pe.evaluation.request import Request
from pe.evaluation.sets import Sets
from pe.evaluation.utility import Trial


def trials_of(sets: Sets, request: Request, seen: Sequence[Seen]) -> list[Trial]:
    """A trial for every classifier that is asked for, and for the linear probe one under every embedding.

    A probe sees the vectors of at most KEPT samples of a set, chosen at random; what others see, the modality says.

    Raises:
        RecipeError: a classifier that is asked for is of another modality.
    """
    test, training = sets.test.content, {}
    for name, whole in sets.all.items():
        if np.count_nonzero(np.bincount(whole.labels) > 1) < 2:
            by = "by its soft labels " if whole.soft is not None else ""
            few = f"it has not two {sets.modality.noun} each of two classes"
            sets.notes.add(f"No classifier is trained on '{name}': {by}{few}.")
        else:
            training[name] = whole
    classifiers = request.trained(sets.methods.classifiers)
    for each in classifiers:
        if each.kind not in (None, sets.modality.kind):
            raise RecipeError(
                f"The classifier '{each.name}' is of {each.kind}, and the run's data are {sets.modality.noun}: "
                f"take {' or '.join(sets.methods.classifiers)}."
            )
    views = sets.methods.views([each.name for each in classifiers], training, test, sets.notes.add)
    found = []
    for classifier in classifiers:
        if classifier.name == LINEAR_PROBE:
            found += [_probe(classifier, each, training, test, sets.recipe.seed) for each in seen]
        else:
            found.append(Trial(classifier.name, classifier, *views[classifier.name]))
    return found


def _probe(classifier: Classifier, seen: Seen, training: Mapping[str, Labelled], test: Labelled, seed: int) -> Trial:
    """The linear probe under an embedding, by whose name it goes."""
    vectors = {name: _with_vectors(_some(whole, seed), seen) for name, whole in training.items()}
    return Trial(f"{classifier.name} on {seen.name}", classifier, vectors, _with_vectors(test, seen))


def _some(whole: Labelled, seed: int) -> Labelled:
    """At most KEPT of the samples, the set itself where it has no more."""
    if len(whole) <= KEPT:
        return whole
    return whole.take(np.sort(generator(seed, "evaluation/probe").permutation(len(whole))[:KEPT]))


def _with_vectors(whole: Labelled, seen: Seen) -> Labelled:
    return replace(whole, vectors=seen.vectors(whole.samples))
