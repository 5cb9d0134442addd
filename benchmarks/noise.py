"""Measure how fast exact noise is drawn, here and by OpenDP's exact samplers.

    python benchmarks/noise.py

Writes a part of results/speed.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import opendp.prelude as opendp
from record import keep, where

from pe.privacy.noise import SystemNoise

DRAWS, OPENDP_DRAWS = 4 * 10**6, 10**5


def rate(draw: Callable[[int], object], count: int) -> float:
    """Draws a second, the best of three."""
    draw(1000)
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        draw(count)
        seconds.append(time.perf_counter() - started)
    return count / min(seconds)


def opendps(
    make: Callable[..., Callable[[list[int]], list[int]]], distance: object
) -> Callable[[int], object]:
    measure = make(opendp.vector_domain(opendp.atom_domain(T="i64")), distance, scale=2.0**16)
    return lambda count: measure([0] * count)


def main() -> None:
    noise = SystemNoise()
    opendp.enable_features("contrib")
    rows = [
        *(
            (
                f"discrete Gaussian, scale 2^{bits}",
                rate(lambda n, b=bits: noise.discrete_gaussian(n, 2.0**b), DRAWS),
            )
            for bits in (16, 30, 50)
        ),
        ("discrete Laplace, scale 2^16", rate(lambda n: noise.discrete_laplace(n, 2.0**16), DRAWS)),
        (
            "OpenDP's discrete Gaussian",
            rate(opendps(opendp.m.make_gaussian, opendp.l2_distance(T="i64")), OPENDP_DRAWS),
        ),
        (
            "OpenDP's discrete Laplace",
            rate(opendps(opendp.m.make_laplace, opendp.l1_distance(T="i64")), OPENDP_DRAWS),
        ),
    ]
    lines = [f"| {name} | {draws / 1e6:.2f} |" for name, draws in rows]
    head = [
        "## Exact noise from the operating system's entropy",
        "",
        f"{where()}. `python benchmarks/noise.py`",
        "",
    ]
    keep(
        "speed.md",
        "\n".join(
            [*head, "| noise | million draws a second, one core |", "| --- | ---: |", *lines]
        ),
    )


if __name__ == "__main__":
    main()
