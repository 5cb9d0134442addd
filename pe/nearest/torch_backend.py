"""torch, on a CUDA card or the CPU: blocked search, its products on tensor cores where there are some."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from pe.errors import MissingDependency, RecipeError
from pe.nearest.decide import Found, Search
from pe.nearest.margin import FLOAT32, TENSOR_CORES, Arithmetic, Vectors

if TYPE_CHECKING:
    from torch import Tensor

Precision = Literal["fp32", "tf32", "bf16"]

_SIEVES = {
    "fp32": Arithmetic(FLOAT32),
    "tf32": Arithmetic(TENSOR_CORES, 2.0**-10),  # 11 bits, possibly cut instead of rounded
    "bf16": Arithmetic(TENSOR_CORES, 2.0**-8),
}
_BLOCK = 2**26  # most distances computed together
_PAIRS = 2**25  # most elements of the pairs whose distances are computed anew together


class TorchSearch:
    """Distances of all pairs from a matrix product in `precision`, the best of them computed anew in float32.

    Attributes:
        returned: float32.
        sieve: of the products.
    """

    returned = Arithmetic(FLOAT32)

    def __init__(self, candidates: Tensor, precision: Precision) -> None:
        """Search these candidates, float32 m×d, on the device where they lie."""
        self.sieve = _SIEVES[precision]
        self._candidates, self._precision = candidates, precision
        self._factors = _factors(candidates, precision)
        self._squares = candidates.square().sum(dim=1)

    def __call__(self, queries: Vectors, k: int) -> Found:
        """The k candidates nearest to each query by the products' distances.

        Raises:
            RecipeError: the card has not enough memory.
        """
        import torch

        with torch.inference_mode(), _memory(), _products(self._precision):
            placed = torch.from_numpy(queries).to(self._candidates.device)
            coarse, positions = self._nearest(placed, k)
            distances = coarse if self._precision == "fp32" else self._anew(placed, positions)
            last = coarse.amax(dim=1)
            return Found(distances.cpu().numpy(), positions.cpu().numpy(), last.cpu().numpy())

    def _nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Distances and positions, n×k, from one block of candidates after another."""
        import torch

        factors, squares = _factors(queries, self._precision), queries.square().sum(dim=1)[:, None]
        step = max(k, _BLOCK // len(queries))
        best: Tensor | None = None
        chosen: Tensor | None = None
        for start in range(0, len(self._candidates), step):
            part = slice(start, start + step)
            block = _product(factors, self._factors[part])
            block.mul_(-2).add_(squares).add_(self._squares[part])
            found, places = block.topk(min(k, block.shape[1]), largest=False, sorted=False)
            places += start
            if best is None or chosen is None:
                best, chosen = found, places
                continue
            best, order = torch.cat([best, found], dim=1).topk(k, largest=False, sorted=False)
            chosen = torch.cat([chosen, places], dim=1).gather(1, order)
        assert best is not None
        assert chosen is not None
        return best, chosen

    def _anew(self, queries: Tensor, positions: Tensor) -> Tensor:
        """The float32 distances of these pairs, from their differences."""
        import torch

        step = max(1, _PAIRS // (positions.shape[1] * queries.shape[1]))
        parts = zip(torch.split(queries, step), torch.split(positions, step), strict=True)
        return torch.cat([(some[:, None] - self._candidates[places]).square().sum(dim=2) for some, places in parts])


def torch_searches(candidates: Vectors) -> tuple[Search, ...]:
    """On a card with tensor cores first tf32; for what that leaves open, and elsewhere, float32.

    Raises:
        MissingDependency: torch is not installed.
        RecipeError: the card has not enough memory for the candidates.
    """
    torch = import_torch()
    name = device()
    with _memory():
        placed = torch.from_numpy(candidates).to(name)
        tensor_cores = name != "cpu" and torch.cuda.get_device_capability(name) >= (8, 0)
        return tuple(TorchSearch(placed, one) for one in (("tf32", "fp32") if tensor_cores else ("fp32",)))


def device() -> str:
    """`cuda` where torch sees a card, else `cpu`.

    Raises:
        MissingDependency: torch is not installed.
    """
    return "cuda" if import_torch().cuda.is_available() else "cpu"


def import_torch() -> Any:
    """The library.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependency.of("torch", "embeddings", "The neighbour search by torch") from error
    return torch


def _factors(vectors: Tensor, precision: Precision) -> Tensor:
    """What a product of this precision takes; where the device has no such products, the vectors cut or rounded."""
    import torch

    if precision == "bf16":
        rounded = vectors.to(torch.bfloat16)
        return rounded if vectors.is_cuda else rounded.float()
    if precision == "tf32" and not vectors.is_cuda:
        return (vectors.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return vectors


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The products of all pairs of rows, summed and given in float32."""
    import torch

    if left.dtype == torch.float32:
        return left @ right.T
    return torch.mm(left, right.T, out_dtype=torch.float32)


@contextmanager
def _products(precision: Precision) -> Iterator[None]:
    """Products of float32 matrices on tensor cores for tf32, and nowhere else; as it was before, afterwards.

    The setting is torch's own and holds for the whole process meanwhile.
    """
    backends = import_torch().backends
    places = (backends.cuda.matmul, backends.mkldnn.matmul)
    before = [place.fp32_precision for place in places]
    for place, wanted in zip(places, ("tf32" if precision == "tf32" else "ieee", "ieee"), strict=True):
        place.fp32_precision = wanted
    try:
        yield
    finally:
        for place, was in zip(places, before, strict=True):
            place.fp32_precision = was


@contextmanager
def _memory() -> Iterator[None]:
    """A card that is too small, told in one sentence."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RecipeError(
            "The card has not enough memory for the neighbour search: set evolution.neighbor_search: faiss (with "
            "faiss-cpu it needs no card), or lower evolution.population."
        ) from error
