"""faiss: exhaustive float32 search on the CPU."""

from __future__ import annotations

import warnings
from typing import Any

from pe.errors import MissingDependency
from pe.nearest.decide import Found
from pe.nearest.margin import FLOAT32, Arithmetic, Vectors


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
