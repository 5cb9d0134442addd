"""Trainings of scikit-learn side by side, each on one thread."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any, TypeVar

from pe.errors import MissingDependency

MEMORY = 2**31
"""Bytes of features that trainings hold at once."""

Job = TypeVar("Job")
Result = TypeVar("Result")


@lru_cache(maxsize=1)
def _libraries(_modules: int) -> Any:
    """The loaded libraries that have threads: looked for, among hundreds, only when more modules are loaded."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _Limits:
    """Limits of the whole process, from the first thread that enters to the last that leaves."""

    def __init__(self) -> None:
        self._lock, self._inside, self._stack = Lock(), 0, ExitStack()

    def enter(self, extra: str) -> None:
        """Enter, as the first one or one more."""
        try:
            from sklearn.exceptions import ConvergenceWarning

            libraries = _libraries(len(sys.modules))
        except ImportError as error:
            raise MissingDependency.of("scikit-learn", extra, "Measuring accuracy") from error
        with self._lock:
            if not self._inside:
                self._stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", ConvergenceWarning)
                self._stack.enter_context(libraries.limit(limits=1))
            self._inside += 1

    def leave(self) -> None:
        """Leave; the last one restores what was."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._stack.close()


_LIMITS = _Limits()


@contextmanager
def on_one_thread(extra: str = "evaluation") -> Iterator[None]:
    """scikit-learn on one thread, since products this small are slower on more; max_iter is a stopping rule, no fault.

    Raises:
        MissingDependency: scikit-learn is not installed, which the `extra` brings.
    """
    _LIMITS.enter(extra)
    try:
        yield
    finally:
        _LIMITS.leave()


def at_once(jobs: int, features: int) -> int:
    """How many trainings go on side by side, ≥ 1: as many as BLAS would take threads, within MEMORY.

    Args:
        jobs: their number.
        features: numbers, as float64, that the largest of them trains on.
    """
    pools = _libraries(len(sys.modules)).info()
    threads = max((pool["num_threads"] for pool in pools if pool["user_api"] == "blas"), default=1)
    return max(1, min(threads, jobs, MEMORY // max(8 * features, 1)))


@contextmanager
def side_by_side(
    train: Callable[[Job], Result], jobs: Sequence[Job], threads: int, extra: str = "evaluation"
) -> Iterator[Iterator[Result]]:
    """The result of every job, in their order, from so many threads. On leaving, jobs not begun are dropped.

    Raises:
        MissingDependency: scikit-learn is not installed, which the `extra` brings.
    """
    if threads == 1:
        yield map(train, jobs)
        return
    with on_one_thread(extra), ThreadPoolExecutor(threads) as pool:
        results = [pool.submit(train, job) for job in jobs]
        try:
            yield (each.result() for each in results)
        finally:
            pool.shutdown(cancel_futures=True)
