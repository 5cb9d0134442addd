"""What users should know of a recipe and its plan, for plan, run, certificate and report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pe.planning.checks import reads_public
from pe.planning.choice import signal_of, signal_warnings
from pe.plugins.protocols import PluginInfo, info_of
from pe.privacy.words import NO_NOISE, POOL_OVERLAPS, finite, warnings
from pe.private.source import RECORD
from pe.recipe.schema import Recipe
from pe.recipe.usual_embedding import lacks_network
from pe.steps import Plan

Kind = Literal["guarantee", "votes", "overlap", "pool", "shape", "network", "setting"]


@dataclass(frozen=True)
class Notice:
    """One sentence on a recipe or its plan, from public numbers.

    Attributes:
        kind: what it is about. `guarantee` follows from ε, δ and the declared size; `votes` from
            votes and their noise; `overlap`: public samples may be private records; `pool`:
            synthetic samples are public ones, unchanged; `shape`: the generator's samples have
            another size; `network`: a better embedding could be installed; `setting`: a key that is
            missing, or useless.
        sentence: for the user.
    """

    kind: Kind
    sentence: str


def sentences(notices: Iterable[Notice], *kinds: Kind) -> list[str]:
    """Return the sentences of these kinds."""
    return [notice.sentence for notice in notices if notice.kind in kinds]


def notices(
    recipe: Recipe,
    plan: Plan,
    epsilon: float,
    api: object | None = None,
    embedding: object | None = None,
) -> Iterator[Notice]:
    """Yield all notices on a recipe and its plan.

    `epsilon` is of all releases. Reads no record, asks nobody.

    The generator and the embedding are None where they are not at hand; then nothing is said of
    them.
    """
    private = recipe.private
    privacy = recipe.privacy
    evolution = recipe.evolution
    noun = private.modality.noun
    if privacy.noiseless:
        yield Notice("guarantee", NO_NOISE)
    else:
        for sentence in warnings(
            finite(epsilon),
            privacy.delta,
            private.declared_size,
            private.declared_units,
        ):
            yield Notice("guarantee", sentence)
    yield from _on_votes(recipe, plan)
    if privacy.pool_overlaps == "declared" and (reads_public(api) or reads_public(embedding)):
        yield Notice("overlap", POOL_OVERLAPS)
    info = PluginInfo() if api is None else info_of(api)
    if info.distinct is not None:
        yield Notice(
            "pool",
            f"The {noun} are public ones, unchanged: the votes chose them from a pool and labelled "
            "them. Their licences hold, and who is in them stays in them.",
        )
    if info.shape not in (None, private.shape):
        theirs = "×".join(map(str, info.shape or ()))
        ours = "×".join(map(str, private.shape))
        yield Notice(
            "shape",
            f"The generator makes {noun} of {theirs} ({private.modality.axes}), and the private "
            f"{noun} are {ours}: the embedding must bring both to one size for the votes, and the "
            f"synthetic {noun} are {theirs}.",
        )
    better = lacks_network(private, recipe.embedding.kind)
    if evolution.iterations and better:
        yield Notice("network", better)
    if (
        private.privacy_unit != RECORD
        and private.declared_size is not None
        and private.declared_units is None
    ):
        yield Notice(
            "setting",
            f"All records of a {private.privacy_unit} together weigh as one, so there are fewer "
            "votes per candidate than foretold: state private.declared_units, about how many units "
            "there are (it will be public).",
        )
    share = None if recipe.api.fit is None else recipe.api.fit.budget_share
    if share not in (None, 1) and not evolution.iterations and not evolution.estimate_label_sizes:
        yield Notice(
            "setting",
            f"Nothing uses {1 - share:.4g} of privacy.epsilon, because api.fit.budget_share is "
            f"{share:g} and there are no iterations: leave the share out, or evolve what was "
            "fitted.",
        )


def _on_votes(recipe: Recipe, plan: Plan) -> Iterator[Notice]:
    if recipe.private.declared_size is None:
        yield Notice(
            "votes",
            "private.declared_size is missing, so votes per candidate are unknown and delta is not "
            "checked: state about how many private records there are (it will be public).",
        )
        return
    signals = [signal_of(recipe, plan, step, plan.candidates(step.t)) for step in plan.steps]
    for sentence in signal_warnings(recipe, plan, signals):
        yield Notice("votes", sentence)
