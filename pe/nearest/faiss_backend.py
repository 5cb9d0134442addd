"""faiss: exhaustive float32 search, on the cards that a GPU build of it sees, else on the CPU."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from pe.errors import MissingDependency, RecipeError
from pe.nearest.decide import Found, Search
from pe.nearest.margin import FLOAT32, Arithmetic, Vectors

_MOST = 2048  # neighbours that its kernels for GPUs find


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


class FaissCardsSearch:
    """The same search on every card, each with a copy of the candidates and its share of the queries.

    Attributes:
        returned: float32 without tensor cores: faiss leaves cuBLAS in its default mode, and cuVS is not used.
        sieve: the same.
    """

    returned = sieve = Arithmetic(FLOAT32)

    def __init__(self, candidates: Vectors) -> None:
        """Search these candidates, m×d."""
        self._indexes = [_on_card(candidates, card) for card in range(cards())]

    def __call__(self, queries: Vectors, k: int) -> Found:
        """The k candidates nearest to each query by computed squared distance.

        Raises:
            RecipeError: more neighbours than faiss finds on a GPU.
        """
        if k > _MOST:
            raise RecipeError(
                f"faiss on a GPU finds at most {_MOST:,} neighbours at a time, not {k:,}: lower evolution.neighbors, "
                "or set evolution.neighbor_search: torch."
            )
        shares = np.array_split(queries, len(self._indexes))
        with ThreadPoolExecutor(len(self._indexes)) as pool:
            found = list(pool.map(lambda index, share: index.search(share, k), self._indexes, shares))
        distances, positions = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return Found(distances, positions, distances.max(axis=1))


def faiss_searches(candidates: Vectors) -> tuple[Search]:
    """The search by faiss on all cards that it sees, or on the CPU.

    Raises:
        MissingDependency: faiss is not installed.
    """
    return (FaissCardsSearch(candidates) if cards() else FaissSearch(candidates),)


def cards() -> int:
    """Cards that faiss can use: none in a build for the CPU.

    Raises:
        MissingDependency: faiss is not installed.
    """
    faiss = import_faiss()
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


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


def _on_card(candidates: Vectors, card: int) -> Any:
    faiss = import_faiss()
    config = faiss.GpuIndexFlatConfig()
    config.device = card
    config.useFloat16 = False
    config.use_cuvs = False  # its kernels sum otherwise than pe/nearest/margin.py assumes
    index = faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), candidates.shape[1], config)
    index.add(candidates)
    return index
