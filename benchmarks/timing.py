"""What timing tells of a run: `pe audit --timing`, with the public clock and without. `python benchmarks/timing.py`.

An hour, two attacks at a time. BEFORE is what the same attacks found in the engine before there was a clock,
padding and publishing (commit 190b706), where the embedding came after the generator's first answer.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context

from record import keep, where

from pe.engine.timing import CONFIDENCE, Attack, one_record_more, planted_candidates
from pe.progress import Progress

RUNS = 250
BEFORE = ("0.66 to 0.80", "0.88", "0.75")


def main() -> None:
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:  # each on a core of its own
        found = {clock: list(chain(*pool.map(_attack, range(2), [clock] * 2))) for clock in ("never", "auto")}
    rows = []
    for before, *attacks in zip(BEFORE, *found.values(), strict=True):
        cells = [f"{one.found.auc:.2f} ({one.found.low:.2f}–{one.found.high:.2f})" for one in attacks]
        rows.append(f"| {attacks[0].name} | {before} | {' | '.join(cells)} |")
    keep(
        "timing.md",
        f"# Timing attacks on a run\n\n{where()}. `python benchmarks/timing.py`\n\n"
        f"AUC of telling two data sets apart that differ in one record (0.5: a guess), {RUNS} runs over each, "
        f"intervals at {100 * CONFIDENCE:g} %. The generator is not trusted: it plants candidates, times requests.\n\n"
        "| attack | before | now, without a clock | now, with the public clock |\n| --- | --- | --- | --- |\n"
        + "\n".join(rows),
    )


def _attack(kind: int, clock: str) -> list[Attack]:
    """An attack, on a core of its own."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[kind]})
    return (planted_candidates, one_record_more)[kind](RUNS, clock, Progress())


if __name__ == "__main__":
    main()
