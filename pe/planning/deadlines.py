"""The public clock: deadlines of private work, so that the time at which it ends tells nothing.

They follow from the declared size and a try on this machine. Nothing here reads a private record:
random vectors and made-up samples stand in for them, the costliest that the recipe declares.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from pe.fit.trainer import FIT, DryRun
from pe.histogram import Voting
from pe.nearest import nearest
from pe.plugins.embed import calls_for_a_failing_sample, embed_block
from pe.plugins.protocols import Embedding, Generator, Vectors, info_of
from pe.privacy.ledger import kind_of
from pe.privacy.release import Release
from pe.private.embeddings import SPARE, blocks_for
from pe.recipe.schema import Recipe
from pe.steps import Plan

EMBEDDING = "embedding"
"""The kind of work that embeds all private records. For others see `kind_of`."""

_AT_LEAST = 0.4  # what a release takes to become durable, and then some
_SLACK = 3.0
"""How many times what private work takes here, by a try, it is held back."""
_DRAWS = 5e6
"""Draws of noise a second, a low estimate."""
_SECONDS_PER_NUMBER = 1e-8
"""Seconds to write one number of a vector durably and to hash it, a high estimate."""
_SAMPLE = 2048, 2**14
"""Most queries and candidates of the search that is tried."""
_TIED = 64, 1024
"""Most queries and candidates of the search that is tried where all candidates are equally near."""


@dataclass(frozen=True)
class ClockPlan:
    """The public clock of a run."""

    on: bool  # True if private work is held back until public deadlines
    why: str  # the reason why it is on or off, for `pe plan`
    # one sentence where whoever answers requests may learn the time of private work; else empty
    warning: str = ""
    # deadlines by kind of work; empty where there is none, or where they cannot be tried here
    seconds: dict[str, float] = field(default_factory=dict)
    unheld: tuple[str, ...] = ()  # kinds of work that have no deadline


def clock_terms(recipe: Recipe, api: Generator | None) -> ClockPlan:
    """Decide if a run of the recipe has a public clock.

    The generator is None if it could not be set up. With `privacy.hold: auto` a run has one if its
    generator asks other machines, or does not say that it asks none.
    """
    if recipe.privacy.noiseless:
        return ClockPlan(False, "off: with privacy: none nothing is protected")
    rule = recipe.privacy.hold
    hosts = None if api is None else info_of(api).hosts
    names = "an object that declares no hosts" if hosts is None else ", ".join(hosts)
    warning = (
        f"Requests go to {names}. Whoever times them learns how long private work takes, which "
        "depends on the number of private records and on the records. State "
        "`private.declared_size`, and leave `privacy.hold` at auto."
    )
    warning = "" if hosts == () else warning
    # What the owner says goes before what the generator's hosts suggest.
    if rule == "off":
        return ClockPlan(False, "off: privacy.hold is 'off'", warning)
    if isinstance(rule, float):
        return ClockPlan(True, f"on: privacy.hold is {rule:g} seconds")
    if hosts == ():
        return ClockPlan(False, "off: no other machine sees how long private work takes")
    if recipe.private.declared_size is None:
        return ClockPlan(False, "off: private.declared_size is missing", warning)
    return ClockPlan(True, f"on: requests go to {names}")


def held_back(
    recipe: Recipe,
    plan: Plan,
    api: Generator | None,
    embedding: Embedding | None,
    dry_runs: Sequence[DryRun] = (),
) -> ClockPlan:
    """Return `clock_terms` with the deadlines of a run on this machine.

    There are none if there is no embedding to be tried.
    """
    terms = clock_terms(recipe, api)
    if not terms.on:
        return terms
    if isinstance(recipe.privacy.hold, float):
        kinds = [EMBEDDING, *(kind_of(release.name) for release in plan.releases)]
        return replace(terms, seconds=dict.fromkeys(kinds, recipe.privacy.hold))
    if embedding is None:
        return terms
    seconds, unheld = deadlines(recipe, plan, embedding, dry_runs)
    return replace(terms, seconds=seconds, unheld=tuple(unheld))


def deadlines(
    recipe: Recipe,
    plan: Plan,
    embedding: Embedding,
    dry_runs: Sequence[DryRun] = (),
) -> tuple[dict[str, float], list[str]]:
    """Return how long each kind of private work is held back, and the kinds without a deadline.

    Times are in seconds, by kind of work.

    A deadline is _SLACK times what the longest work of its kind takes here for a tenth more records
    than declared, on one of which the embedding fails, rounded up to 1, 2 or 5 times a power of
    ten. A search gets at least the time for the most costly candidates that a generator's host
    could choose: all of them equally near to each record. The embedding is tried on
    `Samples.costliest`, a fit by its `dry_runs`.
    """
    private = recipe.private
    assert private.declared_size is not None
    records = math.ceil(private.declared_size * SPARE)
    size = embedding.batch_size
    costliest = private.modality.costliest(size, private.shape)
    dimension = embed_block(embedding, costliest).shape[1]  # loads the network
    embed = _seconds_of(partial(embed_block, embedding, costliest))
    calls = blocks_for(private.declared_size, size) + calls_for_a_failing_sample(size)
    decode = private.decoding()
    decode()  # loads libraries
    decoding = records * _seconds_of(decode)
    estimates = {EMBEDDING: calls * embed + decoding + records * dimension * _SECONDS_PER_NUMBER}
    if plan.class_counts is not None:
        estimates[kind_of(plan.class_counts.name)] = records / _DRAWS
    fits = [_fit_seconds(release, dry_runs) for release in plan.fit]
    if plan.fit and None not in fits:  # whichever is drawn first in a process reads the records
        estimates[kind_of(FIT)] = decoding + max(one for one in fits if one is not None)
    if plan.steps:
        candidates = [plan.candidates(step.t) for step in plan.steps]
        most = max(max(sizes) if plan.class_counts is None else sum(sizes) for sizes in candidates)
        usual, worst = _search_seconds(records, most, dimension, plan.voting)
        usual += max(map(sum, candidates)) / _DRAWS
        estimates[kind_of(plan.steps[0].release.name)] = max(usual, worst / _SLACK)
    unheld = sorted({kind_of(release.name) for release in plan.releases} - estimates.keys())
    return {
        kind: round_up_seconds(_AT_LEAST + _SLACK * seconds) for kind, seconds in estimates.items()
    }, unheld


def _fit_seconds(release: Release, dry_runs: Sequence[DryRun]) -> float | None:
    """Return the seconds of a release of a fit, or None if its part was not tried."""
    part = next((one for one in dry_runs if f"{release.name}/".startswith(f"{one.part}/")), None)
    return (
        None if part is None else release.count * (part.seconds_per_step + part.parameters / _DRAWS)
    )


def round_up_seconds(seconds: float) -> float:
    """Round `seconds` > 0 up to 1, 2 or 5 times a power of ten.

    Chance differences between tries then seldom show.
    """
    power = 10.0 ** math.floor(math.log10(seconds))
    return float(
        next(step * power for step in (1, 2, 5, 10) if step * power >= seconds * (1 - 1e-9))
    )


def _search_seconds(
    records: int,
    candidates: int,
    dimension: int,
    rules: Voting,
) -> tuple[float, float]:
    """Return the seconds of a search for `records` records, as usual and in the worst case.

    In the worst case all candidates are equally near.
    """
    rng = np.random.default_rng(0)

    def search(queries: Vectors, places: Vectors) -> float:
        return _seconds_of(
            lambda: nearest(
                queries,
                places,
                rules.neighbors,
                metric=rules.metric,
                backend=rules.neighbor_search,
            )
        )

    rows = min(records, _SAMPLE[0])
    columns = max(rules.neighbors, min(candidates, _SAMPLE[1]))
    queries, places = (rng.standard_normal((n, dimension), np.float32) for n in (rows, columns))
    search(queries[:1], places)  # loads the library
    one = search(queries[:1], places)
    many = search(queries, places)
    usual = max(1.0, candidates / columns) * (one + records * max(0.0, many - one) / rows)
    rows = min(records, _TIED[0])
    columns = max(rules.neighbors, min(candidates, _TIED[1]))
    queries = rng.standard_normal((rows, dimension), np.float32)
    places = np.repeat(rng.standard_normal((1, dimension), np.float32), columns, axis=0)
    # less than float64 tells apart
    queries[:, 0], places[:, 0] = 0, np.arange(1, columns + 1) * np.float32(1e-12)
    return usual, search(queries, places) * (records / rows) * max(1.0, candidates / columns)


def _seconds_of(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
