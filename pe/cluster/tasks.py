"""Tasks on Ray's workers, and their answers.

Nothing private leaves a worker but its answer to the process that asked.

Ray writes what a worker prints to files, and keeps the words of errors that a task raises. So a
worker prints nowhere, and a task raises nothing: its log lines and its errors are part of its
answer.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from logging.handlers import BufferingHandler
from typing import TYPE_CHECKING, Any

from pe.data.quiet import LOGGERS, quiet
from pe.data.samples import Samples
from pe.errors import ClusterError, PEError
from pe.histogram import Labels, Voting, count_votes
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, Vectors
from pe.private.embeddings import PrivateEmbeddings
from pe.version import __version__

if TYPE_CHECKING:
    from ray import ObjectRef

Line = tuple[str, int, str]
"""A line of the log: the logger's name, the level, and the text."""
AHEAD = 2
"""Most blocks or shards under way for each worker."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskAnswer:
    """A worker's answer, what it logged meanwhile, and the error that ended the work.

    Confidential.
    """

    value: Any
    lines: list[Line]
    error: Exception | None = None

    def result(self, lines: set[Line]) -> Any:
        """Log the worker's lines that are not in `lines` yet, and add them.

        Return the value, or raise the error.
        """
        for line in self.lines:
            if line not in lines:
                lines.add(line)
                logging.getLogger(line[0]).log(*line[1:])
        if self.error is not None:
            raise self.error
        return self.value


def guard(version: str, work: Callable[[], Any]) -> TaskAnswer:
    """Run `work` if this worker has the asking process's `version`.

    Return the value, the log lines and the error.
    """
    _print_nowhere()
    value: Any = None
    error: Exception | None = None
    with _logging() as log_of_work, quiet():
        try:
            if version != __version__:
                raise ClusterError(
                    f"A Ray worker has version {__version__} of the toolkit, and this process "
                    f"{version}: install one version on all of them."
                )
            value = work()
        except PEError as fault:
            error = fault.with_traceback(None)
        except Exception as fault:  # of whatever library; its words may be about a private record
            log.error("Work on a Ray worker failed.", exc_info=fault)
            error = RuntimeError(f"Work on a Ray worker failed ({type(fault).__name__}).")
    # A line's text has an error's whole traceback.
    lines = [
        (record.name, record.levelno, log_of_work.format(record)) for record in log_of_work.buffer
    ]
    return TaskAnswer(value, lines, error)


def votes(
    version: str,
    private: PrivateEmbeddings,
    public: tuple[Vectors, Labels],
    grid: int,
    voting: Voting,
) -> TaskAnswer:
    """Return a shard's clean votes, as `count_votes` counts them.

    The arguments determine them, so each try gives equal votes.
    """
    return guard(version, lambda: count_votes(private, *public, grid, voting))


_loaded: dict[str, tuple[Embedding, str]] = {}
"""This worker's embedding, with a digest of its vectors of made-up samples, by the name of the work
that it serves. Networks load slowly, and a worker embeds many blocks."""


def embed(version: str, name: str, make: list[ObjectRef], samples: Samples) -> TaskAnswer:
    """Return a block's vectors, float32 (n, d), and a digest of this worker's arithmetic.

    `make` holds a reference to a pickled function that makes the embedding. The vectors depend on
    nothing else but the samples, so each try gives equal ones.
    """
    return guard(version, lambda: _embed(name, make, samples))


def _embed(name: str, make: list[ObjectRef], samples: Samples) -> tuple[Vectors, str]:
    if name not in _loaded:
        import ray

        _loaded.clear()  # the networks of earlier work need their memory no more
        embedding: Embedding = pickle.loads(ray.get(make[0]))()  # noqa: S301 - from the asking process
        examples = embed_block(embedding, type(samples).examples(len(samples), samples.shape))
        _loaded[name] = embedding, hashlib.sha256(examples.tobytes()).hexdigest()
    embedding, digest = _loaded[name]
    return embed_block(embedding, samples), digest


@cache
def _print_nowhere() -> None:
    """Discard whatever this process prints from now on, by libraries in C, too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


@contextmanager
def _logging() -> Iterator[BufferingHandler]:
    """Send the toolkit's log to a buffer and nowhere else."""
    handler = BufferingHandler(sys.maxsize)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield handler
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


# In the process that asks.


def in_order(tasks: Iterable[ObjectRef], workers: int, tries: int) -> Iterator[Any]:
    """Yield the values of tasks in order. Their log lines go to this process's log, each once."""
    under_way: deque[ObjectRef] = deque()
    lines: set[Line] = set()
    for task in tasks:
        under_way.append(task)
        if len(under_way) == AHEAD * workers:
            yield _value(under_way.popleft(), lines, tries)
    while under_way:
        yield _value(under_way.popleft(), lines, tries)


def _value(task: ObjectRef, lines: set[Line], tries: int) -> Any:
    import ray

    try:
        answer: TaskAnswer = ray.get(task)
    except ray.exceptions.RayError as error:
        log.error("Ray lost its workers.", exc_info=error)
        raise ClusterError(
            f"Ray lost the workers of one and the same piece of private work {tries} times "
            f"({type(error).__name__}). The run's log says more. Resume the run when the cluster "
            "is well."
        ) from None
    return answer.result(lines)
