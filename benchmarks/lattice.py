"""Does a released bit pattern tell whether a record was there? The attack on the tail of noise, before and after.

`python benchmarks/lattice.py`. A one-step block of DP-SGD releases Adam's first moment: a tenth of the noised mean
gradient, in float32. Who knows all records but one computes, for "it was not there" and for "it was", what the noise
of two coordinates must have been, and asks how near that lies to what the noise can be at all. Noise as drawn before,
by Box and Muller from one 53-bit uniform, lies on circles in its tail (k < 2^12 of 2^53), farther apart than float32
rounds; the attacker says "in" where only "in" lies on one. Noise as drawn now lies on the integers in both worlds: the
attacker finds both or none, and guesses.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from record import keep, where

TRIALS = 20_000
BATCH, GRID = 64, 2**30
KEPT = 2**12
"""k of a tail pair lies below this."""
START = math.sqrt(-2 * math.log(KEPT * 2.0**-53))
"""Where such a pair's radius begins: 7.5 standard deviations."""

Floats = npt.NDArray[np.float64]


def before(rng: np.random.Generator) -> Floats:
    """Pairs of the tail, as Box and Muller's formula gives them."""
    radii = np.sqrt(-2 * np.log((rng.integers(0, KEPT, TRIALS) + 0.5) * 2.0**-53))
    angles = 2 * math.pi * (rng.integers(0, 2**53, TRIALS) * 2.0**-53)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1) * GRID


def after(rng: np.random.Generator) -> Floats:
    """Pairs of the discrete Gaussian of scale GRID with a radius as large: continuous ones beyond START, rounded.

    Of pairs beyond a circle, the squared radius over two is exponential; at this scale rounding to integers leaves the
    law of the discrete Gaussian but for one part in 10^18 (docs/proofs.md, "Discrete noise").
    """
    radii = np.sqrt(START**2 + 2 * rng.exponential(size=TRIALS))
    angles = rng.uniform(0, 2 * math.pi, TRIALS)
    return np.rint(np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1) * GRID)


def released(noisy: Floats) -> Floats:
    """The first moment, float32, as a State holds it."""
    gradient = (noisy * (1.0 / GRID / BATCH)).astype(np.float32)
    return (gradient * np.float32(0.1)).astype(np.float64)


def on_a_circle(noise: Floats, rounding: Floats) -> npt.NDArray[np.bool_]:
    """Whether a pair lies on a circle of Box and Muller's: nearer than a twentieth of what lies between two circles.

    Float32 rounds to less; and a pair that has nothing to do with circles passes one time in ten, wherever it lies.
    """
    radius = np.hypot(*noise.T) / GRID
    nearest = np.maximum(np.rint(np.exp(-(radius**2) / 2) * 2.0**53 - 0.5), 0)
    circle = np.sqrt(-2 * np.log((nearest + 0.5) * 2.0**-53))
    between = 1 / (radius * (nearest + 0.5))
    found: npt.NDArray[np.bool_] = np.abs(circle - radius) <= between / 20
    return found


def on_the_integers(noise: Floats, rounding: Floats) -> npt.NDArray[np.bool_]:
    """Whether integers lie within what float32 rounded away."""
    found: npt.NDArray[np.bool_] = (np.abs(noise - np.rint(noise)) <= rounding[:, None]).all(axis=1)
    return found


def attacked(draws: Floats, grid: int, test: object, rng: np.random.Generator) -> tuple[float, float, float]:
    """How often the attacker is right; how often "in" is said when the record is in, and when it is out."""
    others = rng.normal(size=(TRIALS, 2)) * 4
    record = rng.normal(size=(TRIALS, 2))
    record *= rng.uniform(0.3, 1, TRIALS)[:, None] / np.linalg.norm(record, axis=1, keepdims=True)
    others, record = (np.trunc(part * grid) * (GRID / grid) for part in (others, record))
    present = rng.random(TRIALS) < 0.5
    seen = released(others + present[:, None] * record + draws)
    back = seen * 10.0 * BATCH * GRID
    rounding = np.abs(back).max(axis=1) * 2.0**-22
    guesses = back - others, back - others - record
    tail = np.min([np.hypot(*guess.T) for guess in guesses], axis=0) > START * GRID
    without, within = (test(guess, rounding) for guess in guesses)  # type: ignore[operator]
    says_in = np.where(without == within, rng.random(TRIALS) < 0.5, within)
    right = (says_in == present)[tail].mean()
    return float(right), float(says_in[tail & present].mean()), float(says_in[tail & ~present].mean())


def main() -> None:
    rng = np.random.default_rng(1)
    cells = [
        ("Box and Muller, 53 bits (before)", attacked(before(rng), 2**52, on_a_circle, rng)),
        ("discrete Gaussian (now), the same test", attacked(after(rng), GRID, on_a_circle, rng)),
        ("discrete Gaussian (now), its own lattice", attacked(after(rng), GRID, on_the_integers, rng)),
    ]
    rows = [f"| {name} | {right:.3f} | {hit:.3f} | {alarm:.3f} |" for name, (right, hit, alarm) in cells]
    text = (
        f"## A released bit pattern of the noise's tail\n\n{where()}. `python benchmarks/lattice.py`\n\n"
        f"{TRIALS:,} one-step blocks each, given that one pair of coordinates lies {START:.1f} or more standard "
        "deviations out in both worlds. The attacker knows all records but one, and guesses where its test finds both "
        "worlds or none.\n\n"
        '| noise | right | says "in" when in | says "in" when out |\n| --- | ---: | ---: | ---: |\n' + "\n".join(rows)
    )
    keep("attacks.md", text)


if __name__ == "__main__":
    main()
