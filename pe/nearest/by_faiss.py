"""Neighbour search by faiss, in float32, on all GPUs that faiss sees or on the CPU."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from pe.data.arrays import Int64Array
from pe.errors import RecipeError
from pe.nearest.decide import (
    ALONE,
    Neighbours,
    Search,
    SharedSearch,
    Threads,
    failure_in_a_sentence,
)
from pe.nearest.exact import Vectors
from pe.plugins.devices import import_library, words_of_error

_PURPOSE = "The neighbour search"
_MOST = 2048  # neighbours that faiss finds for a query on a GPU
_TEMPORARY = 2**29  # bytes that faiss reserves on a GPU for temporaries; it tiles larger ones
_TRIAL = """
import faiss, numpy as np
rows = np.eye(8, dtype=np.float32)
for card in range(faiss.get_num_gpus()):
    resources = faiss.StandardGpuResources()
    resources.noTempMemory()
    nearest = faiss.knn_gpu(resources, rows, rows, 1, device=card)[1][:, 0]
    assert nearest.tolist() == list(range(8)), f"GPU {card} finds wrong neighbours"
"""


@contextmanager
def _one_core() -> Iterator[Callable[[], object]]:
    """Limit each NumPy product to one core, and each faiss search in threads that say so.

    A thread says so by calling the function that is yielded. Without the limit, BLAS spreads each
    product over all cores, and the products of several threads wait for each other.
    """
    faiss = import_faiss()
    limits = import_library("threadpoolctl", "cpu", _PURPOSE).threadpool_limits
    before = faiss.omp_get_max_threads()
    try:
        with limits(1, user_api="blas"):
            yield partial(faiss.omp_set_num_threads, 1)
    finally:
        faiss.omp_set_num_threads(before)  # a limit on its BLAS sets these as well


class FaissSearch:
    """The search of faiss's IndexFlatL2, without the copy of the candidates that it makes.

    If there are many queries, several threads share them and search on one core each: faiss's own
    threads would share each product and wait at its end. Its kernels, BLAS or direct, compute in
    float32 as pe/nearest/exact.py assumes.
    """

    threads = Threads(lambda: int(import_faiss().omp_get_max_threads()), _one_core)

    def __init__(self, candidates: Vectors) -> None:
        self._candidates = candidates

    def __call__(self, queries: Vectors, k: int) -> Neighbours:
        """Return the k candidates nearest to each query by computed squared distance."""
        return _neighbours(*import_faiss().knn(queries, self._candidates, k))


class FaissGPUSearch:
    """The search of FaissSearch on one GPU, with a copy of the candidates there.

    faiss forbids cuBLAS products of less precision (StandardGpuResources.cpp), so the arithmetic is
    that of float32.
    """

    threads = ALONE  # the GPU's own

    def __init__(self, candidates: Vectors, card: int) -> None:
        faiss = import_faiss()
        config = faiss.GpuIndexFlatConfig()
        config.device = card
        self._sentence = partial(failure_in_a_sentence, "faiss", candidates.shape, f"GPU {card}")
        with self._sentence():
            self._index = faiss.GpuIndexFlatL2(_resources(card), candidates.shape[1], config)
            self._index.add(candidates)

    def __call__(self, queries: Vectors, k: int) -> Neighbours:
        """The k candidates nearest to each query by computed squared distance."""
        if k > _MOST:
            raise RecipeError(
                f"faiss finds at most {_MOST:,} neighbours on a GPU: set "
                "evolution.neighbor_search: torch."
            )
        with self._sentence():
            return _neighbours(*self._search(queries, k))

    def _search(self, queries: Vectors, k: int) -> tuple[Vectors, Int64Array]:
        """Search for half of the queries at a time where the GPU lacks memory for all."""
        try:
            distances, positions = self._index.search(queries, k)
        except RuntimeError as error:
            if len(queries) == 1 or "out of memory" not in str(error):
                raise
            halves = [self._search(half, k) for half in np.array_split(queries, 2)]
            distances, positions = (np.concatenate(part) for part in zip(*halves, strict=True))
        return distances, positions


def _neighbours(distances: Vectors, positions: Int64Array) -> Neighbours:
    return Neighbours(distances, positions, distances.max(axis=1))


@cache
def _resources(card: int) -> Any:
    """Return a GPU's streams and its reserve for temporaries.

    They are kept as long as the process lives.
    """
    resources = import_faiss().StandardGpuResources()
    resources.setTempMemory(_TEMPORARY)
    return resources


@cache
def _try_gpus() -> None:
    """Try a search on every GPU, in a child process.

    faiss aborts its process where a GPU cannot run its kernels.
    """
    trial = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _TRIAL],
        capture_output=True,
        text=True,
        check=False,
    )
    if trial.returncode:
        lines = trial.stderr.strip().splitlines() or [f"status {trial.returncode}"]
        reason = lines[-1].rpartition("details: ")[2][:200]
        raise RecipeError(
            f"faiss cannot search on this machine's GPUs ({reason}): install a build of faiss for "
            "them, set evolution.neighbor_search: torch, or hide them by CUDA_VISIBLE_DEVICES= to "
            "search on the CPU."
        )


def count_gpus() -> int:
    """Return the number of GPUs that faiss sees: 0 for the wheel `faiss-cpu`, or without faiss."""
    return int(import_faiss().get_num_gpus()) if find_spec("faiss") else 0


def gpu_search(candidates: Vectors) -> Search:
    """Return one search that shares the queries among all GPUs.

    Raises:
        RecipeError: a GPU fails, usually for want of memory, or this build of faiss has no kernels
            for it.
    """
    _try_gpus()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # what torch keeps of the GPU's memory for later
    return SharedSearch([FaissGPUSearch(candidates, card) for card in range(count_gpus())])


def import_faiss() -> Any:
    """Return faiss.

    Raises:
        MissingDependency: it is not installed.
        RecipeError: it cannot be loaded.
    """
    with warnings.catch_warnings():
        # SWIG's own types, in some builds: "builtin type SwigPyObject has no __module__ attribute"
        warnings.filterwarnings("ignore", message="builtin type", category=DeprecationWarning)
        try:
            return import_library("faiss", "cpu", _PURPOSE)
        except (
            ImportError,
            AttributeError,
            OSError,
            RuntimeError,
        ) as error:  # no library of CUDA, or two wheels mixed
            raise RecipeError(
                f"faiss cannot be loaded ({words_of_error(error)}): `pe doctor` names its wheels."
            ) from error
