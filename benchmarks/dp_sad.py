"""DP-SAD's parts: what the teacher's term, the discriminator and the number of time steps are worth.

    python benchmarks/dp_sad.py [--epsilon E] [--runs N]

The setting, the digits and the measures of benchmarks/methods.py (cpu), whose DP-SAD is the first row; each other row
changes one thing. What results/dp_sad.jsonl has already is not run again. Writes results/dp_sad.md.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from methods import cell_of, digest_of, epochs_of, key_of
from methods_settings import SETTINGS, recipe_of
from methods_table import CLASSIFIERS, spread
from record import RESULTS, keep, where

SETTING, KEPT, TABLE = SETTINGS["cpu"], RESULTS / "dp_sad.jsonl", RESULTS / "methods-cpu.jsonl"
VARIANTS: dict[str, dict[str, Any]] = {
    "DP-SAD as in the table of methods": {},
    "without the discriminator's term (λ = 0)": {"adversarial": 0},
    "without the teacher's term": {"imitation": 0},
    "with neither: the student only begins as the teacher": {"adversarial": 0, "imitation": 0},
    "both terms with their default weights": {"adversarial": 1, "imitation": 1},
    "sampled with the default guidance": {"guidance": 1.8},
    "one time step per record": {"training": {"draws": 1}},
    "half of the steps and of ε for the teacher": {"teacher": {"steps": 20, "share": 0.5}, "training": {"steps": 20}},
}


def changed(api: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A recipe's `api` with these settings; sections are merged."""
    return api | {
        name: api.get(name, {}) | value if isinstance(value, dict) else value for name, value in change.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    done = dict(map(json.loads, KEPT.read_text(encoding="utf-8").splitlines())) if KEPT.exists() else {}
    table = {found["key"]: found for found in map(json.loads, TABLE.read_text(encoding="utf-8").splitlines())}
    for run in range(arguments.runs):
        for name, change in VARIANTS.items():
            recipe = recipe_of("dp_sad", arguments.epsilon, run, SETTING)
            recipe["api"] = changed(recipe["api"], change)
            key = f"{name}, ε = {arguments.epsilon:g}, run {run}, {digest_of(recipe, SETTING)}"
            if key in done:
                continue
            same = None if change else table.get(key_of("dp_sad", arguments.epsilon, run, SETTING))
            done[key] = same or cell_of(recipe, run, SETTING, (None, None), epochs=epochs_of("dp_sad", run, SETTING))
            print(key, done[key], flush=True)
            with KEPT.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([key, done[key]], ensure_ascii=False) + "\n")
    keep("dp_sad.md", page(done, arguments.epsilon))


def page(done: dict[str, Any], epsilon: float) -> str:
    """A row for each variant that was measured."""
    runs = {
        name: [found for key, found in done.items() if key.startswith(f"{name}, ε = {epsilon:g}, ")]
        for name in VARIANTS
    }
    text = [
        f"# DP-SAD's parts (ε = {epsilon:g}, cpu setting of benchmarks/methods.py)",
        "",
        "Accuracy on 1,000 real digits of classifiers trained on 2,000 samples alone, Fréchet distance of pixels from "
        f"the private digits; mean ± standard deviation over runs. {where()}. `python benchmarks/dp_sad.py`",
        "",
        f"| | {' | '.join(CLASSIFIERS.values())} | Fréchet | runs |",
        f"| --- |{' ---: |' * (len(CLASSIFIERS) + 2)}",
        *(line(name, found) for name, found in runs.items() if found),
    ]
    return "\n".join(text)


def line(name: str, runs: list[dict[str, Any]]) -> str:
    cells = [spread([one["accuracy"][each] for one in runs if each in one["accuracy"]], 3) for each in CLASSIFIERS]
    return f"| {name} | {' | '.join(cells)} | {spread([one['frechet'] for one in runs], 2)} | {len(runs)} |"


if __name__ == "__main__":
    main()
