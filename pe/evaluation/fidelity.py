"""Fidelity: how near a set of samples is to a reference set, under an embedding."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pe.data.samples import Samples
from pe.evaluation.features import Features, Seen, features
from pe.evaluation.frechet import frechet_distance
from pe.evaluation.kernel import LARGEST, kernel_distance
from pe.evaluation.manifold import NEIGHBORS, manifold
from pe.plugins.protocols import Embedding, info_of
from pe.progress import Progress, tell_left

REPORTED = 50_000
"""Images of each set in published FIDs."""

_COMPARED = 5000  # of each set, at the most, each with each


@dataclass(frozen=True)
class Fidelity:
    """What was measured under one embedding.

    Attributes:
        values: as docs/evaluation.md has them, for the first set and, under `controls`, for the others.
        notes: one sentence for each number that has too few samples behind it.
    """

    values: dict[str, Any]
    notes: list[str]


def standard_inception(embedding: Embedding) -> bool:
    """Whether the embedding is Inception with the standard weights: only then are the distances FID and KID."""
    return info_of(embedding).standard_inception


def fidelity(seen: Seen, sets: Mapping[str, Samples], reference: Samples, seed: int, progress: Progress) -> Fidelity:
    """Compare sets of samples with a reference set.

    Guarantee: none. With a private reference the numbers are confidential.

    Args:
        seen: the embedding, which embeds what it has not seen yet.
        sets: name → samples; the first is what is evaluated, the others are its controls.
        reference: real samples.
        seed: of random choices among the samples.
        progress: told of what is embedded.

    Raises:
        RecipeError: fewer than two samples in a set.
    """
    name, embedding = seen.name, seen.embedding
    with progress.task(f"embedding with {name}", None) as task:  # how many real samples there are is not told
        real = features(reference, seen, seed, task)  # not timed: a network is loaded
        first, *others = sets
        started = time.perf_counter()
        made = {first: features(sets[first], seen, seed, task)}
        each = (time.perf_counter() - started) / len(sets[first])
        tell_left(progress, f"embedding with {name}", each * sum(len(sets[key]) for key in others))
        made |= {key: features(sets[key], seen, seed, task) for key in others}
    values = {
        "dimensions": len(real.moments.mean),
        "standard_inception": standard_inception(embedding),
        "reference_samples": len(reference),
    }
    with progress.task(f"comparing under {name}", len(made)) as task:
        compared = {}
        for key in made:
            compared[key] = _compare(made[key], real)
            task.advance(1)
    values |= compared[first] | {"controls": {key: compared[key] for key in others}}
    return Fidelity(values, _notes(name, made[first], real, standard_inception(embedding), reference.noun))


def _compare(made: Features, real: Features) -> dict[str, Any]:
    kernel = asdict(kernel_distance(made.kept, real.kept))
    values: dict[str, Any] = {
        "samples": made.moments.count,
        "frechet": frechet_distance(made.moments, real.moments),
        "kernel": {key: None if math.isnan(value) else value for key, value in kernel.items()},
    }
    fewest = min(len(made.kept), len(real.kept), _COMPARED)
    if fewest > NEIGHBORS:
        found = manifold(real.kept[:fewest], made.kept[:fewest])  # equal numbers: density and recall depend on them
        values |= asdict(found) | {"neighbors": NEIGHBORS, "neighborhood_samples": fewest}
    return values


def _notes(name: str, made: Features, real: Features, standard: bool, noun: str) -> list[str]:
    notes = []
    dimensions = len(real.moments.mean)
    for what, count in ((f"{noun} evaluated", made.moments.count), (f"reference {noun}", real.moments.count)):
        if count <= dimensions:
            notes.append(
                f"The Fréchet distance under '{name}' is biased upward: {count:,} {what} cannot fill a covariance of "
                f"{dimensions:,} dimensions; take {dimensions + 1:,} or more."
            )
        elif standard and count < REPORTED:
            notes.append(
                f"The FID is from {count:,} {what}, so it is larger than with the {REPORTED:,} of published figures."
            )
    fewest = min(len(made.kept), len(real.kept))
    if fewest <= NEIGHBORS:
        notes.append(
            f"Precision, recall, density and coverage under '{name}' are left out: {fewest} {noun} are too few for "
            f"{NEIGHBORS} neighbours; take {NEIGHBORS + 1} or more, better {LARGEST:,}."
        )
    elif fewest < LARGEST:
        notes.append(
            f"The kernel distance, precision, recall, density and coverage under '{name}' come from {fewest:,} {noun} "
            f"of each set; they settle from about {LARGEST:,} on."
        )
    return notes
