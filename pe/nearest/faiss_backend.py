"""faiss: float32 distances on the CPU, of all pairs or of those that sketches leave open."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.errors import MissingDependency
from pe.nearest.decide import Found, Search
from pe.nearest.margin import FLOAT32, Arithmetic, Integers, Vectors
from pe.nearest.sieve import SieveSearch
from pe.nearest.sketch import fit_sketch


class FaissSearch:
    """The search of IndexFlatL2 on the CPU, without that index's copy of the candidates.

    Attributes:
        returned: its kernels, BLAS or direct, compute in float32 as pe/nearest/margin.py assumes.
        sieve: the same.
    """

    returned = sieve = Arithmetic(FLOAT32)

    def __init__(self, candidates: Vectors) -> None:
        """Search these candidates, m×d.

        Raises:
            MissingDependency: faiss is not installed.
        """
        self._knn = import_faiss().knn
        self._candidates = candidates

    def __call__(self, queries: Vectors, k: int) -> Found:
        """The k candidates nearest to each query by computed squared distance."""
        distances, positions = self._knn(queries, self._candidates, k)
        return Found(distances, positions, distances.max(axis=1))


def faiss_searches(candidates: Vectors, q: int = 1) -> tuple[Search, ...]:
    """The exhaustive search, and before it one by sketches where the candidates promise that it saves work.

    Raises:
        MissingDependency: faiss is not installed.
    """
    whole = FaissSearch(candidates)
    sketch = fit_sketch(candidates, q)
    return (whole,) if sketch is None else (SieveSearch(candidates, sketch, q, pairwise), whole)


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
