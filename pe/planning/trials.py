"""What private work takes on this machine, tried on blank samples and random vectors: no private record is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pe.histogram import Voting
from pe.nearest import nearest
from pe.plugins.protocols import Embedding, Vectors
from pe.private.source import PrivateSource

Clock = Callable[[], float]
"""Tells seconds: of the day, or of the work that this process's cores have done."""

_TRIED = 2048, 2**14
"""Most queries and candidates of the search that is tried."""
_TIED = 64, 1024
"""The same where all candidates are equally near."""


@dataclass(frozen=True)
class SearchTime:
    """What it takes to find the nearest of some candidates.

    Attributes:
        begin: seconds, whatever the number of records.
        each: seconds for each record.
    """

    begin: float
    each: float


def seconds_of(work: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """What `work` takes."""
    started = clock()
    work()
    return clock() - started


def embedding_seconds(
    embedding: Embedding, private: PrivateSource, clock: Clock = time.perf_counter
) -> tuple[float, int]:
    """What a block of blank samples takes, at the second try, and the length of its vectors."""
    blank = private.modality.stack([None] * embedding.batch_size, private.shape)
    dimension = embedding.embed(blank).shape[1]
    return seconds_of(lambda: embedding.embed(blank), clock), dimension


def search_time(
    records: int, candidates: int, dimension: int, rule: Voting, clock: Clock = time.perf_counter
) -> SearchTime:
    """What it takes to find the nearest of so many candidates, for about so many records."""
    rng = np.random.default_rng(0)
    rows, columns = min(records, _TRIED[0]), max(rule.neighbors, min(candidates, _TRIED[1]))
    queries, found = (rng.standard_normal((n, dimension), np.float32) for n in (rows, columns))
    _search(queries[:1], found, rule)  # loads the library
    one = seconds_of(lambda: _search(queries[:1], found, rule), clock)
    many = seconds_of(lambda: _search(queries, found, rule), clock)
    larger = max(1.0, candidates / columns)
    return SearchTime(larger * one, larger * max(0.0, many - one) / rows)


def tied_seconds(records: int, candidates: int, dimension: int, rule: Voting) -> float:
    """What a search takes where all candidates are equally near to each record; run after `search_time`."""
    rng = np.random.default_rng(0)
    rows, columns = min(records, _TIED[0]), max(rule.neighbors, min(candidates, _TIED[1]))
    queries = rng.standard_normal((rows, dimension), np.float32)
    found = np.repeat(rng.standard_normal((1, dimension), np.float32), columns, axis=0)
    queries[:, 0], found[:, 0] = 0, np.arange(1, columns + 1) * np.float32(1e-12)  # less than float64 tells apart
    return seconds_of(lambda: _search(queries, found, rule)) * (records / rows) * max(1.0, candidates / columns)


def _search(queries: Vectors, candidates: Vectors, rule: Voting) -> object:
    return nearest(queries, candidates, rule.neighbors, metric=rule.metric, backend=rule.neighbor_search)
