"""faiss: float32 distances on the CPU, of all pairs or of those that sketches or bytes leave open."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.errors import MissingDependency
from pe.nearest.byte_search import ByteSearch
from pe.nearest.decide import Found, Search
from pe.nearest.margin import FLOAT32, Arithmetic, Integers, Vectors
from pe.nearest.rounding import fit_rounding
from pe.nearest.sieve import SieveSearch
from pe.nearest.sketch import fit_sketch
from pe.nearest.threads import Begin, Threads, one_product_thread


@contextmanager
def _one_core() -> Iterator[Begin]:
    """Meanwhile products of NumPy, and searches of faiss in threads that call what this gives, use one core each.

    Raises:
        MissingDependency: threadpoolctl is not installed.
    """
    faiss = import_faiss()
    before = faiss.omp_get_max_threads()
    try:
        with one_product_thread():
            yield partial(faiss.omp_set_num_threads, 1)
    finally:
        faiss.omp_set_num_threads(before)  # a limit on its BLAS sets these as well


THREADS = Threads(lambda: int(import_faiss().omp_get_max_threads()), (_one_core,))
"""As many as faiss uses."""


class FaissSearch:
    """The search of IndexFlatL2 on the CPU, without that index's copy of the candidates.

    Threads share many queries and search on one core each: faiss's own threads share each product, and wait for each
    other at its end.

    Attributes:
        returned: its kernels, BLAS or direct, compute in float32 as pe/nearest/margin.py assumes.
        sieve: the same.
        threads: as many as faiss uses.
    """

    returned = sieve = Arithmetic(FLOAT32)
    threads = THREADS

    def __init__(self, candidates: Vectors) -> None:
        """Search these candidates, m×d.

        Raises:
            MissingDependency: faiss is not installed.
        """
        self._faiss = import_faiss()
        self._candidates = candidates

    def __call__(self, queries: Vectors, k: int) -> Found:
        """The k candidates nearest to each query by computed squared distance."""
        distances, positions = self._faiss.knn(queries, self._candidates, k)
        return Found(distances, positions, distances.max(axis=1))


def faiss_searches(candidates: Vectors, q: int = 1) -> tuple[Search, ...]:
    """The exhaustive search, and before it one by sketches or by bytes where the candidates promise that it saves work.

    Raises:
        MissingDependency: faiss is not installed.
    """
    whole = FaissSearch(candidates)
    with _one_core():  # products this small take several times the processor's time on more
        sketch = fit_sketch(candidates, q)
        rounding = fit_rounding(candidates, q, sketch.cost if sketch else 1.0)
    if rounding is not None:
        return ByteSearch(candidates, rounding, q, pairwise, THREADS), whole
    if sketch is not None:
        return SieveSearch(candidates, sketch, q, pairwise, THREADS), whole
    return (whole,)


def pairwise(queries: Vectors, candidates: Vectors, rows: Integers, columns: Integers) -> npt.NDArray[np.float32]:
    """The squared distance of each pair (queries[rows[p]], candidates[columns[p]]), from their differences."""
    faiss = import_faiss()
    distances = np.empty(len(rows), np.float32)
    given = (np.ascontiguousarray(part) for part in (queries, rows, candidates, columns))
    faiss.pairwise_indexed_L2sqr(queries.shape[1], len(rows), *map(faiss.swig_ptr, given), faiss.swig_ptr(distances))
    return distances


def import_faiss() -> Any:
    """The library.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            # SWIG's own types, in some builds: "builtin type SwigPyObject has no __module__ attribute"
            warnings.filterwarnings("ignore", message="builtin type", category=DeprecationWarning)
            import faiss
    except ModuleNotFoundError as error:
        if error.name != "faiss":
            raise
        raise MissingDependency.of("faiss", "cpu", "The neighbour search") from error
    return faiss
