"""The nearest candidates of each record: found in float32, decided in float64."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

import numpy as np

from pe.data.arrays import Int64Array
from pe.data.samples import distinct_rows
from pe.errors import RecipeError
from pe.nearest import by_faiss, by_torch
from pe.nearest.decide import Decider, Search
from pe.nearest.exact import Metric, Vectors
from pe.plugins.devices import has_driver, words_for

Backend = Literal["auto", "faiss", "torch"]


def nearest(
    queries: Vectors,
    candidates: Vectors,
    q: int = 1,
    *,
    metric: Metric = "l2",
    backend: Backend = "auto",
    places: Int64Array | None = None,
) -> Int64Array:
    """Return the q distinct candidates nearest to each query, nearest first: int64, n×q.

    Guarantee: row i is a function of queries[i] and the candidates alone. It is bit-identical
    whatever other queries there are, whatever the blocks, threads, BLAS or backend, because it
    equals, provably, a brute-force search by the float64 distances of pe/nearest/exact.py; the
    backend's float32 only saves work. So adding or removing one record changes one row of votes.
    How long the call takes does depend on the records.

    Memory holds the candidates a few times over and one block of queries: never n×m.

    Edges: ties go to the lowest index. Equal candidates (−0.0 equals 0.0) count once, under their
    lowest index, and candidates with a NaN or infinite entry not at all; where fewer than q are
    left, the last entries are −1, no vote. A query with a NaN or infinite entry casts none: its row
    is −1. Under cosine a zero vector is at a right angle to every vector.

    Args:
        queries: float32, n×d; may be memory-mapped, and is read in blocks. Private, as a rule.
        candidates: float32, m×d. Public.
        q: neighbours per query, 1 ≤ q ≤ m.
        metric: "l2", or "cosine": Euclidean distance between the vectors normalised in float64.
        backend: "faiss" or "torch", each on all GPUs that it sees, or on the CPU; "auto": the first
            of faiss on GPUs, torch on GPUs, faiss, torch that this machine has.
        places: int64, ascending: search only for the queries at these positions, read in blocks;
            None: for all.

    Raises:
        RecipeError: an argument is not as described; torch sees none of the driver's GPUs; or a GPU
            fails.
        MissingDependency: the backend is not installed.
    """
    _check(queries, candidates, q)
    first = _distinct(candidates)
    answer = np.full((len(queries) if places is None else len(places), q), -1, np.int64)
    if first.size:
        vectors = np.ascontiguousarray(
            candidates if len(first) == len(candidates) else candidates[first]
        )
        decider = Decider(vectors, min(q, len(first)), metric, _choose(backend)[1])
        positions = decider(queries, places)
        answer[:, : decider.q] = np.where(positions >= 0, first[positions], -1)
    return answer


def describe_search(backend: Backend) -> str:
    """Return the library and the device that `backend` means on this machine, in words.

    Raises what `nearest` raises.
    """
    return _choose(backend)[0]


def _choose(backend: Backend) -> tuple[str, Callable[[Vectors], Search]]:
    """Return the library and device in words, and a function that makes a search of candidates."""
    gpus = 0 if backend == "torch" else by_faiss.count_gpus()
    if gpus:
        return f"faiss on {words_for(gpus)}", by_faiss.gpu_search
    if backend == "torch" or (backend == "auto" and _torch_is_better()):
        places = by_torch.devices()
        return (
            f"torch on {'the CPU' if places == [by_torch.CPU] else words_for(len(places))}",
            by_torch.torch_search,
        )
    by_faiss.import_faiss()
    return "faiss on the CPU", by_faiss.FaissSearch


def _torch_is_better() -> bool:
    """Return True if torch is installed, and either sees a GPU or faiss is not installed."""
    if find_spec("torch") is None:
        return False
    return find_spec("faiss") is None or (has_driver() and by_torch.devices() != [by_torch.CPU])


def _distinct(candidates: Vectors) -> Int64Array:
    """Return the index of the first occurrence of each finite vector, ascending.

    −0.0 and 0.0 count as equal.
    """
    finite = np.flatnonzero(np.isfinite(candidates).all(axis=1))
    first, _ = distinct_rows(candidates[finite] + np.float32(0))  # −0.0 + 0.0 = 0.0
    return finite[np.sort(first)]


def _check(queries: Vectors, candidates: Vectors, q: int) -> None:
    # messages name no number of queries: under add/remove that is private
    for name, array in (("queries", queries), ("candidates", candidates)):
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            kind = getattr(array, "dtype", type(array).__name__)
            raise RecipeError(
                f"The neighbour search takes float32 {name}, not {kind}: convert with astype."
            )
    if queries.shape[1] != candidates.shape[1]:
        raise RecipeError(
            f"Queries have {queries.shape[1]} dimensions and candidates {candidates.shape[1]}: "
            "embed both alike."
        )
    if not isinstance(q, int | np.integer) or not 1 <= q <= len(candidates):
        raise RecipeError(
            f"{q} neighbours are asked for, but there are {len(candidates)} candidates: ask for a "
            "whole number from 1 to that."
        )
