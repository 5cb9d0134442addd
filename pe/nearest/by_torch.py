"""Neighbour search by torch on all GPUs, or on the CPU: in blocks, by products in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pe.data.samples import slices
from pe.nearest.decide import ALONE, Neighbours, Search, SharedSearch, failure_in_a_sentence
from pe.nearest.exact import Vectors
from pe.plugins.devices import find_cards, import_library, with_attributes

if TYPE_CHECKING:
    from torch import Tensor

CPU = "cpu"

_BLOCK = 2**26  # most distances computed together
_PAIRS = 2**25  # most elements of vectors that are squared together
_BYTES = 16  # free on a GPU for each float32 element of a temporary: so it takes a quarter


class TorchSearch:
    """Search by products in float32 on the candidates' device.

    Enter `in_float32` around it.
    """

    threads = ALONE  # torch has its own

    def __init__(self, candidates: Tensor) -> None:
        self._candidates = candidates
        self._squares = _squares(candidates)

    def __call__(self, queries: Vectors, k: int) -> Neighbours:
        """Return the k candidates nearest to each query by the distances that the products give."""
        import torch

        device = self._candidates.device
        sentence = failure_in_a_sentence("torch", self._candidates.shape, str(device))
        with torch.inference_mode(), sentence:
            on_device = torch.from_numpy(queries).to(device)
            distances, positions = self._nearest(on_device, k)
            last = distances.amax(dim=1)
            return Neighbours(distances.cpu().numpy(), positions.cpu().numpy(), last.cpu().numpy())

    def _nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the k smallest squared distances and their positions, n×k.

        They are found in one block of candidates after another.
        """
        import torch

        squares = _squares(queries)[:, None]
        step = max(k, _affordable(_BLOCK, queries) // len(queries))
        best, positions = (
            queries.new_empty((len(queries), 0), dtype=kind)
            for kind in (torch.float32, torch.int64)
        )
        for part in slices(len(self._candidates), step):
            block = _product(queries, self._candidates[part])
            block.mul_(-2).add_(squares).add_(self._squares[part])
            distances, places = block.topk(min(k, block.shape[1]), largest=False, sorted=False)
            best = torch.cat([best, distances], dim=1)
            positions = torch.cat([positions, places.add_(part.start)], dim=1)
            if part.start:
                best, order = best.topk(k, largest=False, sorted=False)
                positions = positions.gather(1, order)
        return best, positions


def torch_search(candidates: Vectors) -> Search:
    """Return one search that shares the queries among all devices.

    Raises:
        RecipeError: torch sees none of the driver's GPUs, or a GPU fails, usually for want of
            memory.
    """
    torch = _import_torch()
    places = devices()
    tensor = torch.from_numpy(candidates)
    with failure_in_a_sentence("torch", tensor.shape, ", ".join(places)):
        # the setting is the whole process's: a thread that ends must not take it from the others
        return SharedSearch([TorchSearch(tensor.to(place)) for place in places], in_float32)


def devices() -> list[str]:
    """Return the names of all GPUs that torch sees, or the CPU.

    Raises:
        RecipeError: torch sees none of the driver's GPUs.
    """
    _import_torch()
    cards = find_cards(
        "evolution.neighbor_search: faiss, or CUDA_VISIBLE_DEVICES= to hide them, to search on the "
        "CPU"
    )
    return [f"cuda:{i}" for i in range(cards)] or [CPU]


def _import_torch() -> Any:
    return import_library("torch", "embeddings", "The neighbour search by torch")


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right.T


def _squares(vectors: Tensor) -> Tensor:
    """The squared norm of each row."""
    import torch

    step = max(1, _affordable(_PAIRS, vectors) // vectors.shape[1])
    return torch.cat([rows.square().sum(dim=1) for rows in torch.split(vectors, step)])


def _affordable(most: int, beside: Tensor) -> int:
    """Return how many float32 elements a temporary may have beside a tensor: at most `most`."""
    import torch

    device = beside.device
    if device.type != "cuda":
        return most
    # torch's allocator returns to the driver, where memory is short, what it keeps in reserve
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(most, (torch.cuda.mem_get_info(device)[0] + reserve) // _BYTES)


def in_float32() -> AbstractContextManager[None]:
    """Keep torch's float32 products from tensor cores (tf32), in the whole process."""
    backends = _import_torch().backends
    name = "fp32_precision"
    return with_attributes(
        (backends.cuda.matmul, name, "ieee"),
        (backends.mkldnn.matmul, name, "ieee"),
    )
