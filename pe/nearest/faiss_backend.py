"""faiss on the CPU (or whatever build of it is installed): exhaustive float32 search."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from pe.errors import MissingDependency
from pe.nearest.margin import FLOAT32, Integers, Vectors


class FaissSearch:
    """The search of IndexFlatL2, without that index's copy of the candidates.

    Attributes:
        roundoff: its kernels, BLAS or direct, compute in float32 as pe/nearest/margin.py assumes.
    """

    roundoff = FLOAT32

    def __init__(self, candidates: Vectors) -> None:
        """Search these candidates, m×d.

        Raises:
            MissingDependency: faiss is not installed.
        """
        self._knn = _faiss().knn
        self._candidates = candidates

    def __call__(self, queries: Vectors, k: int) -> tuple[npt.NDArray[np.float32], Integers]:
        """The k candidates nearest to each query by computed squared distance: distances and indices, n×k."""
        distances, indices = self._knn(queries, self._candidates, k)
        return distances, indices


def _faiss() -> Any:
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
