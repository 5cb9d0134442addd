"""How far a computed squared distance can be from the true one: the bound and its proof.

Notation. u is the unit roundoff of the arithmetic (2⁻²⁴ in float32, 2⁻⁵³ in float64) and
γ_k = k·u / (1 − k·u). A product of k factors (1 + δ) or 1/(1 + δ) with |δ| ≤ u lies within 1 ± γ_k, and
(1 + γ_j)(1 + γ_k) ≤ 1 + γ_{j+k}. x and c are query and candidate, D = |x − c|² their true squared distance.
Both are placed before the search: x' = s·(x − μ) and c' likewise, with a public centre μ and a power of
two s, so that D' = |x' − c'|² should be s²·D. a = |x'| and b = |c'| are their radii.

1. The kernel, given x' and c', in any order of summation, with fused operations or without:
   expanded, |x'|² + |c'|² − 2x'·c', each of the d terms x_k², c_k², 2x_k·c_k meets at most d + 3 roundings,
   so the error is at most γ_{d+3} Σ(|x_k| + |c_k|)² ≤ γ_{d+3} (a + b)²; direct, Σ(x_k − c_k)², it is at most
   γ_{d+2} D' ≤ γ_{d+2} (a + b)². Cutting a negative result to 0 brings it nearer to D' ≥ 0.
2. The placing: each component of s·(x − μ) is off by at most u of itself (s is exact), so the vector x' − c'
   is off by at most u(1 + 2u)(a + b), and its square by at most 3u(a + b)².
3. Settled distances (pe/nearest/exact.py) are float64 themselves: off by at most γ_{3+log₂d} D, in float64.

Together: |computed − s²·settled| ≤ γ_{d+32} (a + b)² for d < 2²², as d + 3 + 3 + (3 + 22) < d + 32.

4. Underflow. A float32 operation may lose up to 2⁻¹²⁶ absolutely, even where subnormals are flushed; s ≤ 2⁶⁴
   makes that at most 2⁻⁶² per component. With every radius padded by p = √d·2⁻³⁶ the bound grows by
   γ·4p(a + b) + γ·4p² ≥ 4√d·2⁻⁶⁰(a + b) + 4d²·2⁻⁹⁶, more than those losses can move a squared distance. In
   float64 nothing made from float32 values underflows.
5. Radii are computed too: `radius` returns r with |x'| ≤ r, and r ≤ (1 + 2γ)·|s(x − μ)| + 2p, γ = γ_{d+32} ≤ ¼.

A candidate that a search did not return has no computed distance to go by, only the largest one returned, L:
its own is at least that. `unseen` turns this into a lower bound on the distance to every candidate not returned,
however large its radius. Let ρ = (1 + 2γ)(a + √L) + 2p. A candidate with r ≤ ρ is, by the bound above, at
least L − γ(a + ρ)² away. One with r > ρ has, by 5, |s(c − μ)| > a + √L, so its distance exceeds L.
Likewise one with r ≥ R, not searched because R² is out of float32's reach, has |s(c − μ)| > R/2: its distance
exceeds T where a + √T < R/2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53


def gamma(dimensions: int, roundoff: float) -> float:
    """γ_{d+32} of the proof above, a hair enlarged; infinite (nothing is certain) where the proof does not reach."""
    k = (dimensions + 32) * roundoff
    return 1.001 * k / (1 - k) if k < 0.2 and dimensions < 2**22 else float("inf")


def pad(dimensions: int, roundoff: float) -> float:
    """What is added to each radius for underflow (4 of the proof)."""
    return float(dimensions**0.5 * 2.0**-36) if roundoff > FLOAT64 else 0.0


def radius(vectors: npt.NDArray[np.floating], roundoff: float) -> Reals:
    """An upper bound on the norm of each row, in float64; infinite where the square overflows, or for NaN."""
    dimensions = vectors.shape[1]
    if not np.isfinite(gamma(dimensions, roundoff)):
        return np.full(len(vectors), np.inf)
    squares = np.einsum("ij,ij->i", vectors, vectors).astype(np.float64)
    bound = np.sqrt(squares) * (1 + gamma(dimensions, roundoff)) + pad(dimensions, roundoff)
    return np.where(np.isfinite(bound), bound, np.inf)


def unseen(last: Reals, query_radius: Reals, largest: float, dimensions: int, roundoff: float) -> Reals:
    """A lower bound on the squared distance of each query to all candidates its search did not return.

    Args:
        last: the largest computed squared distance each query's search returned.
        query_radius: the queries' radii.
        largest: the largest radius of a candidate that was searched.
        dimensions: d.
        roundoff: u of the search.
    """
    g = gamma(dimensions, roundoff)
    reach = (1 + 2 * g) * (query_radius + np.sqrt(np.maximum(last, 0))) + 2 * pad(dimensions, roundoff)
    return last - g * (query_radius + np.minimum(largest, reach)) ** 2
