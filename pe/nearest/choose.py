"""Which library searches, and where: as the recipe says, or the fastest that is here."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from pe.nearest import faiss_backend, torch_backend
from pe.nearest.decide import Search
from pe.nearest.margin import Vectors

Backend = Literal["auto", "faiss", "torch"]


@dataclass(frozen=True)
class Searcher:
    """A library on a device.

    Attributes:
        words: what and where, for the log.
        searches: candidates → its searches, from the fastest to the most accurate.
    """

    words: str
    searches: Callable[[Vectors], Sequence[Search]]


def choose(backend: Backend) -> Searcher:
    """The searcher of this name; `auto` takes a GPU if there is one, by faiss if its build can use it, else by torch.

    Without a GPU, `auto` is faiss, or torch where faiss is not installed. What is chosen is what searches: an
    error of it is never answered by another.

    Raises:
        MissingDependency: the library is not installed.
    """
    if backend == "torch" or (backend == "auto" and _torch_is_better()):
        return Searcher(f"torch on {torch_backend.device()}", torch_backend.torch_searches)
    cards = faiss_backend.cards()
    where = "the CPU" if not cards else "1 GPU" if cards == 1 else f"{cards} GPUs"
    return Searcher(f"faiss on {where}", faiss_backend.faiss_searches)


def describe(backend: Backend) -> str:
    """The library and the device that `backend` comes to here.

    Raises:
        MissingDependency: the library is not installed.
    """
    return choose(backend).words


def _torch_is_better() -> bool:
    if find_spec("torch") is None:
        return False
    if find_spec("faiss") is None:
        return True
    return _has_driver() and not faiss_backend.cards() and torch_backend.device() == "cuda"


def _has_driver() -> bool:
    """Whether there is a driver of NVIDIA's; without one torch, which is slow to load, need not be asked."""
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
