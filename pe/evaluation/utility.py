"""Utility: train on synthetic samples, test on real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pe.data.arrays import BoolArray, Float64Array, Int64Array
from pe.data.images import Images
from pe.errors import RecipeError
from pe.evaluation.classifiers import (
    LINEAR_PROBE,
    Classifier,
    LinearProbe,
    at_once,
    on_one_thread,
    pixels_in_unit_interval,
    side_by_side,
)
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.labelled import Labelled, Labels, Logits, Values, few, hold_out
from pe.evaluation.sets import Request, Sets
from pe.progress import Progress

Counts = Int64Array

HELD_OUT = 0.1
"""Share of a training set on which the classifier and its stopping point are chosen."""

CLASSIFIERS = ("logistic_regression", "mlp")


def accuracies(
    train: Images, train_labels: Labels, test: Images, test_labels: Labels, seed: int
) -> dict[str, float]:
    """Return the `accuracy` of each of CLASSIFIERS."""
    return {
        name: accuracy(name, train, train_labels, test, test_labels, seed) for name in CLASSIFIERS
    }


def accuracy(
    classifier: str,
    train: Images,
    train_labels: Labels,
    test: Images,
    test_labels: Labels,
    seed: int,
) -> float:
    """Return the accuracy on test images, in [0, 1], of one of CLASSIFIERS.

    It is trained on n images of the same size.

    The settings are scikit-learn's defaults but max_iter. Nothing is chosen by the test set. Labels
    are int32 (n,).

    Guarantee: none. With a private test set the number is confidential.

    Raises:
        MissingDependency: scikit-learn is not installed.
        RecipeError: the training images have fewer than two labels.
    """
    if len(np.unique(train_labels)) < 2:
        raise RecipeError(
            "The training images have fewer than two labels: a classifier has nothing to learn."
        )
    x = pixels_in_unit_interval(train)
    y = pixels_in_unit_interval(test)
    with on_one_thread("demo"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.neural_network import MLPClassifier

        mlp = classifier == "mlp"
        model = (
            MLPClassifier(max_iter=25, random_state=seed)
            if mlp
            else LogisticRegression(max_iter=100)
        )
        return float(np.mean(model.fit(x, train_labels).predict(y) == test_labels))


@dataclass(frozen=True, eq=False)
class Utility:
    """One classifier, trained on one set with several seeds and tested on real samples."""

    images: int  # samples of the training set, the held-out part included
    right: BoolArray  # which test samples are classified correctly, bool (seeds, m)
    macro_f1: Float64Array  # see the function, float64 (seeds,)
    validation: Float64Array  # accuracy on the training set's held-out part, float64 (seeds,)
    confusion: Counts  # int64 (classes, classes), summed over the seeds; rows are true classes
    # area under the ROC curve, the mean of each class against the others, for each seed; empty if
    # the test set has one
    auc: tuple[float, ...] = ()
    strengths: tuple[
        float, ...
    ] = ()  # of the linear probe's trainings, one for each seed; of others empty

    @property
    def accuracy(self) -> Float64Array:
        """Accuracy on the test samples, float64 (seeds,)."""
        accuracy: Float64Array = self.right.mean(axis=1)
        return accuracy

    def to_dict(self, names: Sequence[str]) -> Values:
        """Return the values as docs/evaluation.md has them, with the class `names`."""
        actual = self.confusion.sum(axis=1)
        right = np.diag(self.confusion)
        auc = {"auc": _spread(np.array(self.auc))} if self.auc else {}
        return (
            auc
            | {
                "images": self.images,
                "accuracy": _spread(self.accuracy),
                "macro_f1": _spread(self.macro_f1),
                "validation": _spread(self.validation),
                "per_class": {
                    name: float(right[i] / actual[i]) if actual[i] else None
                    for i, name in enumerate(names)
                },
                "confusion": self.confusion.tolist(),
            }
            | ({"strengths": list(self.strengths)} if self.strengths else {})
        )


BySet = Mapping[str, Utility]
"""Training set → result of one classifier."""
Results = Mapping[str, BySet]
"""Classifier → training set → result."""


@dataclass(frozen=True, eq=False)
class ClassifierTrial:
    """A classifier, and the sets in the form in which it gets them."""

    name: str  # of its results
    classifier: Classifier  # to train
    training_sets: Mapping[str, Labelled]  # name → at least two samples of at least two classes
    test: Labelled  # real samples


def utility(
    trials: Sequence[ClassifierTrial], classes: int, seeds: Sequence[int], progress: Progress
) -> Results:
    """Train every trial's classifier on each of its training sets, and test it on its test set.

    Each is trained once for each seed.

    For each seed a tenth of the training set is held out; there, and never on the test set,
    stopping points are chosen. Training sets keep their different sizes: size is part of what they
    are worth.

    Guarantee: none. With a private test or training set the numbers are confidential.

    Returns:
        trial's name → training set's name → result.
    """
    # every training is a job of its own: their order is fixed, and so are the results
    jobs = [
        _Job(trial, name, classes, seed)
        for trial in trials
        for name in trial.training_sets
        for seed in seeds
    ]
    threads = (
        at_once(len(jobs), max(job.features for job in jobs))
        if all(t.classifier.shallow for t in trials)
        else 1
    )
    scores: dict[tuple[str, str], list[_Score]] = {(job.trial.name, job.name): [] for job in jobs}
    with (
        progress.task("training classifiers", len(jobs)) as task,
        side_by_side(_Job.train_and_test, jobs, threads) as results,
    ):
        for job, score in zip(jobs, results, strict=True):
            scores[job.trial.name, job.name].append(score)
            task.advance(1)
    return {
        trial.name: {
            name: _join(whole, scores[trial.name, name])
            for name, whole in trial.training_sets.items()
        }
        for trial in trials
    }


def choose_classifiers(results: Results) -> dict[str, str]:
    """Return for each training set the classifier that is best on its held-out parts.

    Ties to the first.
    """
    names = next(iter(results.values())).keys()
    return {
        name: max(results, key=lambda each: float(results[each][name].validation.mean()))
        for name in names
    }


_Score = tuple[BoolArray, float, Counts, tuple[float, ...], tuple[float, ...]]
"""Mask of the test samples classified correctly, validation accuracy, confusion matrix, AUC, a
probe's strength."""


@dataclass(frozen=True, eq=False)
class _Job:
    """One training: a trial's classifier, on the training set `name`."""

    trial: ClassifierTrial
    name: str
    classes: int
    seed: int

    @property
    def features(self) -> int:
        """The number of values that the training reads."""
        training = self.trial.training_sets[self.name]
        return training.samples.array.size if training.vectors is None else training.vectors.size

    def train_and_test(self) -> _Score:
        test = self.trial.test
        classes = self.classes
        rest, held_out = hold_out(self.trial.training_sets[self.name], HELD_OUT, self.seed)
        predict = self.trial.classifier.fit(rest, held_out, classes, self.seed)
        logits = predict(test)
        predictions = logits.argmax(axis=1)
        confusion = np.bincount(test.labels * classes + predictions, minlength=classes**2).reshape(
            classes, classes
        )
        validation = float(np.mean(predict(held_out).argmax(axis=1) == held_out.labels))
        strength = (predict.strength,) if isinstance(predict, LinearProbe) else ()
        return (
            predictions == test.labels,
            validation,
            confusion,
            areas(logits, test.labels),
            strength,
        )


def _join(training: Labelled, scores: Sequence[_Score]) -> Utility:
    right, validation, confusion, auc, strengths = zip(*scores, strict=True)
    return Utility(
        images=len(training),
        right=np.array(right),
        macro_f1=np.array([macro_f1(each) for each in confusion]),
        validation=np.array(validation),
        confusion=np.sum(confusion, axis=0),
        auc=sum(auc, ()),
        strengths=sum(strengths, ()),
    )


def areas(logits: Logits, labels: Labels) -> tuple[float, ...]:
    """Return the mean area under the ROC curve of each class in `labels` against the others.

    () if there is one class.

    Ties count half. `logits` are as `Predict` returns them, (n, classes).
    """
    from scipy.special import log_softmax
    from scipy.stats import rankdata

    present, counts = np.unique(labels, return_counts=True)
    if len(present) < 2:
        return ()
    ranks = rankdata(log_softmax(logits, axis=1), axis=0)
    sums = [float(ranks[labels == label, label].sum()) for label in present]
    return (float(np.mean((sums - counts * (counts + 1) / 2) / (counts * (len(labels) - counts)))),)


def macro_f1(confusion: Counts) -> float:
    """Return the mean F1 of the classes in the test set.

    F1 is 2·right/(samples of the class + samples predicted as it).
    """
    actual = confusion.sum(axis=1)
    guesses = confusion.sum(axis=0)
    right = np.diag(confusion)
    present = actual > 0
    return float((2 * right[present] / (actual + guesses)[present]).mean())


def _spread(values: Float64Array) -> Values:
    """Return mean, standard deviation and values.

    The divisor is n − 1. One value has no deviation: None.
    """
    deviation = float(values.std(ddof=1)) if len(values) > 1 else None
    return {"mean": float(values.mean()), "std": deviation, "values": values.tolist()}


def trials_of(
    sets: Sets, request: Request, embeddings: Sequence[CachedEmbedding]
) -> list[ClassifierTrial]:
    """Return a trial for every classifier asked for, and for the linear probe one per embedding.

    A probe sees the vectors of a `few` samples of a set; other classifiers see `Methods.views`.
    """
    test = sets.test.content
    training = {}
    noun = sets.modality.noun
    for name, whole in sets.all.items():
        if np.count_nonzero(np.bincount(whole.labels) > 1) < 2:
            by = "by its soft labels " if whole.soft is not None else ""
            why = f"it has not two {noun} each of two classes"
            sets.notes.add(f"No classifier is trained on '{name}': {by}{why}.")
        else:
            training[name] = whole
    classifiers = request.for_training(sets.methods.classifiers)
    # all names are checked before the first training, which may take long
    for each in classifiers:
        if each.modalities and sets.modality.kind not in each.modalities:
            raise RecipeError(
                f"The classifier '{each.name}' is of {' and '.join(each.modalities)}, and the "
                f"run's data are {noun}: take {' or '.join(sets.methods.classifiers)}."
            )
    names = [each.name for each in classifiers]
    views = sets.methods.views(names, (training, test), sets.recipe.private, sets.notes.add)
    trials = []
    for classifier in classifiers:
        if classifier.name != LINEAR_PROBE:
            trials.append(ClassifierTrial(classifier.name, classifier, *views[classifier.name]))
            continue
        for embedding in embeddings:
            vectors = {
                name: _embed(few(whole, sets.recipe.seed), embedding)
                for name, whole in training.items()
            }
            trials.append(
                ClassifierTrial(
                    f"{LINEAR_PROBE} on {embedding.name}",
                    classifier,
                    vectors,
                    _embed(test, embedding),
                )
            )
    return trials


def _embed(whole: Labelled, embedding: CachedEmbedding) -> Labelled:
    return replace(whole, vectors=embedding.vectors(whole.samples))
