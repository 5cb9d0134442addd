"""Threads that share the queries of a search, each on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from pe.errors import MissingDependency

Begin = Callable[[], object]
Block = TypeVar("Block")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Threads:
    """How many threads may share the queries of a search, and how each keeps to one core.

    Attributes:
        count: tells how many, ≥ 1.
        limits: of libraries, entered while threads share: each gives what a thread calls first.
    """

    count: Callable[[], int]
    limits: tuple[Callable[[], AbstractContextManager[Begin]], ...] = ()

    def map(self, work: Callable[[Block], Result], blocks: Sequence[Block], threads: int) -> list[Result]:
        """What `work` makes of each block, in their order, by so many threads; by the caller if it is one."""
        if threads == 1:
            return [work(block) for block in blocks]
        with ExitStack() as stack:
            begins = [stack.enter_context(limit()) for limit in self.limits]
            pool = stack.enter_context(ThreadPoolExecutor(threads, initializer=lambda: [each() for each in begins]))
            return list(pool.map(work, blocks))


ALONE = Threads(lambda: 1)
"""Of a search that uses all cores itself, or none."""


class _Limit:
    """NumPy's products on one thread in the whole process, from the first that enters to the last that leaves."""

    def __init__(self) -> None:
        self._lock, self._inside, self._stack = Lock(), 0, ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Limit them meanwhile.

        Raises:
            MissingDependency: threadpoolctl is not installed.
        """
        try:
            from threadpoolctl import threadpool_limits
        except ModuleNotFoundError as error:
            if error.name != "threadpoolctl":
                raise
            raise MissingDependency.of("threadpoolctl", "cpu", "The neighbour search") from error
        with self._lock:
            if not self._inside:
                self._stack.enter_context(threadpool_limits(1, user_api="blas"))
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._stack.close()


one_product_thread = _Limit()
"""Else products of several threads wait for each other: BLAS shares each one among all cores."""
