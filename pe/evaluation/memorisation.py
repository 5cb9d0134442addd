"""Memorisation: do generated samples, or a fitted model, tell private from held-out records?

Everything here is computed from private records without noise: it is confidential.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pe.data.arrays import BoolArray, Float64Array, Int64Array
from pe.data.samples import Samples, distinct, generator, slices
from pe.errors import PEError
from pe.evaluation.audit import lower, upper
from pe.evaluation.features import CachedEmbedding
from pe.evaluation.methods import are_among, beyond_chance, methods_of
from pe.fit.trainer import MODEL, Fitted, HasRecordLoss
from pe.judgement.labelled import Labelled, Values
from pe.nearest import nearest
from pe.planning.named import check_named
from pe.planning.parts import set_up
from pe.plugins.protocols import Vectors
from pe.privacy.accounting import epsilon
from pe.privacy.calibration import most_hits
from pe.privacy.certificate_text import power
from pe.privacy.data_set import for_a_record
from pe.recipe.schema import Recipe
from pe.store.run import Run

NEIGHBOURS = 50
"""Number of nearest private records to which a sample's mean distance is taken (Carlini et al.
2023, §5.2)."""
NEAR = 0.25
"""A sample is a near copy if its nearest record is closer than this share of its mean distance to
NEIGHBOURS."""
PAIRS = 24
"""Nearest pairs that are shown."""
SURE = 0.99
"""Level of the interval of the share of samples that lie nearer to private records."""
LEVELS = np.linspace(0, 1, 101)

ALARMS = 0.1
"""Largest share of held-out samples that the attack by loss may take for members."""
LEAST = 20
MOST = 500
"""Fewest and most members, and as many held-out samples, from which the attack by loss is
measured."""
LEVEL = 0.95

_ROWS = 4096
_RIM = 1e-9
_ERROR = (1 - LEVEL) / 2

Indices = Int64Array


@dataclass(frozen=True)
class Copies:
    """Counts of generated samples that are copies of private records. Confidential.

    A sample that shows nothing of a record, such as an image of one colour, never counts.
    """

    noun: str  # what people call the samples
    equality: str  # how exact copies are equal to a record, in words
    generated: int  # samples
    exact: int  # those equal to a private record
    exact_beyond_chance: bool  # True if there are some, and held-out samples do not explain so many
    near: int  # the others that are near copies
    heldout: int  # held-out samples
    heldout_near: (
        int  # near copies among held-out samples: by chance, or because they resemble records
    )
    beyond_chance: (
        bool  # True if held-out samples do not explain so many near copies, equal ones counted once
    )

    @property
    def warnings(self) -> list[str]:
        """Sentences that the owner is to read before anything is shared."""
        count = f"{self.generated:,} generated {self.noun}"
        warnings = []
        if self.exact_beyond_chance:
            warnings.append(
                f"{self.exact:,} of {count} are private records, {self.equality}. Find out why "
                "before you share them."
            )
        if self.beyond_chance:
            warnings.append(
                f"{self.near:,} of {count} are near copies of private records, more than chance "
                f"explains ({self.heldout_near:,} of {self.heldout:,} held-out {self.noun} are as "
                "near). Look at the nearest pairs before you share them."
            )
        return warnings

    def to_dict(self) -> Values:
        """Return the values as docs/evaluation.md has them."""
        values = {
            key: value for key, value in vars(self).items() if key not in ("noun", "equality")
        }
        return values | {
            "rule": {"share": NEAR, "neighbors": NEIGHBOURS},
            "warnings": self.warnings,
        }


def count_copies(
    synthetic: Samples,
    private: Samples,
    heldout: Samples,
    to_private: Float64Array,
    heldout_to_private: Float64Array,
) -> Copies:
    """Count exact and near copies of r ≥ 1 records among n generated samples.

    Near copies are counted among m held-out samples, too.

    Distances are to each sample's nearest records, ascending: (n, min(r, NEIGHBOURS)), (m, min(r,
    NEIGHBOURS)).
    """
    methods = methods_of(synthetic)
    exact = are_among(synthetic, private)
    unseen_exact = are_among(heldout, private)
    near = _near(to_private) & methods.shows(synthetic) & ~exact
    unseen = _near(heldout_to_private) & methods.shows(heldout) & ~unseen_exact
    first, _ = distinct(synthetic)
    # equal samples count once, else one record copied often would look like many trials
    others = first[~exact[first]]
    beyond = _beyond(near[others], unseen)
    if methods.equal_by_chance:
        # Held-out samples may equal records too, so these are as near as near copies.
        beyond = beyond and _beyond((near | exact)[first], unseen | unseen_exact)
    return Copies(
        noun=synthetic.noun,
        equality=methods.equality,
        generated=len(synthetic),
        exact=int(exact.sum()),
        exact_beyond_chance=bool(exact.any())
        and (not methods.equal_by_chance or _beyond(exact[first], unseen_exact)),
        near=int(near.sum()),
        heldout=len(heldout),
        heldout_near=int(unseen.sum()),
        beyond_chance=beyond,
    )


def _beyond(ours: BoolArray, unseen: BoolArray) -> bool:
    return beyond_chance(int(ours.sum()), len(ours), int(unseen.sum()), len(unseen))


def _near(distances: Float64Array) -> BoolArray:
    near: BoolArray = distances[:, 0] < NEAR * distances.mean(axis=1)
    return near


@dataclass(frozen=True)
class Membership:
    """The result of a test that takes the nearer samples for private records.

    The interval has confidence `level`.
    """

    # chance that a private record lies nearer than a held-out one (ties count half); ½ says nothing
    # leaks here
    auc: float
    low: float
    high: float
    level: float


def membership(members: Float64Array, others: Float64Array, level: float = LEVEL) -> Membership:
    """Return the area under the ROC curve of the test 'near, hence a member'.

    It uses distances of n, m ≥ 1 samples.

    The interval is method 5 of Newcombe (2006): Hanley and McNeil's variance taken at the unknown
    area itself, which keeps its level near 0 and 1 too, where the usual interval shrinks to
    nothing. It is too narrow if several records are of one person, and so not independent.
    """
    from scipy.optimize import brentq
    from scipy.stats import rankdata

    n = len(members)
    m = len(others)
    ranks = rankdata(np.concatenate([members, others]))
    auc = 1 - (float(ranks[:n].sum()) - n * (n + 1) / 2) / (n * m)
    half = (n + m) / 2 - 1
    z = NormalDist().inv_cdf((1 + level) / 2)

    def excess(a: float) -> float:
        """Return how much farther `auc` is from the area `a` than z standard errors."""
        variance = a * (1 - a) * (1 + half * ((1 - a) / (2 - a) + a / (1 + a))) / (n * m)
        return abs(auc - a) - z * math.sqrt(max(variance, 0.0))

    inside = min(max(auc, _RIM), 1 - _RIM)  # at 0 and 1 themselves the variance is 0
    low = brentq(excess, 0.0, inside) if excess(0.0) > 0 else 0.0
    high = brentq(excess, inside, 1.0) if excess(1.0) > 0 else 1.0
    return Membership(auc, float(low), float(high), level)


@dataclass(frozen=True, eq=False)
class Memorisation:
    """Distances, float64, from each sample of one set to the nearest one of another, by field name.

    Confidential.
    """

    generated_to_private: Float64Array
    heldout_to_private: Float64Array  # what generated_to_private would be without memorisation
    private_to_generated: Float64Array
    heldout_to_generated: Float64Array
    membership: Membership  # of private records, by private_to_generated and heldout_to_generated
    # the nearest, (generated, private), int64 (≤ PAIRS, 2), each generated and each private sample
    # once
    pairs: Indices
    copies: Copies  # of private records among the generated samples

    @property
    def pair_distances(self) -> Float64Array:
        """Distances of the pairs, ascending."""
        return self.generated_to_private[self.pairs[:, 0]]

    def to_dict(self) -> Values:
        """Return the values as docs/evaluation.md has them. Distances as quantiles at LEVELS."""
        names = (
            "generated_to_private",
            "heldout_to_private",
            "private_to_generated",
            "heldout_to_generated",
        )
        distances = {name: getattr(self, name) for name in names}
        samples = {name.partition("_")[0]: values for name, values in distances.items()}
        pairs = zip(self.pairs.tolist(), self.pair_distances.tolist(), strict=True)
        return {
            "samples": {name: len(values) for name, values in samples.items()},
            **{
                name: {"levels": LEVELS.tolist(), "quantiles": np.quantile(values, LEVELS).tolist()}
                for name, values in distances.items()
            },
            "membership": vars(self.membership),
            "copies": self.copies.to_dict(),
            "nearest_pairs": {
                "pairs": [
                    {"generated": one, "private": record, "distance": far}
                    for (one, record), far in pairs
                ]
            },
        }


def memorisation(
    synthetic: Samples, private: Samples, heldout: Samples, embedding: CachedEmbedding
) -> Memorisation:
    """Measure distances between generated, private and held-out samples under an embedding.

    Held-out samples must come from the same source as the private ones, and no run may have seen
    them.

    Guarantee: none. The result is confidential.
    """
    ours, records, unseen = map(embedding.vectors, (synthetic, private, heldout))
    around = min(NEIGHBOURS, len(records))
    nearest_record, to_private = _nearest(ours, records, around)
    heldout_to_private = _nearest(unseen, records, around)[1]
    to_generated, heldout_to_generated = (
        _nearest(each, ours)[1][:, 0] for each in (records, unseen)
    )
    return Memorisation(
        generated_to_private=to_private[:, 0],
        heldout_to_private=heldout_to_private[:, 0],
        private_to_generated=to_generated,
        heldout_to_generated=heldout_to_generated,
        membership=membership(to_generated, heldout_to_generated),
        pairs=_closest_pairs(nearest_record, to_private[:, 0]),
        copies=count_copies(synthetic, private, heldout, to_private, heldout_to_private),
    )


def _nearest(queries: Vectors, candidates: Vectors, count: int = 1) -> tuple[Indices, Float64Array]:
    """Return each query's nearest candidate, and distances to its `count` nearest.

    Distances are ascending, float64 (n, count).
    """
    indices = nearest(queries, candidates, count)
    distances = np.empty(indices.shape)
    for part in slices(len(queries), _ROWS):
        for rank in range(count):
            difference = queries[part].astype(np.float64) - candidates[indices[part, rank]]
            distances[part, rank] = np.sqrt(np.square(difference).sum(axis=1))
    return indices[:, 0], distances


def _closest_pairs(records: Indices, distances: Float64Array) -> Indices:
    """Return the PAIRS closest (generated, private) indices, nearest first.

    No private record is in two pairs.
    """
    order = np.argsort(distances, kind="stable")
    _, first = np.unique(records[order], return_index=True)
    rows = order[np.sort(first)[:PAIRS]]
    return np.stack([rows, records[rows]], axis=1)


@dataclass(frozen=True)
class Nearer:
    """The share of different synthetic samples that are nearest to a private record.

    They are nearer to it than to any of as many held-out samples.
    """

    share: float  # in [0, 1]; a half tells nothing
    low: float  # lower end of the interval at SURE
    high: float  # upper end
    records: int  # private records, and as many held-out samples

    def sentence(self, noun: str) -> str:
        """Return it as a sentence on samples that people call `noun`."""
        return (
            f"{self.share:.0%} of the different synthetic {noun} lie nearer to a private record "
            f"than to any of as many held-out {noun} ({SURE:.0%} interval {self.low:.0%} to "
            f"{self.high:.0%}; chance gives 50%)."
        )


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
class LossAttack:
    """The result of a membership attack by a fitted model's loss. Confidential."""

    each: int  # members, and as many held-out samples
    alarms: int  # held-out samples that it took for members
    hits: int  # members that it found
    auc: Membership  # the area under its ROC curve

    @property
    def interval(self) -> tuple[float, float]:
        """Clopper and Pearson's interval, at LEVEL, of the share of members that are found."""
        return float(lower(self.hits, self.each, _ERROR)), float(
            upper(self.hits, self.each, _ERROR)
        )

    @property
    def most_alarms(self) -> float:
        """Clopper and Pearson's upper bound of the long-run rate of false alarms.

        It is for the threshold of the attack.
        """
        return float(upper(self.alarms, self.each, _ERROR))

    def to_dict(self) -> Values:
        """Return the values as docs/evaluation.md has them."""
        low, high = self.interval
        hits = {"share": self.hits / self.each, "low": low, "high": high, "level": LEVEL}
        return {
            "each": self.each,
            "fpr": self.alarms / self.each,
            "tpr": hits,
            "auc": vars(self.auc),
        }


def loss_attack(members: Float64Array, others: Float64Array) -> LossAttack:
    """Take samples of small loss for members (Yeom et al. 2018), and return counts.

    At most a share ALARMS of `others` is taken.
    """
    threshold = np.sort(others)[int(ALARMS * len(others))]
    alarms, hits = (int((losses < threshold).sum()) for losses in (others, members))
    return LossAttack(len(members), alarms, hits, membership(members, others))


def attack_model(
    run: Run, recipe: Recipe, private: Labelled, heldout: Labelled, changes: Sequence[str] = ()
) -> tuple[Values | None, str]:
    """Attack the model that a run fitted, by its losses on `private` and on held-out samples.

    Return the values as in docs/evaluation.md and ""; or None and why they are left out, "" if the
    run fitted no model.
    """
    folder = run.folder / MODEL
    left_out = "The membership attack on the fitted model is left out: "
    if not folder.is_dir():
        return None, ""
    record = Fitted.read(folder)
    noun = private.samples.noun
    if record.kind != recipe.api.kind:
        return (
            None,
            f"{left_out}the run '{record.run}' fitted it on its own records, so evaluate that.",
        )
    try:
        check_named(run.folder, recipe, changes, "api")
    except PEError as error:
        return None, f"{left_out}{error}"
    api, unknown = set_up("pe.adapters", recipe.api)
    if api is None:
        return None, left_out + unknown
    if not isinstance(api, HasRecordLoss):
        return None, f"{left_out}'{record.kind}' has no loss of its own on a record."
    rows = _alike(private, heldout, recipe.seed)
    if len(rows[0]) < LEAST:
        few = (
            f"it takes {LEAST} records, and as many held-out {noun} of the same labels, and there "
            f"are {len(rows[0])}."
        )
        return None, left_out + few
    losses = []
    for whole, indices in zip((private, heldout), rows, strict=True):
        part = whole.take(indices)
        names = [record.classes[label] for label in part.labels]
        try:
            values = np.asarray(api.record_losses(folder, part.samples.array, names), np.float64)
        except PEError as error:
            return None, f"{left_out}{error}"
        losses.append(
            np.nan_to_num(values, nan=np.inf, posinf=np.inf, neginf=-np.inf)
        )  # NaN counts as the largest
    attack = loss_attack(*losses)
    return {
        "model": record.kind,
        **attack.to_dict(),
        **_allowance(attack, record, recipe.privacy.delta),
    }, ""


def _alike(private: Labelled, heldout: Labelled, seed: int) -> tuple[Indices, Indices]:
    """Return indices of samples drawn by `seed`, for each label equally many of either set.

    At most MOST of a set are drawn.
    """
    rng = generator(seed, "evaluation/loss-attack")
    labels = np.unique(private.labels)
    both = (private, heldout)
    sizes = [min(int((each.labels == label).sum()) for each in both) for label in labels]
    share = min(1.0, MOST / max(1, sum(sizes)))
    rows = [
        [
            np.sort(rng.permutation(np.flatnonzero(each.labels == label))[: int(share * size)])
            for each in both
        ]
        for label, size in zip(labels, sizes, strict=True)
    ]
    members, others = (np.concatenate(own) for own in zip(*rows, strict=True))
    return members, others


def _allowance(attack: LossAttack, record: Fitted, delta: float) -> Values:
    """Return the share of hits that the fit's guarantee allows, and a warning above it.

    The warning comes if more are found than chance explains.

    The attack tells a member from another sample of the same source, so the guarantee for replacing
    a record applies.
    """
    if not record.holds:
        return {"allowed": None, "warnings": []}
    releases = [for_a_record(release) for release in record.releases]
    tpr, most = most_hits(releases, (ALARMS, attack.most_alarms), delta)
    warnings = []
    if attack.interval[0] > most:
        warnings.append(
            f"The fitted model tells {attack.hits / attack.each:.0%} of its private records from "
            f"held-out ones at {ALARMS:.0%} false alarms, and the fit's guarantee allows "
            f"{tpr:.0%}: the test set is of another source, or the guarantee does not hold."
        )
    limits = {
        "epsilon": epsilon(record.releases, delta),
        "delta": delta,
        "by_epsilon": power(epsilon(releases, delta), delta, ALARMS),
        "tpr": tpr,
    }
    return {"allowed": limits, "warnings": warnings}
