"""The judgement: what someone loses who gets the synthetic data instead of the records.

One answer for each purpose: to train a classifier, to analyse, to show. All of it is confidential.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pe.data.arrays import Float64Array
from pe.data.columns import Columns
from pe.data.samples import generator
from pe.judgement.labelled import Labels, Logits
from pe.judgement.learners import guesses, panel
from pe.judgement.manifold import NEIGHBORS, manifold
from pe.judgement.resemble import (
    Coded,
    Kept,
    Noticed,
    columns_from_others,
    effective_number,
    noticed_after,
    pairs,
    telling_features,
    two_sample,
)
from pe.judgement.scale import BEST, Gain, Guesses, Place, Scale, gain
from pe.judgement.views import DIRECTIONS, Viewed
from pe.nearest import nearest
from pe.progress import Progress

SYNTHETIC = "synthetic"
PRIVATE = "real"
UNEVOLVED = "unevolved"
ENOUGH = 8.0
"""Score from which a set is called good for a purpose."""
POOR = 4.0
"""Score below which it is called unfit."""
NEAR = 0.5
"""Two samples count as the same if they are nearer than this share of the usual distance between a
private record and the one nearest to it."""
MOST = 2000
"""Most samples whose distances are compared."""
NAMED = 3
"""Columns, pairs and features that are named at most."""
CLEAR = 0.6
"""Area from which a feature is said to give a set away."""


@dataclass(frozen=True)
class Reached:
    """Results of the classifiers that learned from a set."""

    place: Place
    samples: int
    accuracy: float
    log_loss: float
    recalls: dict[str, float | None]  # of each class; None: the test set has none of it
    confusion: list[list[int]]  # rows are true classes


@dataclass(frozen=True)
class Mean:
    """The mean of a column in the synthetic data and in the private records."""

    column: str
    ours: float
    real: float
    apart: float  # their difference in standard deviations of the private records


@dataclass(frozen=True)
class EffectiveNumbers:
    """Effective numbers of different samples, among as many of either set."""

    ours: float
    real: float

    @property
    def score(self) -> float:
        """Score, in [0, BEST]."""
        return BEST * min(1.0, self.ours / self.real)


@dataclass(frozen=True)
class Shown:
    """Likeness of the data to real ones, and the share of the real data that they cover."""

    noticed: Noticed
    coverage: float  # share of private records that have a synthetic sample as near as real ones
    real_coverage: float  # the same for held-out real samples


@dataclass(frozen=True)
class Judgement:
    """A place for each purpose. What was not measured is None or empty."""

    noun: str
    measure: str = ""
    trained: dict[str, Reached] = field(default_factory=dict)  # set → its place, controls too
    brought: dict[str, Gain] = field(default_factory=dict)  # control → what the votes brought
    columns: tuple[Kept, ...] = ()  # the worst first
    pairs: tuple[Kept, ...] = ()
    means: tuple[Mean, ...] = ()  # the farthest apart first
    shown: Shown | None = None
    variety: EffectiveNumbers | None = None

    @property
    def train(self) -> Place | None:
        """The place of the synthetic data for training."""
        return self.trained[SYNTHETIC].place if SYNTHETIC in self.trained else None

    @property
    def analyse(self) -> float | None:
        """The score for statistics: that of the worst column or pair. None: no table."""
        return min((one.score for one in (*self.columns, *self.pairs)), default=None)


@dataclass(frozen=True, eq=False)
class Compared:
    """The sets to judge, in every view. Confidential."""

    modality: str
    noun: str
    classes: Sequence[str]
    generated: Mapping[str, Viewed]  # SYNTHETIC first, then the controls
    private: Viewed
    test: Viewed
    columns: Columns | None = None
    seeds: Sequence[int] = (0,)
    between_runs: float = 0.0  # standard deviation of the measure between runs of one recipe


def judge(sets: Compared, progress: Progress) -> Judgement:
    """Judge the synthetic data beside the controls.

    Guarantee: none. The result is confidential.
    """
    measure, trained, brought = _train(sets, progress)
    columns, of_pairs, means = _analyse(sets)
    return Judgement(
        noun=sets.noun,
        measure=measure,
        trained=trained,
        brought=brought,
        columns=columns,
        pairs=of_pairs,
        means=means,
        shown=_show(sets),
        variety=_variety(sets),
    )


def _train(sets: Compared, progress: Progress) -> tuple[str, dict[str, Reached], dict[str, Gain]]:
    lessons = {
        name: one.lesson
        for name, one in {**sets.generated, PRIVATE: sets.private}.items()
        if one.lesson.teaches
    }
    labels = sets.test.lesson.labels
    if not {SYNTHETIC, PRIVATE} <= lessons.keys() or len(np.unique(labels)) < 2:
        return "", {}, {}
    test = sets.test.lesson.views
    count = len(sets.classes)
    found = guesses(panel(sets.modality), lessons, test, count, sets.seeds, progress)
    scale = Scale.of(count, labels, found[PRIVATE], sets.seeds[0])
    scores = {}
    trained = {}
    for name, own in found.items():
        # Another run of the recipe would draw other noise; the controls draw none.
        between = sets.between_runs if name == SYNTHETIC else 0.0
        place, scores[name] = scale.place(own, between)
        trained[name] = _trained(place, own, scale, len(lessons[name]), sets)
    brought = {
        name: gain(scores[SYNTHETIC], each)
        for name, each in scores.items()
        if name not in (SYNTHETIC, PRIVATE)
    }
    return scale.measure.name, trained, brought


def _trained(place: Place, own: Guesses, scale: Scale, samples: int, sets: Compared) -> Reached:
    from scipy.special import log_softmax

    learners = place.learner.split(" and ")
    logits: list[Logits] = [one for name in learners for one in own[name]]
    labels: Labels = scale.labels
    classes = sets.classes
    count = len(classes)
    guessed = [each.argmax(axis=1) for each in logits]
    confusion = sum(
        np.bincount(labels * count + each, minlength=count**2).reshape(count, count)
        for each in guessed
    )
    totals = np.asarray(confusion).sum(axis=1)
    right = np.diag(np.asarray(confusion))
    # Accuracy and loss are those of somebody who knows how frequent each class is.
    shares = sets.private.lesson.log_shares(count)
    usual = [log_softmax(each + shares, axis=1) for each in logits]
    accuracies = [(each.argmax(axis=1) == labels).mean() for each in usual]
    losses = [-each[np.arange(len(labels)), labels].mean() for each in usual]
    recalls = {
        name: float(right[i] / totals[i]) if totals[i] else None for i, name in enumerate(classes)
    }
    return Reached(
        place,
        samples,
        float(np.mean(accuracies)),
        float(np.mean(losses)),
        recalls,
        np.asarray(confusion).tolist(),
    )


def _analyse(sets: Compared) -> tuple[tuple[Kept, ...], tuple[Kept, ...], tuple[Mean, ...]]:
    ours, real, test = sets.generated[SYNTHETIC].codes, sets.private.codes, sets.test.codes
    if sets.columns is None or ours is None or real is None or test is None:
        return (), (), ()
    columns = [*sets.columns.values()]
    table = Coded(
        [*sets.columns], [one.is_ordered for one in columns], [one.size for one in columns]
    )
    means = []
    for i, (name, column) in enumerate(sets.columns.items()):
        if column.kind in ("integer", "real"):
            own, theirs = (
                np.array([column.value(code) for code in codes[:, i] if code < column.size], float)
                for codes in (ours, real)
            )
            if len(own) and len(theirs):
                apart = abs(own.mean() - theirs.mean()) / (theirs.std() or 1.0)
                means.append(Mean(name, float(own.mean()), float(theirs.mean()), float(apart)))
    return (
        tuple(columns_from_others(table, ours, real, test, sets.seeds[0])),
        tuple(pairs(table, ours, real, test)),
        tuple(sorted(means, key=lambda one: -one.apart)),
    )


def _seen(sets: Compared) -> list[Float64Array]:
    """Return what a classifier sees of the synthetic, private and test samples.

    For a table its columns; else the named features and the embedding's principal directions.
    """
    every = [sets.generated[SYNTHETIC], sets.private, sets.test]
    if sets.columns is not None:
        return [one.features for one in every]
    mean = sets.private.vectors.mean(axis=0)
    *_, directions = np.linalg.svd(sets.private.vectors[:MOST] - mean, full_matrices=False)
    return [
        np.concatenate([one.features, (one.vectors - mean) @ directions[:DIRECTIONS].T], axis=1)
        for one in every
    ]


def _show(sets: Compared) -> Shown:
    seed = sets.seeds[0]
    ours, private, test = _seen(sets)
    area = two_sample(ours, private, seed)
    between = two_sample(test, private, seed)
    features = telling_features(
        sets.private.names, sets.generated[SYNTHETIC].features, sets.private.features
    )
    clear = tuple((name, one) for name, one in features[:NAMED] if one >= CLEAR)
    # What also tells two real sets apart does not tell that one of them is synthetic.
    excess = area - max(between - 0.5, 0.0)
    noticed = Noticed(area, between, noticed_after(excess), clear)
    vectors = [_some(one, seed) for one in (sets.generated[SYNTHETIC], sets.test, sets.private)]
    count = min(map(len, vectors))
    near = min(NEIGHBORS, count - 1)
    coverages = [manifold(vectors[2][:count], each[:count], near).coverage for each in vectors[:2]]
    return Shown(noticed, *coverages)


def _some(one: Viewed, seed: int) -> Any:
    rows = generator(seed, "judgement/some").permutation(len(one))[:MOST]
    return one.vectors[rows]


def _variety(sets: Compared) -> EffectiveNumbers:
    seed = sets.seeds[0]
    ours, private = (_some(one, seed) for one in (sets.generated[SYNTHETIC], sets.private))
    count = min(len(ours), len(private))
    neighbours = private[nearest(private, private, min(2, len(private)))[:, -1]]
    usual = float(np.median(np.linalg.norm(private - neighbours, axis=1)))
    return EffectiveNumbers(
        *(
            effective_number(each[:count].astype(np.float64), NEAR * usual)
            for each in (ours, private)
        )
    )
