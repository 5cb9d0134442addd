"""The check `search`: every neighbour search that is here against float64, with TF32 switched on for all of torch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import get_args

import numpy as np

from pe.errors import MissingDependency
from pe.nearest import Backend, nearest
from pe.nearest.choose import choose
from pe.nearest.exact import exact_nearest, settle
from pe.nearest.margin import Vectors
from pe.plugins.gpu_checks import Figure, Found, GPUCheck, Size, judged

_VOTES = 4
_CLOSE = 4
"""Candidates for each query that are all but equally near: only float64 tells them apart."""

_FLOAT32 = 2.0**-19
"""Largest error of a float32 distance, relative to (|x| + |c|)²: about 2^-23 in float32, 2^-16 in TF32."""

_LOOKED_AT = 64


@dataclass(frozen=True)
class _Shape:
    queries: int
    candidates: int
    width: int


_SHAPES: dict[Size, _Shape] = {
    "tiny": _Shape(40, 800, 96),
    "small": _Shape(256, 20_000, 512),
    "real": _Shape(2_048, 100_000, 768),
}


def search(_device: str, size: Size) -> Found:
    """Votes equal to the float64 reference, and float32 distances that are none of TF32; on the searcher's own device.

    It fails for votes that differ, and where a float32 search computes as inaccurately as TF32 does, although the
    votes may still be right.
    """
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32, as a program around ours may have it
    try:
        return _compared(_SHAPES[size])
    finally:
        torch.set_float32_matmul_precision(before)


def _compared(shape: _Shape) -> Found:
    """The result for queries and candidates of this shape."""
    queries, candidates = _vectors(shape)
    begun = time.perf_counter()
    wanted = exact_nearest(queries, candidates, _VOTES, "l2", candidates.mean(axis=0, dtype=np.float64))
    figures: dict[str, Figure] = {
        "shape": f"{shape.queries:,} queries, {shape.candidates:,} × {shape.width}",
        "float64 reference, s": time.perf_counter() - begun,
    }
    faults: list[str] = []
    backends: list[Backend] = [each for each in get_args(Backend) if each != "auto"]
    for backend in backends:
        try:
            searcher = choose(backend)
        except MissingDependency:
            figures[backend] = "not installed"
            continue
        begun = time.perf_counter()
        found = nearest(queries, candidates, _VOTES, backend=backend)
        figures[f"{searcher.words}, s"] = time.perf_counter() - begun
        figures[f"{searcher.words}: votes that differ"] = wrong = int((found != wanted).any(axis=1).sum())
        error = _error(queries[:_LOOKED_AT], candidates, backend)
        figures[f"{searcher.words}: largest relative error of a distance"] = error
        if wrong:
            faults.append(f"{searcher.words} gives {wrong} of {len(queries)} queries other votes than float64 does")
        if error > _FLOAT32:
            faults.append(f"{searcher.words} errs by {error:.1e}, and float32 by less than {_FLOAT32:.1e}: TF32 is on")
    return judged(figures, faults)


def _vectors(shape: _Shape) -> tuple[Vectors, Vectors]:
    """Gaussian queries and candidates, of which some are nearly at one distance of each query."""
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((shape.queries, shape.width), dtype=np.float32)
    candidates = rng.standard_normal((shape.candidates, shape.width), dtype=np.float32)
    ways = rng.standard_normal((shape.queries, _CLOSE, shape.width))
    ways *= (3 + 1e-6 * np.arange(_CLOSE)[:, None]) / np.linalg.norm(ways, axis=2, keepdims=True)
    candidates[: shape.queries * _CLOSE] = (queries[:, None] + ways).reshape(-1, shape.width)
    return queries, candidates


def _error(queries: Vectors, candidates: Vectors, backend: Backend) -> float:
    """The largest error of the distances that the most accurate search of a backend returns."""
    found = choose(backend).searches(candidates)[-1](queries, _VOTES)
    rows = np.repeat(np.arange(len(queries)), found.positions.shape[1])
    columns = found.positions.ravel()
    exact = settle(queries, candidates, rows, columns, "l2")
    reach = np.linalg.norm(queries, axis=1)[rows] + np.linalg.norm(candidates, axis=1)[columns]
    return float(np.abs((found.distances.ravel() - exact) / reach**2).max())


CHECK = GPUCheck(search, seconds=180)
