"""faiss on the CPU: float32 distances of all pairs, the queries shared by threads of one core each."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pe.nearest.decide import Neighbours, Threads
from pe.nearest.exact import FLOAT32, Arithmetic, Vectors
from pe.plugins.devices import import_library

_PURPOSE = "The neighbour search"


@contextmanager
def _one_core() -> Iterator[Callable[[], object]]:
    """Limit products of NumPy, and searches of faiss in threads that call the yielded function, to one core each.

    Else products of several threads wait for each other: BLAS shares each one among all cores.
    """
    faiss, limits = import_faiss(), import_library("threadpoolctl", "cpu", _PURPOSE).threadpool_limits
    before = faiss.omp_get_max_threads()
    try:
        with limits(1, user_api="blas"):
            yield partial(faiss.omp_set_num_threads, 1)
    finally:
        faiss.omp_set_num_threads(before)  # a limit on its BLAS sets these as well


class FaissSearch:
    """The search of IndexFlatL2, without that index's copy of the candidates.

    Threads share many queries and search on one core each: faiss's own threads share each product, and wait for each
    other at its end. Its kernels, BLAS or direct, compute in float32 as pe/nearest/exact.py assumes.
    """

    returns = sieve = Arithmetic(FLOAT32)
    threads = Threads(lambda: int(import_faiss().omp_get_max_threads()), _one_core)

    def __init__(self, candidates: Vectors) -> None:
        self._candidates = candidates

    def __call__(self, queries: Vectors, k: int) -> Neighbours:
        """The k candidates nearest to each query by computed squared distance."""
        distances, positions = import_faiss().knn(queries, self._candidates, k)
        return Neighbours(distances, positions, distances.max(axis=1))


def import_faiss() -> Any:
    """Return the library, or raise MissingDependency."""
    with warnings.catch_warnings():
        # SWIG's own types, in some builds: "builtin type SwigPyObject has no __module__ attribute"
        warnings.filterwarnings("ignore", message="builtin type", category=DeprecationWarning)
        return import_library("faiss", "cpu", _PURPOSE)
