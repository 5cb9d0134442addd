"""Searches by sketches and by bytes of whatever candidates, however few and however little they save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from pe.nearest import byte_search, faiss_backend, sieve
from pe.nearest.byte_search import ByteSearch
from pe.nearest.rounding import Rounding, has_products
from pe.nearest.sieve import SieveSearch
from pe.nearest.sketch import Sketch
from pe.nearest.threads import ALONE, Threads

SKETCHES = "faiss by sketches"
BYTES = "faiss by bytes"


def random_axes(d: int, r: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, r)))[0]


def any_sketch(candidates: np.ndarray, _q: int = 1) -> Sketch | None:
    """By a third of as many random axes; none of a single dimension."""
    d = candidates.shape[1]
    return Sketch(random_axes(d, -(-d // 3))) if d > 1 else None


def by_sketches(q: int, pairwise=faiss_backend.pairwise, threads: Threads = ALONE):
    return lambda placed: [SieveSearch(placed, any_sketch(placed), q, pairwise, threads)]


def by_bytes(q: int, pairwise=faiss_backend.pairwise, threads: Threads = ALONE):
    return lambda placed: [ByteSearch(placed, Rounding.of(placed), q, pairwise, threads)]


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    """Search by bytes in several blocks, give up no query, and multiply exactly on every machine."""
    for name, value in {"_ROWS": 8, "_COLUMNS": 16, "_GROUP": 4, "GIVE_UP": 1.0}.items():
        patch.setattr(byte_search, name, value)
    if not has_products():
        patch.setattr(byte_search, "multiply", lambda x, c, out: out.copy_((x.long() @ c.T.long()).to(torch.int32)))


@contextmanager
def backend_of(name: str) -> Iterator[str]:
    """The backend's own name; where sketches or bytes are to search they do, in several blocks, giving up no query."""
    with pytest.MonkeyPatch.context() as patch:
        if name == SKETCHES:
            patch.setattr(faiss_backend, "fit_sketch", any_sketch)
            patch.setattr(sieve, "_COLUMNS", 16)
            patch.setattr(sieve, "GIVE_UP", 1.0)
        if name == BYTES:
            patch.setattr(faiss_backend, "fit_rounding", lambda c, *_: Rounding.of(c) if len(c) else None)
            small_blocks(patch)
        yield "faiss" if name in {SKETCHES, BYTES} else name
