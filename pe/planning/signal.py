"""Whether the votes will stand out of the noise: signal to noise of the histograms, by the declared size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, erfc, exp, floor, pi, sqrt

from pe.recipe.schema import Recipe
from pe.steps import Plan, Step

MOST_NOISE = 0.5
"""The largest share of the parents' weight that may be noise without a warning, if several votes follow each other."""

ENOUGH_ONCE = 0.25
"""The votes of an average candidate, over the noise on it, with which a run's only vote is not warned of: what the
planner goes by (pe/planning/choice.py), and what was tried (benchmarks/results/choice.md)."""

FEW = 5.0
"""Records of a label, over the noise of one histogram with the whole budget, below which evolving drawn digits gave no
more than samples that were never voted for (benchmarks/results/choice.md)."""

MANY_NEIGHBORS = 32
"""The most votes per record that a warning proposes; the planner chooses no more."""


@dataclass(frozen=True)
class Signal:
    """What an iteration's histogram can tell from its noise, if the declared records spread evenly.

    Attributes:
        candidates: members of S_{t-1}.
        noise_multiplier: σ over the sensitivity.
        sigma: standard deviation of the noise on a candidate, in votes.
        threshold: H, in votes.
        votes: votes per candidate, over all labels; None: no declared size.
        by_label: votes per candidate of each label; empty: not known label by label.
        once: whether it is the run's only vote.
    """

    candidates: int
    noise_multiplier: float
    sigma: float
    threshold: float
    votes: float | None
    by_label: tuple[float, ...]
    once: bool

    @property
    def to_noise(self) -> float | None:
        """Votes of the label that has the fewest, over the noise; None: not declared, or no noise."""
        return None if self.fewest is None or not self.sigma else self.fewest / self.sigma

    @property
    def most_noise(self) -> float:
        """The largest noise share without a warning: MOST_NOISE; of an only vote that of ENOUGH_ONCE, if it is more."""
        if not self.sigma:
            return MOST_NOISE
        sigmas = self.threshold / self.sigma
        enough = _excess(sigmas) / _excess(sigmas - ENOUGH_ONCE) if self.once and _excess(sigmas) else 0.0
        return max(MOST_NOISE, enough)

    @property
    def fewest(self) -> float | None:
        """Votes per candidate of the label that has the fewest."""
        return min(self.by_label, default=self.votes)

    def noise_share(self, votes: float) -> float:
        """How much of the weight by which parents are chosen is noise, in [0, 1].

        The expected weight E[max(noise − H, 0)] of a candidate without votes, over that of one with `votes`.
        """
        if not self.sigma:
            return 0.0
        empty = _excess(self.threshold / self.sigma)
        return empty / _excess((self.threshold - votes) / self.sigma) if empty else 0.0

    def votes_needed(self) -> float:
        """The least votes per candidate without a warning."""
        low, high, most = 0.0, abs(self.threshold) + 2 * self.sigma, self.most_noise
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.noise_share(middle) > most else (low, middle)
        return high

    def passing(self, votes: float) -> float:
        """How many candidates are expected over the threshold if each has `votes`."""
        if not self.sigma:
            return float(self.candidates) * (votes > self.threshold)
        return self.candidates * _tail((self.threshold - votes) / self.sigma)


def votes_cast(records: int, units: int | None, neighbors: int) -> float:
    """The most votes that `records` records cast: a unit's have L2 norm 1, so √k where it votes for k candidates.

    Args:
        records: declared.
        units: of privacy, declared; None: each record is its own.
        neighbors: q.
    """
    return sqrt(records * min(units or records, records) * neighbors)


def signal_of(recipe: Recipe, plan: Plan, step: Step, candidates: Sequence[int]) -> Signal:
    """The signal of iteration t's histogram; `candidates` are the members of S_{t-1} per label.

    Labels have records in the recipe's public proportions; where those are estimated, only the whole is known.
    """
    release, evolution, declared = step.release, recipe.evolution, recipe.private.declared_size
    sigma = release.sensitivity * release.noise_multiplier
    if declared is None:
        return Signal(
            candidates=sum(candidates),
            noise_multiplier=release.noise_multiplier,
            sigma=sigma,
            threshold=step.threshold,
            votes=None,
            by_label=(),
            once=len(plan.steps) == 1,
        )
    cast = votes_cast(declared, recipe.private.declared_units, evolution.neighbors)
    by_label: tuple[float, ...] = ()
    if evolution.estimate_label_sizes is None:
        sizes = evolution.label_sizes
        shares = [1.0 if sizes == "equal" else sizes[name] for name in plan.classes]
        by_label = tuple(cast * share / sum(shares) / m for share, m in zip(shares, candidates, strict=True))
    votes = cast / sum(candidates)
    return Signal(
        candidates=sum(candidates),
        noise_multiplier=release.noise_multiplier,
        sigma=sigma,
        threshold=step.threshold,
        votes=votes,
        by_label=by_label,
        once=len(plan.steps) == 1,
    )


def signal_warnings(recipe: Recipe, plan: Plan, signals: Sequence[Signal]) -> list[str]:
    """What is wrong with votes, noise and threshold, one sentence each; the worst iteration speaks for all."""
    known = [(signal, signal.votes) for signal in signals if signal.votes is not None]
    if not known:
        return []
    worst, votes = max(known, key=lambda pair: pair[0].noise_share(pair[1]))
    labels = len(plan.classes)
    if worst.noise_share(votes) > worst.most_noise:
        limit = min(signal.candidates * each / signal.votes_needed() for signal, each in known)
        return [_too_large(worst, votes, _divisible(limit, labels), labels, recipe.evolution.neighbors)]
    lowest, votes = min(known, key=lambda pair: pair[0].passing(pair[1]))
    if lowest.threshold > 0 and lowest.passing(votes) < labels:
        limit = _divisible(lowest.candidates * votes / lowest.threshold, labels)
        return [_too_high(lowest, votes, limit, labels * recipe.evolution.neighbors)]
    return _label_warnings(plan, signals)


def few_warnings(recipe: Recipe, plan: Plan, signals: Sequence[Signal]) -> list[str]:
    """Whether so few records vote that un-evolved samples, which need no budget, are as good."""
    declared, units = recipe.private.declared_size, recipe.private.declared_units
    if declared is None or not all(signal.sigma for signal in signals) or not signals:
        return []
    each = votes_cast(declared, units, 1) / len(plan.classes)
    sigma = 1 / sqrt(sum(1 / signal.sigma**2 for signal in signals))
    if each >= FEW * sigma:
        return []
    return [
        f"A label has about {each:,.3g} votes, fewer than {FEW:g} times the noise that one histogram with the whole "
        f"budget has (σ = {sigma:.3g}): over so few, samples that were never voted for have been as good "
        "(docs/plan.md), and they need no budget; take a larger epsilon, more records, or fewer labels."
    ]


def _divisible(population: float, labels: int) -> int:
    """The largest population up to `population` that the labels divide."""
    return floor(population) // labels * labels


def _too_large(signal: Signal, votes: float, limit: int, labels: int, neighbors: int) -> str:
    remedy = "no population is small enough, so take a larger epsilon, or fewer iterations or labels."
    if limit >= labels * neighbors:
        more = ceil(neighbors * (signal.votes_needed() / votes) ** 2)  # votes grow with √q
        fits = more <= MANY_NEIGHBORS and 2 * more <= signal.candidates // labels
        remedy = f"take a population of at most {limit}, {f'evolution.neighbors: {more}, ' * fits}or a larger epsilon."
    return (
        f"The population is too large for the private set: {votes:.2g} votes per candidate against noise of "
        f"σ = {signal.sigma:.3g} votes and a threshold of {signal.threshold:.3g}, so about "
        f"{signal.noise_share(votes):.0%} of the weight by which parents are chosen is noise; {remedy}"
    )


def _too_high(signal: Signal, votes: float, limit: int, least: int) -> str:
    remedy = f", or take a population of at most {limit}" if limit >= least else ""
    return (
        f"Hardly any candidate will be over the threshold of {signal.threshold:.3g} votes, with {votes:.2g} votes per "
        f"candidate and noise of σ = {signal.sigma:.3g}: lower the threshold{remedy}."
    )


def _label_warnings(plan: Plan, signals: Sequence[Signal]) -> list[str]:
    """Labels with so few records that their smallest population is too large already."""
    weak = {
        plan.classes[label]
        for signal in signals
        for label, votes in enumerate(signal.by_label)
        if signal.noise_share(votes) > signal.most_noise
    }
    return [
        f"Label '{name}' has too few private records for the noise, by evolution.label_sizes and declared_size: "
        "its parents will be chosen by noise, mostly."
        for name in plan.classes
        if name in weak
    ]


def _tail(x: float) -> float:
    """P(Z > x) of a standard normal Z."""
    return erfc(x / sqrt(2)) / 2


def _excess(x: float) -> float:
    """E[max(Z − x, 0)] of a standard normal Z; 0 from x = 8 on, where it is below 1e-16."""
    return max(exp(-x * x / 2) / sqrt(2 * pi) - x * _tail(x), 0.0) if x < 8 else 0.0
