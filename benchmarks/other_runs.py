"""Does a run leak what an earlier fit on the same records learned, which its certificate does not count?

`python benchmarks/other_runs.py`. A first run fits `central_images` at ε = 50. A second, of ε = 1, names that model as
a warm start (`easy: [{kind: trained, private_sets: disjoint}]`), over the very same records: half of the time one
white record is among them. The attacker knows all others, and guesses by how bright the second run's synthetic images
of the record's label are, compared with the middle of all trials.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from record import where

from pe.engine.execution import Surroundings, run_recipe
from pe.errors import RecipeError
from pe.recipe.schema import Recipe

TRIALS, SIDE, EPSILON, DELTA = 44, 8, 1.0, 1e-5


def recipe(data: Path, api: dict[str, object], epsilon: float) -> Recipe:
    source = {"kind": "npz", "path": data, "size": SIDE, "channels": 1, "classes": ["a", "b"], "declared_size": 8}
    content = {
        "private": source,
        "api": api,
        "embedding": {"kind": "pixels", "size": SIDE},
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "evolution": {"iterations": 0, "population": 32},
    }
    return Recipe.parse(content, "the attack")


def attack(folder: Path, is_in: bool) -> float:
    """The brightness that the second run shows."""
    images = np.random.default_rng().integers(0, 16, (1 + is_in, SIDE, SIDE, 1)).astype(np.uint8)
    images[1:] += 240
    np.savez(folder / "private.npz", images=images, labels=np.array(["a", "b"][: 1 + is_in]))
    first = recipe(folder / "private.npz", {"kind": "central_images"}, 50.0)
    run_recipe(first, folder / "first", Surroundings())
    plain = {"steps": 80, "batch": 16, "learning_rate": 3e-3}
    warm = {"kind": "trained", "path": str(folder / "first"), "private_sets": "disjoint", "share": 0.01}
    api = {
        "kind": "dp_feta",
        "network": {"channels": [8, 16]},
        "training": {"steps": 1, "block": 1, "expected_batch": 8, "draws": 1, "learning_rate": 1e-6},
        "sampling": {"steps": 5},
        "easy": [warm | {"images": 64, "training": plain}],
        "device": "cpu",
    }
    second = run_recipe(recipe(folder / "private.npz", api, EPSILON), folder / "second", Surroundings())
    assert second.guarantee["epsilon"] <= EPSILON
    labels = np.array(second.synthetic.labels)
    return float(second.synthetic.samples.array[labels == labels.max()].mean())


def main() -> None:
    is_in, seen = np.arange(TRIALS) % 2 == 0, []
    for one in is_in:
        with tempfile.TemporaryDirectory() as folder:
            try:
                seen.append(attack(Path(folder), bool(one)))
            except RecipeError as error:
                sys.exit(f"The second run is refused: {error}")
    right = int(((np.array(seen) > np.median(seen)) == is_in).sum())
    bound = np.exp(EPSILON) / (1 + np.exp(EPSILON))
    print(f"{where()}. The attacker is right in {right} of {TRIALS} trials; ε = {EPSILON:g} allows {bound:.0%}.")


if __name__ == "__main__":
    main()
