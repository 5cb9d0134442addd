"""Neighbour search by torch on all GPUs, or on the CPU: in blocks, by products on tensor cores if there are any."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pe.data.samples import slices
from pe.nearest.decide import ALONE, Neighbours, Search, SharedSearch, failure_in_a_sentence
from pe.nearest.exact import FLOAT32, TENSOR_CORES, Arithmetic, Vectors
from pe.plugins.devices import find_cards, import_library, with_attributes

if TYPE_CHECKING:
    from torch import Tensor

Precision = Literal["fp32", "tf32"]

CPU = "cpu"

_SIEVES = {
    "fp32": Arithmetic(FLOAT32),
    "tf32": Arithmetic(TENSOR_CORES, 2.0**-10),  # 11 bits, possibly cut instead of rounded
}
_BLOCK = 2**26  # most distances computed together
_PAIRS = 2**25  # most elements of vectors that are squared together
_BYTES = 16  # free on a GPU for each float32 element of a temporary: so it takes a quarter


class TorchSearch:
    """Search by products in `precision` on the candidates' device; distances found by tf32 are redone in float32."""

    returns = Arithmetic(FLOAT32)
    threads = ALONE  # torch has its own

    def __init__(self, candidates: Tensor, precision: Precision) -> None:
        self.sieve = _SIEVES[precision]
        self._candidates, self._precision = candidates, precision
        self._factors = _factors(candidates, precision)
        self._squares = _squares(candidates)

    def __call__(self, queries: Vectors, k: int) -> Neighbours:
        """The k candidates nearest to each query by the distances that the products give."""
        import torch

        device = self._candidates.device
        sentence = failure_in_a_sentence("torch", self._candidates.shape, str(device))
        with torch.inference_mode(), sentence:
            on_device = torch.from_numpy(queries).to(device)
            coarse, positions = self._nearest(on_device, k)
            distances = coarse if self._precision == "fp32" else self._anew(on_device, positions)
            last = coarse.amax(dim=1)
            return Neighbours(distances.cpu().numpy(), positions.cpu().numpy(), last.cpu().numpy())

    def _nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k smallest squared distances and their positions, n×k, from one block of candidates after another."""
        import torch

        factors, squares = _factors(queries, self._precision), _squares(queries)[:, None]
        step = max(k, _affordable(_BLOCK, queries) // len(queries))
        best, positions = (queries.new_empty((len(queries), 0), dtype=kind) for kind in (torch.float32, torch.int64))
        for part in slices(len(self._candidates), step):
            block = _product(factors, self._factors[part])
            block.mul_(-2).add_(squares).add_(self._squares[part])
            distances, places = block.topk(min(k, block.shape[1]), largest=False, sorted=False)
            best = torch.cat([best, distances], dim=1)
            positions = torch.cat([positions, places.add_(part.start)], dim=1)
            if part.start:
                best, order = best.topk(k, largest=False, sorted=False)
                positions = positions.gather(1, order)
        return best, positions

    def _anew(self, queries: Tensor, positions: Tensor) -> Tensor:
        """The float32 squared distances of each query to the candidates at its row of `positions`, by differences."""
        import torch

        step = max(1, _affordable(_PAIRS, queries) // (positions.shape[1] * queries.shape[1]))
        parts = zip(torch.split(queries, step), torch.split(positions, step), strict=True)
        return torch.cat([(some[:, None] - self._candidates[places]).square().sum(dim=2) for some, places in parts])


def torch_searches(candidates: Vectors) -> tuple[Search, ...]:
    """Return the searches: by tf32 if all devices are GPUs that have it; then by float32, for the queries left open.

    RecipeError: torch sees none of the driver's GPUs, or a GPU fails, for want of memory as a rule.
    """
    torch = _import_torch()
    places, tensor = devices(), torch.from_numpy(candidates)
    with failure_in_a_sentence("torch", tensor.shape, ", ".join(places)):
        tensor_cores = all(place != CPU and torch.cuda.get_device_capability(place) >= (8, 0) for place in places)
        precisions: tuple[Precision, ...] = ("tf32", "fp32") if tensor_cores else ("fp32",)
        copies = [tensor.to(place) for place in places]
        # the setting is the whole process's: a thread that ends must not take it from the others
        searches = {one: [TorchSearch(copy, one) for copy in copies] for one in precisions}
        return tuple(SharedSearch(each, partial(_products, one)) for one, each in searches.items())


def devices() -> list[str]:
    """Return the names of all GPUs that torch sees, or the CPU; RecipeError: it sees none of the driver's GPUs."""
    _import_torch()
    cards = find_cards("evolution.neighbor_search: faiss, or CUDA_VISIBLE_DEVICES= to hide them, to search on the CPU")
    return [f"cuda:{i}" for i in range(cards)] or [CPU]


def _import_torch() -> Any:
    return import_library("torch", "embeddings", "The neighbour search by torch")


def _factors(vectors: Tensor, precision: Precision) -> Tensor:
    """Return the vectors as a matrix product in `precision` takes them; on a CPU, cut to the bits of tf32."""
    import torch

    if precision == "tf32" and not vectors.is_cuda:
        return (vectors.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return vectors


def _product(left: Tensor, right: Tensor) -> Tensor:
    return left @ right.T


def _squares(vectors: Tensor) -> Tensor:
    """The squared norm of each row."""
    import torch

    step = max(1, _affordable(_PAIRS, vectors) // vectors.shape[1])
    return torch.cat([rows.square().sum(dim=1) for rows in torch.split(vectors, step)])


def _affordable(most: int, beside: Tensor) -> int:
    """Return how many float32 elements a temporary on the device of `beside` may have; at most `most`."""
    import torch

    device = beside.device
    if device.type != "cuda":
        return most
    # torch's allocator returns to the driver, where memory is short, what it keeps in reserve
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(most, (torch.cuda.mem_get_info(device)[0] + reserve) // _BYTES)


def _products(precision: Precision) -> AbstractContextManager[None]:
    """Set for the whole process, while the context lasts, if torch's float32 products may use tensor cores (tf32)."""
    backends = _import_torch().backends
    cuda = "tf32" if precision == "tf32" else "ieee"
    name = "fp32_precision"
    return with_attributes((backends.cuda.matmul, name, cuda), (backends.mkldnn.matmul, name, "ieee"))
