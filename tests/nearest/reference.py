"""The definition of the answer, written out naively: Python loops, one pair at a time."""

from __future__ import annotations

import math

import numpy as np


def folded(terms: list[float]) -> float:
    while len(terms) > 1:
        half = (len(terms) + 1) // 2
        upper = terms[half:]
        terms = [low + up for low, up in zip(terms, upper, strict=False)] + terms[len(upper) : half]
    return terms[0]


def lifted(vector: np.ndarray, metric: str) -> list[float]:
    values = [float(v) for v in vector]
    norm = math.sqrt(folded([v * v for v in values])) if metric == "cosine" else 1.0
    return [v / norm for v in values] if norm else values


def distance(x: list[float], c: list[float], metric: str) -> float:
    """Of two lifted vectors."""
    if metric == "cosine" and not (any(x) and any(c)):
        return 2.0
    return folded([(a - b) * (a - b) for a, b in zip(x, c, strict=True)])


def naive(queries: np.ndarray, candidates: np.ndarray, q: int, metric: str = "l2") -> np.ndarray:
    seen: set[tuple[float, ...]] = set()
    kept: dict[int, list[float]] = {}
    for j, c in enumerate(candidates):
        if np.isfinite(c).all() and tuple(c.tolist()) not in seen:  # tuples: -0.0 == 0.0
            seen.add(tuple(c.tolist()))
            kept[j] = lifted(c, metric)
    answer = np.full((len(queries), q), -1, np.int64)
    for i, query in enumerate(queries):
        if np.isfinite(query).all():
            x = lifted(query, metric)
            ranked = sorted((distance(x, c, metric), j) for j, c in kept.items())[:q]
            answer[i, : len(ranked)] = [j for _, j in ranked]
    return answer
