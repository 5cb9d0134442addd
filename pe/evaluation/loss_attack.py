"""The membership attack by loss: whether a fitted model tells its private records from held-out ones. Confidential.

The model's own loss on a sample is compared with a threshold: what it knows better is called a member (Yeom et al.
2018). Everything here is computed from private records without noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.data.samples import Samples
from pe.data.seeds import generator
from pe.errors import PEError
from pe.evaluation.audit_bounds import lower, upper
from pe.evaluation.frechet import Reals
from pe.evaluation.labelled import Labelled
from pe.evaluation.memorisation import Membership, membership
from pe.fit.fitted import Fitted
from pe.fit.trainer import MODEL, HasRecordLoss
from pe.planning.build import set_up
from pe.privacy.accounting import epsilon
from pe.privacy.data_set import for_a_record
from pe.privacy.tradeoff import most_hits
from pe.privacy.words import power
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import has_journal

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
