"""The grade of a run: usefulness, fidelity, variety and privacy in practice, a line each.

All of it is confidential.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pe.data.samples import generator
from pe.evaluation.labelled import Labels, Values
from pe.evaluation.sets import (
    CHANCE,
    POOL_LABELS,
    RANDOM_SELECTION,
    REAL,
    SYNTHETIC_DATA,
    UNEVOLVED,
    WORDS,
)
from pe.evaluation.utility import BySet
from pe.evaluation.verdict import LEVEL, compare_with_controls
from pe.nearest import nearest
from pe.plugins.protocols import Vectors

BEST = 10.0
"""The grade of data that are worth as much as the private records; 0 is that of the best trivial
control."""
NEAR = 0.2
"""Two samples count as copies if their distance is below this share of the usual one between two
real samples."""
COMPARED = 2000
PAIRS = 1000
"""Most samples of a set that are compared with each other, and the number of random pairs whose
median distance is the usual one."""
SURE = 0.99
"""Level of the interval of the share of samples that lie nearer to private records."""
MOST_BETWEEN_RUNS = 0.15
_ROUNDING = 1e-9

LINES = ("usefulness", "fidelity", "variety", "privacy", "next")
CONTROLS = (UNEVOLVED, RANDOM_SELECTION, POOL_LABELS, CHANCE)
"""The trivial controls."""


def between_runs(records: int, labels: int, epsilon: float) -> float:
    """Return the standard deviation of a probe's accuracy between runs of one recipe.

    It is in [0, MOST_BETWEEN_RUNS].

    A curve over records · ε / labels, drawn through what was measured (docs/evaluation.md,
    benchmarks/between_runs.py); 0 if ε is 0 (no votes) or infinite (no noise).
    """
    if not 0 < records * epsilon < math.inf:
        return 0.0
    return min(MOST_BETWEEN_RUNS, math.pow(records * epsilon / labels, -2 / 3))


@dataclass(frozen=True)
class Usefulness:
    """The synthetic data's place, in accuracy, between the best control and the private records."""

    control: str  # the best one, of CONTROLS
    accuracies: dict[
        str, float
    ]  # of SYNTHETIC_DATA, REAL and the controls that there are, in [0, 1]
    value: (
        float | None
    )  # in [0, BEST]; None: the private records are not shown to be better than the control
    low: float  # lower end of the interval at LEVEL, 0 without a value
    high: float  # upper end, BEST without a value
    between_runs: float  # the standard deviation between runs that the interval reckons with
    strength: (
        float | None
    )  # C of the linear probe on the synthetic data, the median over the seeds; None: no probe

    def sentence(self, classifier: str, noun: str) -> str:
        """Say it in a sentence, of data that `classifier` was trained on."""
        synthetic, control, real = (
            100 * self.accuracies[name] for name in (SYNTHETIC_DATA, self.control, REAL)
        )
        of = (
            f"of 10 ({100 * LEVEL:g} % interval {self.low:.1f} to {self.high:.1f}, other runs of "
            "the recipe included)"
        )
        grade = "not to be graded" if self.value is None else f"{self.value:.1f} {of}"
        strength = "" if self.strength is None else f", C = {self.strength:g},"
        return (
            f"{grade}: trained on the synthetic data, {classifier}{strength} labels "
            f"{synthetic:.1f} % of the test {noun} rightly, trained on the private records "
            f"{real:.1f} %; the best control, {WORDS[self.control]}, gives {control:.1f} %."
        )


def usefulness(by_set: BySet, labels: Labels, between: float) -> Usefulness | None:
    """Grade the synthetic data by one classifier's results.

    Returns None if it was not trained on the private records.

    `between` is the standard deviation between runs. The interval is that of the linearised ratio,
    as in `compare_with_controls`.

    Guarantee: none. The result is confidential.
    """
    if REAL not in by_set:
        return None
    ours = by_set[SYNTHETIC_DATA].right
    real = by_set[REAL].right
    controls = {name: by_set[name].right for name in CONTROLS if name in by_set}
    controls[CHANCE] = np.broadcast_to(labels == np.bincount(labels).argmax(), ours.shape)
    best = max(controls, key=lambda name: float(controls[name].mean()))
    control = controls[best]
    strengths = by_set[SYNTHETIC_DATA].strengths
    accuracies = {
        name: float(right.mean())
        for name, right in ({SYNTHETIC_DATA: ours, REAL: real} | controls).items()
    }
    span = accuracies[REAL] - accuracies[best]
    value = None
    low = 0.0
    high = BEST
    # only if the private records are shown to be better does a place between the two mean anything
    if compare_with_controls(real, control).low > 0:
        share = (accuracies[SYNTHETIC_DATA] - accuracies[best]) / span
        error = compare_with_controls(
            ours, control + share * (real.astype(np.float64) - control), between_runs=between
        )
        half = (error.high - error.low) / 2 / span
        value, low, high = (BEST * min(max(share + side, 0.0), 1.0) for side in (0.0, -half, half))
    strength = float(np.median(strengths)) if strengths else None
    return Usefulness(best, accuracies, value, low, high, between, strength)


@dataclass(frozen=True)
class Beside:
    """A share of the synthetic data beside those of private records and un-evolved samples.

    Shares are in [0, 1].
    """

    synthetic: float
    real: float | None  # None: the private records cannot be read
    unevolved: float | None = None

    @property
    def value(self) -> float | None:
        """The share by that of the private records, in [0, BEST], or None without them."""
        return BEST * min(self.synthetic / self.real, 1.0) if self.real else None


def fidelity_of(measures: Values) -> Beside | None:
    """Return the coverages among one embedding's measures in metrics.json.

    Returns None if there are too few samples.
    """
    if "coverage" not in measures:
        return None
    real, unevolved = (
        measures["controls"].get(name, {}).get("coverage") for name in (REAL, UNEVOLVED)
    )
    return Beside(measures["coverage"], real, unevolved)


def variety_of(synthetic: Vectors, private: Vectors, seed: int) -> Beside:
    """Return the shares of different samples among equally many of both sets, (n, d) and (r, d).

    At most COMPARED are taken.

    A sample is different if none that was counted before it lies nearer than NEAR times the median
    distance of pairs of private records.

    Guarantee: none. The result is confidential.
    """
    rng = generator(seed, "evaluation/variety")
    count = min(len(synthetic), len(private), COMPARED)
    one, other = (
        private[rng.integers(len(private), size=PAIRS)].astype(np.float64) for _ in range(2)
    )
    near = NEAR * float(np.median(np.linalg.norm(one - other, axis=1)))
    ours, real = (
        _share_apart(each[rng.permutation(len(each))[:count]], near)
        for each in (synthetic, private)
    )
    return Beside(ours, real)


def _share_apart(vectors: Vectors, near: float) -> float:
    rows = vectors - vectors.mean(axis=0, dtype=np.float64)
    squares = np.square(rows).sum(axis=1)
    close = squares[:, None] + squares - 2 * (rows @ rows.T) <= near**2 + _ROUNDING * squares
    apart = np.zeros(len(rows), bool)
    for i, near_ones in enumerate(close):
        apart[i] = not near_ones[apart].any()
    return float(apart.mean())


@dataclass(frozen=True)
class Nearer:
    """The share of different synthetic samples that are nearest to a private record.

    They are nearer to it than to any of as many held-out samples.
    """

    share: float  # in [0, 1]; a half tells nothing
    low: float  # lower end of the interval at SURE
    high: float  # upper end
    records: int  # private records, and as many held-out samples


def nearer_private(synthetic: Vectors, private: Vectors, heldout: Vectors, seed: int) -> Nearer:
    """Compare synthetic vectors (n, d) with as many private (r, d) and held-out ones (m, d).

    They are drawn at random.

    The interval is Wilson's, with as many trials as there are records that are nearest to a sample,
    weighed by how many they are nearest to (Kish's effective number): samples near one record are
    no independent trials.

    Guarantee: none. The result is confidential.
    """
    rng = generator(seed, "evaluation/nearer")
    count = min(len(private), len(heldout))
    rows = np.concatenate([each[rng.permutation(len(each))[:count]] for each in (private, heldout)])
    order = rng.permutation(2 * count)  # so that a tie between the two has no favourite
    records = order[nearest(synthetic, rows[order])[:, 0]]
    share = float((records < count).mean())
    weights = np.bincount(records).astype(np.float64)
    trials = weights.sum() ** 2 / np.square(weights).sum()
    z = NormalDist().inv_cdf((1 + SURE) / 2)
    middle = (share + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = (
        z * math.sqrt(share * (1 - share) / trials + z**2 / (4 * trials**2)) / (1 + z**2 / trials)
    )
    return Nearer(share, float(max(middle - half, 0.0)), float(min(middle + half, 1.0)), count)


@dataclass(frozen=True)
class Grade:
    """All that a run is graded by. What was not measured is None. Confidential."""

    noun: str  # what people call the samples
    classifier: str = ""  # by which usefulness is measured
    usefulness: Usefulness | None = None
    fidelity: Beside | None = None  # coverage under the first embedding
    variety: Beside | None = None
    privacy: Nearer | None = None

    def lines(self, advice: str) -> list[tuple[str, str]]:
        """Return (name, sentence) of each line. The last is `advice`, unless that is empty."""
        noun = self.noun
        texts = {"next": advice}
        if self.usefulness is not None:
            texts["usefulness"] = self.usefulness.sentence(self.classifier, noun)
        one = self.fidelity
        if one is not None:
            others = {"un-evolved ones": one.unevolved, "private records": one.real}
            beside = "".join(
                f", {words} to {100 * share:.0f} %"
                for words, share in others.items()
                if share is not None
            )
            near = f"synthetic {noun} come near to {100 * one.synthetic:.0f} % of the real {noun}"
            texts["fidelity"] = f"{_of_ten(one)}{near}{beside} (coverage)."
        one = self.variety
        if one is not None:
            differ = (
                f"{100 * one.synthetic:.0f} % of the synthetic {noun} differ clearly from all "
                "others"
            )
            texts["variety"] = f"{_of_ten(one)}{differ}" + (
                "." if one.real is None else f", of as many private records {100 * one.real:.0f} %."
            )
        nearer = self.privacy
        if nearer is not None:
            interval = (
                f"{100 * SURE:g} % interval {100 * nearer.low:.0f} to {100 * nearer.high:.0f}"
            )
            texts["privacy"] = (
                f"{100 * nearer.share:.0f} % of the different synthetic {noun} lie nearer to a "
                f"private record than to any of as many held-out {noun} ({interval}; 50 % tells "
                "nothing)."
            )
        return [(name, texts[name]) for name in LINES if texts.get(name)]

    def to_dict(self, advice: str) -> Values:
        """Return the values as docs/evaluation.md has them."""
        parts = {name: getattr(self, name) for name in LINES[:-1]}
        values = {name: {**vars(part)} for name, part in parts.items() if part is not None}
        for name in ("fidelity", "variety"):
            if name in values:
                values[name] |= {"value": parts[name].value}
        return values | {"next": advice, "lines": [list(line) for line in self.lines(advice)]}


def _of_ten(part: Beside) -> str:
    return "" if part.value is None else f"{part.value:.1f} of 10: "
