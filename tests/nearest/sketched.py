"""A search by sketches of whatever candidates, however few and however little it saves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from pe.nearest import faiss_backend, sieve
from pe.nearest.sieve import SieveSearch
from pe.nearest.sketch import Sketch

SKETCHES = "faiss by sketches"


def random_axes(d: int, r: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, r)))[0]


def any_sketch(candidates: np.ndarray, _q: int = 1) -> Sketch | None:
    """By a third of as many random axes; none of a single dimension."""
    d = candidates.shape[1]
    return Sketch(random_axes(d, -(-d // 3))) if d > 1 else None


def by_sketches(q: int, pairwise=faiss_backend.pairwise):
    return lambda placed: [SieveSearch(placed, any_sketch(placed), q, pairwise)]


@contextmanager
def backend_of(name: str) -> Iterator[str]:
    """The backend's own name; where it is to search by sketches it does, in several blocks, giving up no query."""
    with pytest.MonkeyPatch.context() as patch:
        if name == SKETCHES:
            patch.setattr(faiss_backend, "fit_sketch", any_sketch)
            patch.setattr(sieve, "_COLUMNS", 16)
            patch.setattr(sieve, "GIVE_UP", 1.0)
        yield "faiss" if name == SKETCHES else name
