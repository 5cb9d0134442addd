"""Seconds of a run by function. Each second counts once, for the innermost of the functions that are timed."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

from pe import evolution, histogram, lookahead
from pe.dispatch import answers, dispatcher
from pe.dispatch import dispatcher as waits
from pe.engine import (
    execution,
    private_side,
    python,  # noqa: F401 (imported before the clock starts)
)
from pe.private.dataset import PrivateDataset
from pe.store.writer import RunWriter

PHASES = "neighbour search", "embedding", "API", "fsync"
PARTS: tuple[tuple[Any, str, str], ...] = (
    (execution.Execution, "of", "planning the noise: imports SciPy, root finding"),
    (PrivateDataset, "preflight", "private records read, decoded, hashed for the run's fingerprint"),
    (PrivateDataset, "blocks", "private records read again, for the embedding: they are kept nowhere"),
    (private_side, "embed_private", "private vectors written"),
    (private_side, "sha256", "private vectors hashed: a resumed run takes them as they are"),
    (answers.Answers, "store", "answers written and hashed: none is asked for again after a kill"),
    (answers.Answers, "commit", "answers entered in the journal"),
    (answers.Answers, "committed", "answers read back: a generator may use its memory again"),
    (answers.Answers, "forget", "answers deleted"),
    (dispatcher.Dispatcher, "_ask", "parents and seeds of requests"),
    (RunWriter, "add_population", "populations written and hashed"),
    (
        lookahead,
        "_add_runs",
        "the lookahead's vectors summed: the first iteration touches new memory, the others use it again",
    ),
    (evolution, "lookahead_embeddings", "the rest of the lookahead: NaN looked for, the mean"),
    (histogram, "count_votes", "votes counted per unit"),
    (execution, "contact_sheet", "the picture of the evolution"),
    (execution, "publish", "the shareable side copied: no birth time tells how long private work took"),
    (RunWriter, "write_samples", "synthetic.npz written, with the checksum that the format has"),
    (execution.Execution, "_certify", "synthetic.npz hashed for the certificate"),
)
"""What is timed outside those phases: holder, function, and the reason for its time."""
SECONDS: dict[str, float] = defaultdict(float)
INNER = local()  # of each thread: seconds of timed functions within the current one


@contextmanager
def timed(phase: str) -> Iterator[None]:
    outer, INNER.seconds, started = getattr(INNER, "seconds", 0.0), 0.0, time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - started
        SECONDS[phase] += took - INNER.seconds
        INNER.seconds = outer + took


def timing(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with timed(phase):
            result = function(*args, **kwargs)
        return each(phase, result) if isinstance(result, Iterator) else result

    return wrapped


def each(phase: str, parts: Iterator[Any]) -> Iterator[Any]:
    while True:
        with timed(phase):
            part = next(parts, None)
        if part is None:
            return
        yield part


def time_functions() -> None:
    """Time all these functions from now on."""
    histogram.nearest = timing("neighbour search", histogram.nearest)
    os.fsync = timing("fsync", os.fsync)
    for holder, name, reason in PARTS:
        setattr(holder, name, timing(reason, getattr(holder, name)))
    waits.Waits.finished = timing("waiting", waits.Waits.finished)  # for another thread, whose time is counted


def tables(total: float) -> tuple[float, list[str]]:
    """Seconds outside the phases, and what was spent of `total` seconds, by phase and by function, as Markdown."""
    SECONDS.pop("waiting", None)
    outside = total - sum(SECONDS[phase] for phase in PHASES)
    spent = {**SECONDS, "all else, less what two threads did at once": total - sum(SECONDS.values())}
    parts = sorted(spent.items() - {(phase, SECONDS[phase]) for phase in PHASES}, key=lambda item: -item[1])
    phases = [*((phase, SECONDS[phase]) for phase in PHASES), ("everything else", outside), ("in all", total)]
    return outside, [*table("phase", phases, total), "", *table("everything else", parts, total)]


def table(head: str, rows: list[tuple[str, float]], total: float) -> list[str]:
    """Markdown."""
    lines = [f"| {name} | {seconds:.2f} | {seconds / total:.1%} |" for name, seconds in rows]
    return [f"| {head} | seconds | share |", "| --- | ---: | ---: |", *lines]
