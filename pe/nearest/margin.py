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

6. Tensor cores. A product may take its factors rounded or cut to fewer bits, x̂ and ĉ with |x̂_k − x'_k| ≤ v|x'_k|
   and ĉ likewise, multiply them exactly and sum in float32. Then |2x̂·ĉ − 2x'·c'| ≤ 2(2v + v²)ab ≤ (v + v²)(a + b)², and
   1 holds for x̂ and ĉ, whose products are at most (1 + v)² as large. Sums there may be cut instead of rounded, several
   terms at a time, aligned to the largest of them: over blocks of B ≥ 4 terms that costs a term no more than d
   additions of unit roundoff (1 + 1/B)·2⁻²³ < 2⁻²². Together: (1 + v)² γ_{d+32} + v + v², with that u in γ.

7. Sketches (pe/nearest/sketch.py). V is d×r in float64, |VᵀV − 1| ≤ η, and P projects onto its columns. With p = Vᵀx'
   and t² = |x'|² − |p|², the exact residual |x' − Px'|² lies within 2η a² of t². Computed in float64 in any order,
   g = γ_{d+32} of it: each p_k is off by at most g·a·|V_k|, so p by e = 2g√r·a at most, |p|² by 3e·a, and t² by
   (2η + 10g√r)a² from the exact residual, rounding and the cut at 0 included; so t by h·a, h² = 2η + 10g√r, as
   |√A − √B| ≤ √|A − B|. Now |Vᵀ(x' − c')| ≤ (1 + η/2)|P(x' − c')|, and residual norms differ by at most the norm of the
   residuals' difference; with Minkowski's inequality the sketches x̃ = (p, t) and c̃ are at most
   √D' + (η/2 + 2g√r + h)(a + b) apart, and |x̃ − c̃|² ≤ D' + 2.1(h² + h)(a + b)² as long as h² + h < 1/20.
   Rounded to float32 they are vectors in r + 1 ≤ d dimensions, as if placed, with radii of a(1 + h²) at most: 1 and 2
   hold for them, with room to spare in γ_{d+32}. In 1 the product may have ½|c̃|² as one more term and leave |x̃|² out,
   to be added in float64: 2γ(ab + ½b²) ≤ γ(a + b)².
   A distance of sketches so exceeds s²·D by less than (γ_{d+32} + 2.1(h² + h))(a + b)². That it may be far below does
   not matter to whom it is only a lower bound: it leaves out a candidate that is no nearer.

8. Vectors rounded to 8 bits (pe/nearest/rounding.py). x̂ = s₈·i and ĉ = s₈·j, with whole numbers i_k and j_k of size 127
   at most, next to x'_k/s₈ or nearer to 0, and s₈ > 0 of at most 16 bits. So s₈·i_k is a float32, x'_k − s₈·i_k meets
   one rounding, and `radius` of these differences, proven for d + 32, is an upper bound e on |x' − x̂|; likewise f on
   |c' − ĉ|. S = |i|² + |j|² − 2i·j is computed in whole numbers, exactly: s₈²S = |x̂ − ĉ|². By the triangle inequality
   √D' ≥ s₈√S − (e + f). By Cauchy and Schwarz x'·c' − x̂·ĉ = x'·(c' − ĉ) + (x' − x̂)·ĉ ≤ |x'|f + |ĉ|e, so
   D' ≥ s₈²S − l with l = (|x̂|² − |x'|²) + (|ĉ|² − |c'|²) + 2(|x'|f + |ĉ|e). The larger of the two stays a lower bound
   for a smaller S and a larger e, f or l. What is computed for it in float64 moves it by less than 2⁻²⁷(a + b)², as
   |x̂_k| ≤ 3|x'_k| and d < 2²². So it may stand for the distance computed in 1, to which γ_{d+32} leaves more.

A candidate that a search did not return has no computed distance to go by, only one, L, that it does not fall
below. `unseen` turns this into a lower bound on the distance to every candidate not returned, however large its
radius. Let g ≥ γ be the bound's factor of (a + b)², and ρ = (1 + 2g)(a + √L) + 2p. A candidate with r ≤ ρ is, by the
bound above, at least L − g(a + ρ)² away. One with r > ρ has, by 5, |s(c − μ)| > a + √L, so its distance exceeds L.
Likewise one with r ≥ R, not searched because R² is out of float32's reach, has |s(c − μ)| > R/2: its distance
exceeds T where a + √T < R/2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FLOAT32 = 2.0**-24
FLOAT64 = 2.0**-53
NOT_SQUARE = 2.0**-30
"""How far the axes of a sketch may be from orthonormal: η of 7 of the proof."""
TENSOR_CORES = 2.0**-22  # what stands for the unit roundoff of their sums (6 of the proof)


def gamma(dimensions: int, roundoff: float) -> float:
    """γ_{d+32} of the proof above, a hair enlarged; infinite (nothing is certain) where the proof does not reach."""
    k = (dimensions + 32) * roundoff
    return 1.001 * k / (1 - k) if k < 0.2 and dimensions < 2**22 else float("inf")


@dataclass(frozen=True)
class Arithmetic:
    """How the float32 distances of a search are computed.

    Attributes:
        roundoff: unit roundoff u of every operation.
        rounding: unit roundoff v to which the factors of a product are rounded or cut first; 0: not at all.
        axes: how many axes the sketches have whose distances these are (7 of the proof); 0: those of whole vectors.
    """

    roundoff: float
    rounding: float = 0.0
    axes: int = 0

    def slack(self, dimensions: int) -> float:
        """The factor of (a + b)² within which a computed squared distance lies about s² times the settled one.

        One of sketches may be less than that, but not more.
        """
        v = self.rounding
        return (1 + v) ** 2 * gamma(dimensions, self.roundoff) + 1.001 * (v + v * v) + self._lost(dimensions)

    def _lost(self, dimensions: int) -> float:
        """By how many (a + b)² the distance of two sketches can exceed that of their vectors (7 of the proof)."""
        if not self.axes:
            return 0.0
        apart = 10 * self.axes**0.5 * gamma(dimensions, FLOAT64) + 2 * NOT_SQUARE  # h²
        lost = 2.1 * (apart + apart**0.5)
        return float(lost) if lost < 0.1 else float("inf")


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


def rounded(squares: Reals, apart: Reals, lost: Reals) -> Reals:
    """A lower bound on the squared distance of two vectors, from that of their roundings (8 of the proof).

    Args:
        squares: at most the squared distance of the roundings; may be negative.
        apart: at least e + f, how far the two vectors are from their roundings.
        lost: at least l.
    """
    return np.maximum(np.square(np.maximum(np.sqrt(np.maximum(squares, 0)) - apart, 0)), squares - lost)


def unseen(last: Reals, query_radius: Reals, largest: float, dimensions: int, slack: float) -> Reals:
    """A lower bound on the squared distance of each query to all candidates its search did not return.

    Args:
        last: a computed squared distance that those of the others do not fall below.
        query_radius: the queries' radii.
        largest: the largest radius of a candidate that was searched.
        dimensions: d.
        slack: that of the arithmetic in which the others' distances were computed.
    """
    reach = (1 + 2 * slack) * (query_radius + np.sqrt(np.maximum(last, 0))) + 2 * pad(dimensions, FLOAT32)
    return last - slack * (query_radius + np.minimum(largest, reach)) ** 2
