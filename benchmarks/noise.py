"""How fast exact noise is drawn: a million draws of each kind. `python benchmarks/noise.py`."""

from __future__ import annotations

import time

from record import keep, where

from pe.privacy.noise import SystemNoise

DRAWS = 10**6


def main() -> None:
    noise = SystemNoise()
    noise.discrete_gaussian(10, 2.0**16)  # loads the library
    rows = []
    for name, draw in (("discrete Gaussian", noise.discrete_gaussian), ("discrete Laplace", noise.discrete_laplace)):
        started = time.perf_counter()
        draw(DRAWS, 2.0**16)
        seconds = time.perf_counter() - started
        rows.append(f"| {name} | {seconds:.1f} | {DRAWS / seconds:,.0f} |")
    head = "| noise | seconds for a million draws | draws a second |\n| --- | ---: | ---: |\n"
    title = f"# Exact noise from the operating system's entropy\n\n{where()}. `python benchmarks/noise.py`\n\n"
    keep("noise.md", title + head + "\n".join(rows))


if __name__ == "__main__":
    main()
