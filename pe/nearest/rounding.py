"""Vectors rounded to 8 bits, whose distances bound those of the vectors from below; and when that saves work."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil, frexp, ldexp
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pe.nearest.margin import FLOAT32, Integers, Reals, Vectors, radius, rounded
from pe.nearest.sketch import GIVE_UP, neighbours_among
from pe.nearest.torch_backend import import_torch

if TYPE_CHECKING:
    from torch import Tensor

Bytes = npt.NDArray[np.int8]

LARGEST = 127
"""Size that no rounded number exceeds."""

_CPUINFO = Path("/proc/cpuinfo")  # of Linux
_INSTRUCTIONS = "avx512_vnni"  # without them torch's products of bytes are slow, and some are wrong
_LEAST = 2**33  # terms in the products of all candidates with all: below, little can be saved
_LEAST_COLD = 2**35  # the same where torch has yet to be loaded, which takes a second or two, once
_WIDEST = 2**15  # dimensions whose products 32 bits hold
_BITS = 16  # of the scale: its product with a rounded number is exact in float32
_SMALLEST = 2.0**-60  # scale
_CHUNK = 2**16  # elements rounded at a time: they stay in the cache
_PRODUCT = 0.4  # what a product of bytes, and a look at it, costs of one of float32
_ALONE = 16  # what a term of a distance computed alone costs, in terms of such a product
_GAIN = 0.75  # largest part of the whole product's cost for which vectors are rounded


class Rounded(NamedTuple):
    """n vectors, rounded.

    Attributes:
        whole: the whole numbers, n×d.
        squares: their squared norms, n.
        norms: of what they stand for, n.
        apart: upper bounds on how far that is from the vectors, n.
        excess: by how much its squared norms exceed those of the vectors, n; computed in float64.
    """

    whole: Bytes
    squares: Integers
    norms: Reals
    apart: Reals
    excess: Reals


@dataclass(frozen=True)
class Rounding:
    """x ↦ i, whole numbers with x about scale·i (8 of pe/nearest/margin.py).

    Attributes:
        scale: at least 2⁻⁶⁰, of at most 16 bits.
    """

    scale: float

    @classmethod
    def of(cls, candidates: Vectors) -> Rounding:
        """The finest by which no number of the candidates is cut."""
        largest = max(float(candidates.max()), -float(candidates.min()))
        mantissa, exponent = frexp(max(largest / LARGEST, _SMALLEST))
        return cls(ldexp(ceil(ldexp(mantissa, _BITS)), exponent - _BITS))

    def __call__(self, vectors: Vectors) -> Rounded:
        """These rows, rounded."""
        n = len(vectors)
        whole, apart, squares, lengths = np.empty(vectors.shape, np.int8), np.empty(n), np.empty(n), np.empty(n)
        step, scale = max(1, _CHUNK // vectors.shape[1]), np.float32(self.scale)
        for start in range(0, n, step):
            part, at = vectors[start : start + step], slice(start, start + step)
            near = np.clip(np.rint(part * (1 / scale)), -LARGEST, LARGEST)
            whole[at] = near
            squares[at], lengths[at] = (np.square(one, dtype=np.float64).sum(axis=1) for one in (near, part))
            apart[at] = radius(part - near * scale, FLOAT32)
        norms = self.scale * np.sqrt(squares)
        return Rounded(whole, squares.astype(np.int64), norms, apart, self.scale**2 * squares - lengths)


def margins(queries: Rounded, candidates: Rounded) -> tuple[Reals, Reals]:
    """For each query, e + f and l of 8 of pe/nearest/margin.py, of the candidate that makes them largest."""
    e, f = queries.apart, candidates.apart.max()
    radii = np.sqrt(np.maximum(queries.norms**2 - queries.excess, 0))
    products = (radii * f + candidates.norms.max() * e) * (1 + 2.0**-40)
    return e + f, queries.excess + candidates.excess.max() + 2 * products


def fit_rounding(candidates: Vectors, q: int, otherwise: float = 1.0) -> Rounding | None:
    """How to round for a search of the q nearest; None where another is cheaper, or bytes have no fast product.

    Nothing but candidates and the machine is looked at.

    Args:
        candidates: m×d.
        q: neighbours per query.
        otherwise: what the cheapest other search costs, as part of what the whole product does.
    """
    m, d = candidates.shape
    least, terms = _LEAST if "torch" in sys.modules else _LEAST_COLD, m * m * d
    if terms < least or d > _WIDEST or q > GIVE_UP * m:
        return None
    most = min(_GAIN, otherwise - (1 - _GAIN) * least / terms)
    if most < _PRODUCT or not has_products():
        return None
    rounding = Rounding.of(candidates)
    return rounding if _cost(candidates, rounding, q) <= most else None


def has_products() -> bool:
    """Whether torch multiplies bytes here, fast and exactly."""
    if find_spec("torch") is None or not _CPUINFO.exists() or _INSTRUCTIONS not in _CPUINFO.read_text():
        return False
    torch = import_torch()
    extremes = torch.tensor([-LARGEST, LARGEST], dtype=torch.int8).repeat(64, 64)
    extremes[::2] = LARGEST
    exact = extremes.long() @ extremes.T.long()
    return bool((multiply(extremes, extremes) == exact).all())  # not where oneDNN was told to do without them


def multiply(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """The products of all rows of `left` and `right`, bytes, as 32-bit whole numbers: exact."""
    import torch

    return torch._int_mm(left, right.T) if out is None else torch._int_mm(left, right.T, out=out)


def _cost(candidates: Vectors, rounding: Rounding, q: int) -> float:
    """What a search by rounded vectors costs of one by the whole product, for candidates as queries."""
    tried, among, reach = neighbours_among(candidates, q)
    queries, others = rounding(tried), rounding(among)
    i, j = queries.whole.astype(np.float32), others.whole.astype(np.float32)
    between = np.square(i).sum(axis=1)[:, None] + np.square(j).sum(axis=1) - 2 * (i @ j.T)
    bound = rounded(rounding.scale**2 * between.astype(np.float64), *(one[:, None] for one in margins(queries, others)))
    left = (bound <= reach).mean(axis=1)
    return float(_PRODUCT + _ALONE * np.minimum(left, GIVE_UP).mean() + (left > GIVE_UP).mean())
