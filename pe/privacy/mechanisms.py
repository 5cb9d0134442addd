"""Releases sorted by how they are accounted: the one place that turns mechanisms into numbers.

Which bound holds for which release, and why, is in docs/privacy.md ("Discrete noise", "Composition").
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pe.errors import PrivacyError
from pe.privacy.release import CONVOLVED_FROM, Relation, Release

CONVOLVED = 2.0
"""r: discrete noise of scale s on integers is, up to a factor e^±1e-33 a draw, continuous noise of scale
√(s² − r²) followed by discrete noise of scale r around it. Proof in docs/privacy.md, "Discrete noise"."""

_EXACT_BELOW = 64.0
_MAX_UNIT_SHIFTS = 3


@dataclass(frozen=True)
class Laplace:
    """Discrete Laplace: L1 shift of `shift` steps, noise scale `scale` steps, done `count` times."""

    shift: int
    scale: float
    count: int


@dataclass(frozen=True)
class Sampled:
    """Poisson-sampled Gaussian, as if continuous, done `count` times; `replace`: two shifts of half the size."""

    noise_multiplier: float
    rate: float
    count: int
    replace: bool


@dataclass(frozen=True)
class Lattice:
    """Discrete Gaussian of scale `scale` steps with `count` shifts of one step each (G = 1, few records)."""

    scale: float
    count: int


@dataclass(frozen=True)
class Parts:
    """A composition, sorted.

    Attributes:
        gaussian: μ² of all unsampled Gaussians that follow from continuous ones.
        laplace: discrete Laplace releases.
        sampled: Poisson-sampled Gaussians.
        lattice: coarse discrete Gaussians accounted exactly.
        rho: zCDP of coarse discrete Gaussians that only zCDP bounds.
        floor: μ² of all unsampled Gaussians as if continuous; no ε may be below its closed form.
        noiseless: whether something is released without noise, so that no ε holds.
    """

    gaussian: float
    laplace: tuple[Laplace, ...]
    sampled: tuple[Sampled, ...]
    lattice: tuple[Lattice, ...]
    rho: float
    floor: float
    noiseless: bool = False

    @property
    def closed(self) -> bool:
        """Whether the closed forms of Gaussian and Laplace cover everything."""
        return not (self.sampled or self.lattice or self.rho)

    @property
    def unsampled(self) -> float:
        """μ² when sampling is not credited: always an upper bound."""
        return self.gaussian + math.fsum(part.count / part.noise_multiplier**2 for part in self.sampled)


def sort_parts(releases: Iterable[Release]) -> Parts:
    """The composition of `releases`, which must share one relation and one unit.

    The result does not depend on the order of the releases, nor on whether equal ones come one by one
    or as a count.

    Raises:
        PrivacyError: relations or units differ.
    """
    releases = list(releases)
    kinds = {(release.relation, release.unit) for release in releases}
    if len(kinds) > 1:
        known = ", ".join(sorted(f"{relation}/{unit}" for relation, unit in kinds))
        raise PrivacyError(f"Releases of different relations or privacy units do not add up: {known}.")

    gaussian, floor = Counter[float](), Counter[float]()
    lattice, zcdp = Counter[float](), Counter[float]()
    laplace, sampled = Counter[tuple[int, float]](), Counter[tuple[float, float, bool]]()
    for release in releases:
        z, count = release.noise_multiplier, release.count
        if not release.noised:
            continue
        if release.mechanism == "discrete_laplace":
            shift = math.ceil(release.grid * release.sensitivity)
            laplace[shift, release.scale] += count
        elif release.mechanism != "discrete_gaussian":
            raise PrivacyError(f"Release '{release.name}' is by {release.mechanism}, which nothing here accounts for.")
        elif release.sampling is not None:
            sampled[_continuous(release), release.sampling.rate, release.relation is Relation.REPLACE_ONE] += count
        else:
            floor[z] += count
            unit_shifts = _unit_shifts(release)
            if unit_shifts and release.scale < _EXACT_BELOW:
                lattice[release.scale] += count * unit_shifts
            elif release.scale >= CONVOLVED_FROM:
                gaussian[_continuous(release)] += count
            else:
                zcdp[z] += count
    return Parts(
        gaussian=_squares(gaussian),
        laplace=tuple(Laplace(*key, count) for key, count in sorted(laplace.items())),
        sampled=tuple(Sampled(z, rate, count, two) for (z, rate, two), count in sorted(sampled.items())),
        lattice=tuple(Lattice(scale, count) for scale, count in sorted(lattice.items())),
        rho=_squares(zcdp) / 2,
        floor=_squares(floor),
        noiseless=not all(release.noised for release in releases),
    )


def gaussian_floor(parts: Parts) -> float:
    """The μ below which no ε is reported: the closed form of all unsampled Gaussians."""
    return math.sqrt(parts.floor)


def _continuous(release: Release) -> float:
    """The noise multiplier of continuous noise from which the release's follows, for a scale ≥ CONVOLVED_FROM."""
    return release.noise_multiplier * math.sqrt(1 - (CONVOLVED / release.scale) ** 2)


def _unit_shifts(release: Release) -> int:
    """How many one-step shifts cover every integer vector within the sensitivity; 0 if that many do not.

    An integer vector with squared norm K ≤ 3 has only entries −1, 0 and 1, K of them not 0.
    """
    squared = (release.grid * release.sensitivity) ** 2
    shifts = round(squared) if abs(squared - round(squared)) < 1e-9 else math.floor(squared)
    return shifts if 1 <= shifts <= _MAX_UNIT_SHIFTS else 0


def _squares(counts: Counter[float]) -> float:
    """Σ count/z²."""
    return math.fsum(count / z**2 for z, count in sorted(counts.items()))


def check_same_kind(releases: Sequence[Release], relation: Relation, unit: str) -> None:
    """Raise PrivacyError unless every release speaks of `relation` and `unit`."""
    for release in releases:
        if release.relation is not relation or release.unit != unit:
            raise PrivacyError(
                f"Release '{release.name}' is for {release.relation}/{release.unit}, "
                f"but this ledger protects {relation}/{unit}: one ledger has one relation and one unit."
            )
