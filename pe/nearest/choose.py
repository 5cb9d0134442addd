"""Which library searches, and where: as the recipe says, or a GPU if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, Protocol

from pe.nearest import faiss_backend, torch_backend
from pe.nearest.decide import Search
from pe.nearest.margin import Vectors
from pe.plugins.devices import has_driver, words_for

Backend = Literal["auto", "faiss", "torch"]


class Searches(Protocol):
    """What a library makes of candidates."""

    def __call__(self, candidates: Vectors, q: int = 1, /) -> Sequence[Search]:
        """Searches for the q nearest of these candidates, from the fastest to the most accurate."""
        ...


@dataclass(frozen=True)
class Searcher:
    """A library on one kind of device.

    Attributes:
        words: what and where, for the log.
        searches: what it makes of candidates.
    """

    words: str
    searches: Searches


def choose(backend: Backend) -> Searcher:
    """The searcher of this name: faiss on the CPU; torch on all GPUs that it sees, or on the CPU.

    `auto` is torch where that sees a GPU, else faiss, or torch where faiss is not installed. What is chosen is what
    searches: an error of it is never answered by another.

    Raises:
        MissingDependency: the library is not installed.
        RecipeError: torch sees none of the driver's GPUs.
    """
    if backend == "torch" or (backend == "auto" and _torch_is_better()):
        places = torch_backend.devices()
        where = "the CPU" if places == [torch_backend.CPU] else words_for(len(places))
        return Searcher(f"torch on {where}", torch_backend.torch_searches)
    faiss_backend.import_faiss()
    return Searcher("faiss on the CPU", faiss_backend.faiss_searches)


def describe(backend: Backend) -> str:
    """The library and the device that `backend` comes to here.

    Raises:
        MissingDependency: the library is not installed.
        RecipeError: torch sees none of the driver's GPUs.
    """
    return choose(backend).words


def _torch_is_better() -> bool:
    if find_spec("torch") is None:
        return False
    return find_spec("faiss") is None or (has_driver() and torch_backend.devices() != [torch_backend.CPU])
