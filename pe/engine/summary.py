"""What a run came to, in a few numbers for its owner."""

from __future__ import annotations

from typing import Any

from pe.data.samples import suspicions
from pe.planning.layout import plan_of
from pe.recipe.schema import Recipe
from pe.report.variety import collapse_warnings, varieties, whole
from pe.store.places import RECIPE
from pe.store.run import Run
from pe.store.writer import read_journal


def summary(run: Run) -> dict[str, Any]:
    """What `pe run --json` prints.

    Returns:
        epsilon and delta (None where no ε holds), data_set (the total of all runs), noun (what samples are called),
        images (their number), different (how many are left if equal ones of a label are counted once), api_calls,
        warnings (a sentence, if nearly all are copies of a few, or some look spoiled) and run (its directory).
    """
    recipe = Recipe.load(run.folder / RECIPE)
    populations = run.populations(len(recipe.private.labels))
    certificate, synthetic = run.guarantee, populations[-1].samples
    last = varieties([populations[0], populations[-1]], recipe.private.labels, recipe.seed)[-1]
    steps = plan_of(run, recipe).steps
    t = len(populations) - 1
    with read_journal(run) as journal:
        calls = journal.totals().usage.calls
    return {
        "epsilon": certificate["epsilon"],
        "delta": certificate["delta"],
        "data_set": certificate["data_set"],
        "noun": synthetic.noun,
        "images": len(synthetic),
        "different": whole(last).different,
        "api_calls": calls,
        "warnings": [
            *collapse_warnings(t, last, steps[-1] if steps else None),
            *suspicions(f"S_{t}", synthetic),
        ],
        "run": str(run.folder),
    }
