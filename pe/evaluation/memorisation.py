"""Copies: generated samples that are private records, or lie nearer to one than chance brings samples. Confidential."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.samples import Samples, distinct, generator
from pe.errors import PEError
from pe.evaluation.audit import lower, upper
from pe.evaluation.classifiers import beyond_chance
from pe.evaluation.features import Reals, Seen
from pe.evaluation.labelled import Labelled
from pe.evaluation.methods import Mask, methods_of
from pe.fit.trainer import MODEL, Fitted, HasRecordLoss
from pe.nearest import nearest
from pe.planning.build import set_up
from pe.plugins.protocols import Vectors
from pe.privacy.accounting import epsilon
from pe.privacy.calibration import most_hits
from pe.privacy.data_set import for_a_record
from pe.privacy.words import power
from pe.private.dataset import sample_digest
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import has_journal

NEIGHBOURS = 50
"""Private records around the nearest one, by whose mean distance nearness is judged (Carlini et al. 2023, §5.2)."""
NEAR = 0.25
"""A near copy lies at less than this share of that mean from the nearest record."""


@dataclass(frozen=True)
class Copies:
    """How many generated samples are copies of private records. Confidential.

    What shows nothing of a record, such as an image of one colour, is never counted.

    Attributes:
        noun: what people call the samples.
        equality: how exact copies are equal to a record, in words.
        generated: generated samples.
        exact: those equal to a private record.
        near: the others that are near copies.
        heldout: held-out samples.
        heldout_near: near copies among them: what chance, or the like of a record in the test set, brings.
        beyond_chance: whether near copies are more than held-out samples explain: Fisher's exact test on distinct
            samples, see `beyond_chance`.
    """

    noun: str
    equality: str
    generated: int
    exact: int
    near: int
    heldout: int
    heldout_near: int
    beyond_chance: bool

    @property
    def warnings(self) -> list[str]:
        """What the owner must know before anything is shared, one sentence each."""
        made, told = f"{self.generated:,} generated {self.noun}", []
        if self.exact:
            told.append(
                f"{self.exact:,} of {made} are private records, {self.equality}: find out why before you share them."
            )
        if self.beyond_chance:
            told.append(
                f"{self.near:,} of {made} are near copies of private records, more than chance brings "
                f"({self.heldout_near:,} of {self.heldout:,} held-out {self.noun} are as near): look at the nearest "
                "pairs before you share them."
            )
        return told

    def to_dict(self) -> dict[str, Any]:
        """As docs/evaluation.md has it."""
        shown = {key: value for key, value in vars(self).items() if key not in ("noun", "equality")}
        return shown | {"rule": {"share": NEAR, "neighbors": NEIGHBOURS}, "warnings": self.warnings}


def count_copies(
    generated: Samples, private: Samples, heldout: Samples, made_to_private: Reals, heldout_to_private: Reals
) -> Copies:
    """Count exact and near copies.

    Guarantee: none. The result is confidential.

    Args:
        generated: n samples.
        private: the private records, r ≥ 1.
        heldout: m samples that no run has seen.
        made_to_private: float64 (n, min(r, NEIGHBOURS)), ascending: distances of each to its nearest records.
        heldout_to_private: the same of held-out samples.
    """
    methods = methods_of(generated)
    exact = are_among(generated, private)
    near = _near(made_to_private) & methods.shows(generated) & ~exact
    unseen = _near(heldout_to_private) & methods.shows(heldout)
    first, _ = distinct(generated)
    others = first[~exact[first]]
    beyond = beyond_chance(int(near[others].sum()), len(others), int(unseen.sum()), len(unseen))
    return Copies(
        noun=generated.noun,
        equality=methods.equality,
        generated=len(generated),
        exact=int(exact.sum()),
        near=int(near.sum()),
        heldout=len(heldout),
        heldout_near=int(unseen.sum()),
        beyond_chance=beyond,
    )


def are_among(samples: Samples, others: Samples) -> Mask:
    """Which of n samples equal one of `others`, bool (n,); what shows nothing of a record never counts."""
    known = set(map(sample_digest, others.array))
    equal = np.array([sample_digest(sample) in known for sample in samples.array], dtype=bool)
    return equal & methods_of(samples).shows(samples)


def _near(distances: Reals) -> Mask:
    near: Mask = distances[:, 0] < NEAR * distances.mean(axis=1)
    return near


# Memorisation: whether generated samples lie nearer to the private records than real samples do that no run has seen.
#
# Everything here is computed from private records without noise: it is internal.


LEVELS = np.linspace(0, 1, 101)
PAIRS = 24
_ROWS, _RIM = 4096, 1e-9


@dataclass(frozen=True)
class Membership:
    """How well the distance to the nearest generated sample tells private records from held-out ones.

    Attributes:
        auc: chance that a private record lies nearer than a held-out one (ties count half); ½ says nothing leaks here.
        low: lower end of the interval.
        high: upper end.
        level: the interval's confidence.
    """

    auc: float
    low: float
    high: float
    level: float


@dataclass(frozen=True, eq=False)
class Memorisation:
    """Nearest distances, float64, one per sample of the set named first. Confidential.

    Attributes:
        generated_to_private: from each generated sample to its nearest private record.
        heldout_to_private: from each held-out sample; what the former would be without memorisation.
        private_to_generated: from each private record to its nearest generated sample.
        heldout_to_generated: from each held-out sample.
        membership: of private records by the last two.
        pairs: the PAIRS nearest, (generated, private), int64 (≤ PAIRS, 2), each generated and each private sample once.
        pair_distances: of them, ascending.
        copies: of private records among the generated samples.
    """

    generated_to_private: Reals
    heldout_to_private: Reals
    private_to_generated: Reals
    heldout_to_generated: Reals
    membership: Membership
    pairs: npt.NDArray[np.int64]
    pair_distances: Reals
    copies: Copies

    def to_dict(self) -> dict[str, Any]:
        """As docs/evaluation.md has it."""
        sizes = {"generated": self.generated_to_private, "private": self.private_to_generated}
        sizes["heldout"] = self.heldout_to_private
        distances = ("generated_to_private", "heldout_to_private", "private_to_generated", "heldout_to_generated")
        pairs = zip(self.pairs.tolist(), self.pair_distances.tolist(), strict=True)
        return {
            "samples": {name: len(values) for name, values in sizes.items()},
            **{name: _cdf(getattr(self, name)) for name in distances},
            "membership": vars(self.membership),
            "copies": self.copies.to_dict(),
            "nearest_pairs": {
                "pairs": [{"generated": made, "private": record, "distance": apart} for (made, record), apart in pairs]
            },
        }


def memorisation(generated: Samples, private: Samples, heldout: Samples, seen: Seen) -> Memorisation:
    """Distances between generated, private and held-out samples under the embedding of `seen`.

    Held-out samples must come from the same source as the private ones, and no run may have seen them.

    Guarantee: none. The result is confidential.

    Raises:
        ContractError: a vector that is not finite.
    """
    made, records, unseen = map(seen.vectors, (generated, private, heldout))
    around = min(NEIGHBOURS, len(records))
    nearest_record, around_made = _nearest(made, records, around)
    around_unseen = _nearest(unseen, records, around)[1]
    to_private = around_made[:, 0]
    to_generated, held_to_generated = _nearest(records, made)[1][:, 0], _nearest(unseen, made)[1][:, 0]
    pairs = _closest_pairs(nearest_record, to_private)
    return Memorisation(
        generated_to_private=to_private,
        heldout_to_private=around_unseen[:, 0],
        private_to_generated=to_generated,
        heldout_to_generated=held_to_generated,
        membership=membership(to_generated, held_to_generated),
        pairs=pairs,
        pair_distances=to_private[pairs[:, 0]],
        copies=count_copies(generated, private, heldout, around_made, around_unseen),
    )


def membership(members: Reals, others: Reals, level: float = 0.95) -> Membership:
    """The area under the ROC curve of 'near, hence a member', with Newcombe's interval.

    Method 5 of Newcombe (2006): Hanley and McNeil's variance taken at the unknown area itself, which keeps its
    level near 0 and 1 too, where the usual one shrinks to nothing. Records of one person are not independent; the
    interval is then too narrow.

    Args:
        members: distances of private records, n ≥ 1.
        others: distances of held-out ones, m ≥ 1.
        level: of confidence, in (0, 1).
    """
    from scipy.stats import rankdata

    n, m = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    auc = 1 - (float(ranks[:n].sum()) - n * (n + 1) / 2) / (n * m)
    return Membership(auc, *_interval(auc, n, m, NormalDist().inv_cdf((1 + level) / 2)), level)


def _interval(auc: float, n: int, m: int, z: float) -> tuple[float, float]:
    """All areas a from which `auc` is at most z standard errors away."""
    from scipy.optimize import brentq

    half = (n + m) / 2 - 1

    def excess(a: float) -> float:
        variance = a * (1 - a) * (1 + half * ((1 - a) / (2 - a) + a / (1 + a))) / (n * m)
        return abs(auc - a) - z * math.sqrt(max(variance, 0.0))

    inside = min(max(auc, _RIM), 1 - _RIM)  # at 0 and 1 themselves the variance is 0
    low = brentq(excess, 0.0, inside) if excess(0.0) > 0 else 0.0
    high = brentq(excess, inside, 1.0) if excess(1.0) > 0 else 1.0
    return float(low), float(high)


def _nearest(queries: Vectors, candidates: Vectors, count: int = 1) -> tuple[npt.NDArray[np.int64], Reals]:
    """The nearest candidate of each query, and the distances of its `count` nearest: float64 (n, count), ascending."""
    found = nearest(queries, candidates, count)
    distances = np.empty(found.shape)
    for start in range(0, len(queries), _ROWS):
        part = slice(start, start + _ROWS)
        for rank in range(count):
            apart = queries[part].astype(np.float64) - candidates[found[part, rank]]
            distances[part, rank] = np.sqrt(np.square(apart).sum(axis=1))
    return found[:, 0], distances


def _closest_pairs(records: npt.NDArray[np.int64], distances: Reals) -> npt.NDArray[np.int64]:
    """The PAIRS closest (generated, private), each private record with its closest generated sample only."""
    order = np.argsort(distances, kind="stable")
    _, first = np.unique(records[order], return_index=True)
    rows = order[np.sort(first)[:PAIRS]]
    return np.stack([rows, records[rows]], axis=1)


def _cdf(distances: Reals) -> dict[str, Any]:
    """The distances' quantiles at LEVELS: their distribution function, with the axes changed over."""
    return {"levels": LEVELS.tolist(), "quantiles": np.quantile(distances, LEVELS).tolist()}


# The membership attack by loss: whether a fitted model tells its private records from held-out ones. Confidential.
#
# The model's own loss on a sample is compared with a threshold: what it knows better is called a member (Yeom et al.
# 2018). Everything here is computed from private records without noise.


ALARMS = 0.1
"""The share of held-out samples that the attack may take for members."""
LEAST, MOST = 20, 500
"""Of members, and as many held-out samples, that the attack takes."""
LEVEL = 0.95

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LossAttack:
    """What an attack by loss found. Confidential.

    Attributes:
        each: members, and as many held-out samples.
        alarms: held-out samples that it took for members.
        hits: members that it found.
        auc: the area under its ROC curve.
    """

    each: int
    alarms: int
    hits: int
    auc: Membership

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's, of the share of members that are found."""
        error = (1 - LEVEL) / 2
        return float(lower(self.hits, self.each, error)), float(upper(self.hits, self.each, error))

    @property
    def most_alarms(self) -> float:
        """The largest share of alarms that its threshold may have on all held-out samples there could be."""
        return float(upper(self.alarms, self.each, (1 - LEVEL) / 2))

    def to_dict(self) -> dict[str, Any]:
        """As docs/evaluation.md has it."""
        low, high = self.interval
        hits = {"share": self.hits / self.each, "low": low, "high": high, "level": LEVEL}
        return {"each": self.each, "fpr": self.alarms / self.each, "tpr": hits, "auc": vars(self.auc)}


def loss_attack(members: Reals, others: Reals) -> LossAttack:
    """The attack at the threshold under which ALARMS of the held-out samples lie, at most.

    Args:
        members: losses of private records, n ≥ 1.
        others: of held-out samples, n.
    """
    threshold = np.sort(others)[int(ALARMS * len(others))]
    alarms, hits = (int((losses < threshold).sum()) for losses in (others, members))
    return LossAttack(len(members), alarms, hits, membership(members, others, LEVEL))


def attack_model(run: Run, recipe: Recipe, private: Labelled, heldout: Labelled) -> tuple[dict[str, Any] | None, str]:
    """Attack the model that a run fitted.

    Args:
        run: whose.
        recipe: the run's.
        private: its records.
        heldout: samples of the same source that no run has seen.

    Returns:
        What was found, as docs/evaluation.md has it, or None; and a sentence on why there is nothing, empty where
        there is, or where the run fitted no model.

    Raises:
        PEError: the model is damaged.
    """
    folder = run.folder / MODEL
    if not folder.is_dir():
        return None, ""
    fitted = Fitted.read(folder)
    why = "The membership attack on the fitted model is left out: "
    if fitted.kind != recipe.api.kind:
        return None, f"{why}the run '{fitted.run}' fitted it on its own records, so evaluate that."
    if not has_journal(run):  # its recipe may name code, and its model may be anybody's
        return None, f"{why}the run has no journal (purged, or not copied), so that it may be somebody else's."
    api, unknown = set_up("pe.adapters", recipe.api)
    if api is None:
        return None, why + unknown
    if not isinstance(api, HasRecordLoss):
        return None, f"{why}'{fitted.kind}' has no loss of its own on a record."
    chosen = [
        part.take(rows) for part, rows in zip((private, heldout), _alike(private, heldout, recipe.seed), strict=True)
    ]
    if len(chosen[0]) < LEAST:
        return None, (
            f"{why}it takes {LEAST} records, and as many held-out {private.samples.noun} of the same labels, and there "
            f"are {len(chosen[0])}."
        )
    try:
        losses = [_losses(api, run, part.samples, part.labels, fitted.classes) for part in chosen]
    except PEError as error:
        return None, f"{why}{error}"
    attack = loss_attack(*losses)
    return {"model": fitted.kind, **attack.to_dict(), **_allowed(attack, fitted, recipe)}, ""


def _losses(
    api: HasRecordLoss, run: Run, samples: Samples, labels: npt.NDArray[np.int32], classes: tuple[str, ...]
) -> Reals:
    """A loss that is not finite counts as the largest."""
    found = api.record_losses(run.folder / MODEL, samples.array, [classes[label] for label in labels])
    return np.nan_to_num(np.asarray(found, np.float64), nan=np.inf, posinf=np.inf, neginf=-np.inf)


def _alike(private: Labelled, heldout: Labelled, seed: int) -> tuple[Indices, Indices]:
    """As many rows of the one as of the other, label by label, drawn by `seed`: MOST at most."""
    rng = generator(seed, "evaluation/loss-attack")
    labels = np.unique(private.labels)
    rows: tuple[list[Indices], list[Indices]] = ([], [])
    sizes = [min(int((each.labels == label).sum()) for each in (private, heldout)) for label in labels]
    share = min(1.0, MOST / max(1, sum(sizes)))
    for label, size in zip(labels, sizes, strict=True):
        for chosen, each in zip(rows, (private, heldout), strict=True):
            chosen.append(np.sort(rng.permutation(np.flatnonzero(each.labels == label))[: int(share * size)]))
    members, others = (np.concatenate([np.zeros(0, dtype=np.int64), *chosen]) for chosen in rows)
    return members, others


def _allowed(attack: LossAttack, fitted: Fitted, recipe: Recipe) -> dict[str, Any]:
    """What the fit's guarantee allows of hits, and a warning where there are more, beyond what chance explains.

    A member is told from another sample of the same source: as if one were replaced by the other.
    """
    if not fitted.holds:
        return {"allowed": None, "warnings": []}
    delta = recipe.privacy.delta
    spent = epsilon(fitted.releases, delta)
    replaced = [for_a_record(release) for release in fitted.releases]
    at, most = most_hits(replaced, (ALARMS, attack.most_alarms), delta)
    by_epsilon = power(epsilon(replaced, delta), delta, ALARMS)
    told = {"epsilon": spent, "delta": delta, "by_epsilon": by_epsilon, "tpr": at}
    warnings = []
    if attack.interval[0] > most:
        warnings.append(
            f"The fitted model tells {attack.hits / attack.each:.0%} of its private records from held-out ones at "
            f"{ALARMS:.0%} false alarms, and the fit's guarantee allows {at:.0%}: the test set is of another source, "
            "or the guarantee does not hold."
        )
    return {"allowed": told, "warnings": warnings}
