"""What users should know of a recipe and its plan, for plan, run, certificate and report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from pe.planning.checks import reads_public
from pe.planning.choice import signal_of, signal_warnings
from pe.plugins.protocols import PluginInfo, info_of
from pe.privacy.certificate_text import NO_NOISE, POOL_OVERLAPS, finite, warnings
from pe.recipe.page import page
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
) -> list[Notice]:
    """Return all notices on a recipe and its plan.

    `epsilon` is of all releases. Reads no record, asks nobody. The generator and the embedding are
    None where they are not at hand; then nothing is said of them.
    """
    private = recipe.private
    privacy = recipe.privacy
    sizes = private.declared_size, private.declared_units
    votes = []
    if private.declared_size is not None:
        signals = [signal_of(recipe, plan, step, plan.candidates(step.t)) for step in plan.steps]
        votes = signal_warnings(recipe, plan, signals)
    overlaps = reads_public(api) or reads_public(embedding)
    text = page(
        "pe.planning",
        "notices.txt.jinja",
        private=private,
        evolution=recipe.evolution,
        share=None if recipe.api.fit is None else recipe.api.fit.budget_share,
        info=PluginInfo() if api is None else info_of(api),
        # Without noise there is no ε to warn of.
        guarantees=[NO_NOISE]
        if privacy.noiseless
        else warnings(finite(epsilon), privacy.delta, *sizes),
        votes=votes,
        overlap=POOL_OVERLAPS if overlaps and privacy.pool_overlaps == "declared" else "",
        network=lacks_network(private, recipe.embedding.kind) if plan.steps else "",
    )
    told = [line.partition(": ") for line in text.splitlines()]
    return [Notice(cast(Kind, kind), sentence) for kind, _, sentence in told]
