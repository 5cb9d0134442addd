"""What runs on Ray's workers. Nothing private leaves one but what it returns to the process that asked.

Ray writes what a worker prints to files, and keeps the words of errors that a task raises. So a worker prints nowhere,
and a task raises nothing: its log lines and its errors are part of what it returns.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pe.data.quiet import LOGGERS, quiet
from pe.data.samples import Samples
from pe.errors import ClusterError, PEError
from pe.histogram import Counts, Voting, count_votes
from pe.plugins.embed import embed_block
from pe.plugins.protocols import Embedding, Vectors
from pe.private.embeddings import PrivateEmbeddings
from pe.version import __version__

if TYPE_CHECKING:
    from ray import ObjectRef


Line = tuple[str, int, str]
"""A line of the log: the logger's name, the level, and the text."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Told:
    """What a worker returns. Confidential.

    Attributes:
        value: what was computed; None where that failed.
        lines: what was logged meanwhile.
        error: of the toolkit, which ended the work.
        failed: the name of any other error, whose words are among `lines`.
    """

    value: Any
    lines: tuple[Line, ...]
    error: PEError | None = None
    failed: str = ""


def guarded(version: str, work: Callable[[], Any]) -> Told:
    """What `work` returns, logs and raises.

    Args:
        version: the toolkit's in the process that asks: another one could compute something else.
        work: takes nothing.
    """
    _print_nowhere()
    lines: list[Line] = []
    with _noted(lines), quiet():
        try:
            if version != __version__:
                raise ClusterError(
                    f"A Ray worker has version {__version__} of the toolkit, and this process {version}: install one "
                    "version on all of them."
                )
            return Told(work(), tuple(lines))
        except PEError as error:
            return Told(None, tuple(lines), error=error.with_traceback(None))
        except Exception as error:  # of whatever library; its words may be about a private record
            log.error("Work on a Ray worker failed.", exc_info=error)
            return Told(None, tuple(lines), failed=type(error).__name__)


def votes(
    version: str,
    private: PrivateEmbeddings,
    public: tuple[Vectors, npt.NDArray[np.int32]],
    grid: int,
    voting: Voting,
) -> Told:
    """The clean votes of a shard; see `count_votes`. A function of its arguments: a second try gives the same."""

    def count() -> Counts:
        return count_votes(private, *public, grid, voting)

    return guarded(version, count)


class Embedder:
    """An actor that embeds blocks.

    Args:
        version: as in `guarded`.
        make: makes the embedding, pickled; unpickled with the first block, whose answer tells what is wrong with it.
    """

    def __init__(self, version: str, make: bytes) -> None:
        self._version, self._make = version, make
        self._embedding: Embedding | None = None
        self._digest = ""

    def embed(self, samples: Samples) -> Told:
        """The vectors of a block, float32 (n, d), and a digest of those that made-up samples have here."""
        return guarded(self._version, lambda: self._embed(samples))

    def _embed(self, samples: Samples) -> tuple[Vectors, str]:
        if self._embedding is None:
            embedding: Embedding = pickle.loads(self._make)()  # noqa: S301 - by the process that began this one
            examples = embed_block(embedding, type(samples).examples(len(samples), samples.shape))
            self._digest = hashlib.sha256(examples.tobytes()).hexdigest()
            self._embedding = embedding
        return embed_block(self._embedding, samples), self._digest


@cache
def _print_nowhere() -> None:
    """Whatever this process prints, libraries in C among it, goes nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


@contextmanager
def _noted(lines: list[Line]) -> Iterator[None]:
    """Inside, what the toolkit logs goes to `lines` and nowhere else."""
    handler = _Noting(lines)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.propagate = False
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


class _Noting(logging.Handler):
    """Appends what is logged to a list."""

    def __init__(self, lines: list[Line]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text, with an error's whole traceback."""
        self._lines.append((record.name, record.levelno, self.format(record)))


# What workers tell, as the process hears it that asked.


AHEAD = 2
"""How many blocks or shards are under way for each worker."""


def in_order(asked: Iterable[ObjectRef], workers: int, tries: int) -> Iterator[Any]:
    """The values of what tasks tell, in order; what they logged goes to this process's log, each line once."""
    under_way: deque[ObjectRef] = deque()
    seen: set[Line] = set()
    for one in asked:
        under_way.append(one)
        if len(under_way) == AHEAD * workers:
            yield _value(under_way.popleft(), seen, tries)
    while under_way:
        yield _value(under_way.popleft(), seen, tries)


def heard(told: Told, seen: set[Line]) -> Any:
    """The value, once its lines are logged, but for those that were `seen`; raises what the worker could not."""
    for line in told.lines:
        if line not in seen:
            seen.add(line)
            logging.getLogger(line[0]).log(*line[1:])
    if told.error is not None:
        raise told.error
    if told.failed:
        raise RuntimeError(f"Work on a Ray worker failed ({told.failed}).")
    return told.value


def lost(error: Exception, tries: int) -> ClusterError:
    """What to raise when Ray has lost the workers of one piece of work in each of `tries`."""
    log.error("Ray lost its workers.", exc_info=error)
    return ClusterError(
        f"Ray lost the workers of one and the same piece of private work {tries} times "
        f"({type(error).__name__}): the run's log says more; resume the run when the cluster is well."
    )


def _value(asked: ObjectRef, seen: set[Line], tries: int) -> Any:
    import ray

    try:
        told = ray.get(asked)
    except ray.exceptions.RayError as error:
        raise lost(error, tries) from None
    return heard(told, seen)
