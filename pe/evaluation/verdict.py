"""The verdict: did the votes help, and did evolving beat one vote?

All sets are compared on the same test samples. The synthetic data are compared with controls made
without votes, and with as many samples that one vote chose.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pe.data.arrays import BoolArray, Float64Array
from pe.evaluation.classifiers import LINEAR_PROBE
from pe.evaluation.labelled import Labels, Values
from pe.evaluation.sets import (
    CHANCE,
    ONE_VOTE,
    RANDOM_SELECTION,
    REAL,
    SYNTHETIC_DATA,
    UNEVOLVED,
    WORDS,
)
from pe.evaluation.utility import BySet, Results

HELPED = "helped"
NOT_SHOWN = "not_shown"
HURT = "hurt"
LEVEL = 0.95
NAMED = 3  # collapsed classes; more are counted

_NOT_SHOWN = "The evaluation does not show that"
_HEADLINES = {
    HELPED: ("The votes helped", "Evolving beat one vote"),
    NOT_SHOWN: (f"{_NOT_SHOWN} the votes helped", f"{_NOT_SHOWN} evolving beat one vote"),
    HURT: ("The votes hurt", "One vote beat evolving"),
}
"""Outcome → headline on the votes, and headline on evolving."""
_CONTROLS = (UNEVOLVED, RANDOM_SELECTION)


@dataclass(frozen=True)
class Difference:
    """The gain in accuracy of one training set over another."""

    accuracy: float  # of the other, the mean over the seeds, in [0, 1]
    difference: float  # of the accuracies, in [−1, 1]
    low: float  # lower end of the interval at LEVEL
    high: float  # upper end

    @property
    def points(self) -> str:
        """The difference in percentage points, with its interval."""
        low = 100 * self.low
        high = 100 * self.high
        return (
            f"{100 * self.difference:+.1f} points ({100 * LEVEL:g} % interval {low:+.1f} to "
            f"{high:+.1f})"
        )


@dataclass(frozen=True)
class Verdict:
    """The answers: did the votes help, and did evolving beat one vote? Confidential."""

    # HELPED: the synthetic data are better than every control, and all intervals lie above 0; HURT:
    # against one of them the interval lies below 0; else NOT_SHOWN
    outcome: str
    classifier: str  # by which all sets are compared
    test_images: int  # their number
    accuracy: float  # after training on the synthetic data, the mean over the seeds
    # from each control that there is, and from CHANCE, the share of the largest class in the test
    # set
    differences: dict[str, Difference]
    # against one vote: HELPED: the interval lies above 0; HURT: below; else NOT_SHOWN. None: not
    # compared
    evolving: str | None

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, and a second one on one vote if that was compared."""
        differences = self.differences
        against = [
            f"{differences[name].points} against {WORDS[name]}"
            for name in _CONTROLS
            if name in differences
        ]
        chance = "" if differences[CHANCE].low > 0 else ", which is no better than chance"
        sentence = f"{_HEADLINES[self.outcome][0]}: {' and '.join(against)}{chance}."
        if self.evolving is None:
            return sentence
        against_vote = (
            f"{differences[ONE_VOTE].points} against as much data chosen by one vote and not varied"
        )
        return f"{sentence} {_HEADLINES[self.evolving][1]}: {against_vote}."

    def to_dict(self) -> Values:
        """Return the values as docs/evaluation.md has them."""
        differences = {name: vars(each) for name, each in self.differences.items()}
        return vars(self) | {"differences": differences, "level": LEVEL, "sentence": self.sentence}


def judge_of(results: Results, best: Mapping[str, str]) -> str:
    """Return the classifier by which all sets are compared.

    It is the linear probe on the features of the first embedding, which is named before anything is
    measured; without a probe, the classifier that is best on held-out parts of the private records
    or, if these cannot be read, of the synthetic data.
    """
    probe = next((name for name in results if name.startswith(LINEAR_PROBE)), None)
    return probe or best.get(REAL, best[SYNTHETIC_DATA])


def verdict(results: Results, best: Mapping[str, str], labels: Labels) -> Verdict | None:
    """Judge the votes by `judge_of`'s classifier. Return None without a control to compare with.

    Guarantee: none. The result is confidential.
    """
    name = judge_of(results, best)
    by_set = results[name]
    ours = by_set[SYNTHETIC_DATA].right
    differences = {
        each: compare_with_controls(ours, by_set[each].right)
        for each in _CONTROLS
        if each in by_set
    }
    if not differences:
        return None
    outcome = _judge(differences.values())
    evolving = None
    if ONE_VOTE in by_set:
        differences[ONE_VOTE] = compare_with_controls(ours, by_set[ONE_VOTE].right)
        evolving = _judge([differences[ONE_VOTE]])
    # the largest class is shown beside the outcome, but has no part in it
    largest = np.bincount(labels).argmax()
    differences[CHANCE] = compare_with_controls(
        ours, np.broadcast_to(labels == largest, ours.shape)
    )
    return Verdict(outcome, name, len(labels), float(ours.mean()), differences, evolving)


def _judge(differences: Collection[Difference]) -> str:
    if all(each.low > 0 for each in differences):
        return HELPED
    return HURT if any(each.high < 0 for each in differences) else NOT_SHOWN


def find_lost_classes(
    by_set: BySet, labels: Labels, noun: str, classes: Sequence[str]
) -> dict[str, str]:
    """Return a sentence for each class that the synthetic data have lost, the worst first.

    A class has collapsed if its recall is less than half as high after training on the synthetic
    data as after training on another set, and the interval of the difference, corrected for the
    number of classes (Bonferroni), lies below 0.

    Guarantee: none. The result is confidential.
    """
    ours = by_set[SYNTHETIC_DATA].right
    # Bonferroni: the level holds for all classes at once
    level = 1 - (1 - LEVEL) / len(classes)
    others = [name for name in (*_CONTROLS, ONE_VOTE, REAL) if name in by_set]
    lost: list[tuple[float, str, str]] = []
    for label, name in enumerate(classes):
        rows = labels == label
        if not rows.any():
            continue
        recall = float(ours[:, rows].mean())
        against = []
        for other in others:
            one = compare_with_controls(ours[:, rows], by_set[other].right[:, rows], level)
            if one.high < 0 and 2 * recall < one.accuracy:
                against.append(f"{100 * one.accuracy:.1f} % after {WORDS[other]}")
        if against:
            share = (
                f"{100 * recall:.1f} % of its {int(rows.sum()):,} test {noun} are labelled rightly"
            )
            lost.append(
                (
                    recall,
                    name,
                    f"The class '{name}' collapsed: {share}, against {' and '.join(against)}.",
                )
            )
    return {name: sentence for _, name, sentence in sorted(lost)}


def first_named(sentences: Sequence[str]) -> list[str]:
    """Return the first NAMED sentences on collapsed classes, and one that counts the others."""
    more = len(sentences) - NAMED
    rest = [f"So did {more:,} more {'class' if more == 1 else 'classes'}."] if more > 0 else []
    return [*sentences[:NAMED], *rest]


def compare_with_controls(
    ours: BoolArray,
    others: BoolArray | Float64Array,
    level: float = LEVEL,
    between_runs: float = 0.0,
) -> Difference:
    """Return the difference of two accuracies on the same test samples, with its interval.

    The interval is at `level` in (0, 1).

    `ours` and `others` mark the samples classified correctly after training on one set or the
    other, (seeds, m). The variance is the sum of two. For test samples it follows Agresti and Min
    (2005), who add two samples to the m, half a sample for each pair of outcomes, so that the
    interval keeps its level if m is small or hardly a sample differs. For seeds it is the sample
    variance of the seeds' differences over their number. The quantile is Student's, with Welch and
    Satterthwaite's degrees of freedom. How another run, with other noise, would differ is in the
    interval only by `between_runs`, the standard deviation of `ours` between runs. `others` may be
    a mixture of masks, in [0, 1].
    """
    from scipy.stats import t

    gains = ours.astype(np.float64) - others
    by_sample = gains.mean(axis=0)
    by_seed = gains.mean(axis=1)
    samples = len(by_sample) + 2
    seeds = len(by_seed)
    total = float(by_sample.sum())
    of_samples = (float(np.square(by_sample).sum()) + 1 - total**2 / samples) / samples**2
    of_seeds = float(by_seed.var(ddof=1)) / seeds if seeds > 1 else 0.0
    variance = of_samples + of_seeds + between_runs**2
    freedom = variance**2 / (of_samples**2 / (samples - 1) + of_seeds**2 / max(seeds - 1, 1))
    half = float(t.ppf((1 + level) / 2, freedom)) * math.sqrt(variance)
    low, high = (max(-1.0, min(1.0, total / samples + side)) for side in (-half, half))
    return Difference(float(others.mean()), float(gains.mean()), low, high)
