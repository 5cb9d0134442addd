"""What the private side of a run takes, from public numbers and rates that are tried on this machine."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pe.errors import RecipeError
from pe.planning.build import set_up
from pe.planning.trials import embedding_seconds, search_time, seconds_of
from pe.plugins.devices import count_cards, has_driver
from pe.plugins.protocols import Embedding, info_of
from pe.private.shards import SHARD_BYTES
from pe.private_work import BYTES_PER_VOTE, TOGETHER
from pe.recipe.schema import Recipe
from pe.steps import Plan

WORKERS = (1, 4, 16, 64, 256)
"""For how many workers the time is told."""

BYTES_PER_RECORD = 44
"""Of memory for a label, a unit and a digest; what a source holds of its own, such as names of files, is not in it."""

_DECODED = 16  # made-up records


@dataclass(frozen=True)
class Workload:
    """What it takes to embed the private records and to count their votes.

    Attributes:
        records: as declared.
        dimension: of their vectors.
        disk_bytes: of the vectors.
        memory_bytes: that this process holds, at the least.
        worker: what a worker of a cluster has.
        here: how many of these this machine has.
        records_per_second: that one worker embeds.
        distances: between records and candidates, in all iterations.
        distances_per_second: of one worker.
        embedding_seconds: of one worker.
        vote_seconds: of one worker, in all iterations.
        decoding_seconds: of this process, to decode all records once, each as large as it may be.
        candidates: that this process embeds in all iterations, or variations of the lookahead in their place.
        candidate_seconds: of this process, for those.
    """

    records: int
    dimension: int
    disk_bytes: int
    memory_bytes: int
    worker: Literal["GPU", "core"]
    here: int
    records_per_second: float
    distances: int
    distances_per_second: float
    embedding_seconds: float
    vote_seconds: float
    decoding_seconds: float
    candidates: int
    candidate_seconds: float

    def seconds(self, workers: int) -> float:
        """For all of it: the records are decoded before the run, and again while they are embedded."""
        embedding = max(self.decoding_seconds, self.embedding_seconds / workers)
        return self.decoding_seconds + embedding + self.vote_seconds / workers + self.candidate_seconds

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with the seconds of several numbers of workers."""
        return asdict(self) | {"seconds_by_workers": {str(workers): self.seconds(workers) for workers in WORKERS}}


def workload(recipe: Recipe, plan: Plan) -> Workload:
    """What the private side of the recipe's run takes; the embedding and the search are tried, and no record is read.

    Raises:
        RecipeError: the size is not declared, nothing votes, or the embedding cannot be tried here.
    """
    private, records = recipe.private, recipe.private.declared_size
    if records is None:
        raise RecipeError("private.declared_size is missing: state it, for the private side is forecast by it.")
    if not plan.steps:
        raise RecipeError("evolution.iterations is 0, so no record votes: leave out --private-side.")
    embedding, decode = _embedding(recipe), private.decoding()
    cards = count_cards() if has_driver() else 0
    clock = time.perf_counter if cards else time.process_time  # cores may share the work, or have other work
    block, dimension = embedding_seconds(embedding, private, clock)
    decode()  # loads the library
    decoding = seconds_of(lambda: [decode() for _ in range(_DECODED)], clock)
    each, disk = block / embedding.batch_size, 4 * records * dimension
    sizes = [plan.sizes, *(step.sizes for step in plan.steps)][: len(plan.steps)]
    of_label = [max(one) if plan.class_counts is None else sum(one) for one in sizes]
    search, most = search_time(records, max(of_label), dimension, plan.voting, clock), max(of_label)
    shards = -(-disk // SHARD_BYTES)
    searched = shards * search.begin * sum(map(sum, sizes)) / most + records * search.each * sum(of_label) / most
    votes = searched * max(1, cards)  # one search has all GPUs
    memory = BYTES_PER_RECORD * records + BYTES_PER_VOTE * min(TOGETHER, records * plan.voting.neighbors)
    candidates = sum(sum(one) * max(1, step.lookahead) for one, step in zip(sizes, plan.steps, strict=True))
    return Workload(
        records=records,
        dimension=dimension,
        disk_bytes=disk,
        memory_bytes=memory + 4 * dimension * max(map(sum, sizes)),
        worker="GPU" if cards else "core",
        here=cards or os.cpu_count() or 1,
        records_per_second=1 / each,
        distances=records * sum(of_label),
        distances_per_second=records * sum(of_label) / votes,
        embedding_seconds=records * each,
        vote_seconds=votes,
        decoding_seconds=records * decoding / _DECODED,
        candidates=candidates,
        candidate_seconds=candidates * each,
    )


def _embedding(recipe: Recipe) -> Embedding:
    """The recipe's embedding, which can be tried here."""
    embedding, why = set_up("pe.embeddings", recipe.embedding)
    if embedding is None:
        raise RecipeError(f"--private-side tries the embedding, which cannot be set up here: {why}")
    if hosts := info_of(embedding).hosts:
        raise RecipeError(
            f"--private-side tries the embedding, and '{recipe.embedding.kind}' asks {', '.join(hosts)}, which a plan "
            "does not do: leave out --private-side."
        )
    found: Embedding = embedding
    return found
