"""What the default, `evolution: auto`, is worth on images that its rule was not chosen on.

    python benchmarks/default.py [--runs N] [--epsilon E …] [--only SET]
    python benchmarks/default.py --folder PRIVATE TEST POOL [--size S] [--channels 1|3] [--embedding KIND]

Three sets: the demo's MNIST digits; scikit-learn's 8×8 digits, four fifths of them private; and, by --folder, images in
a subfolder for each class, PRIVATE and TEST, over a folder of public images without labels. The first two are over
drawn digits. Accuracy on held-out real images of logistic regression and MLP on pixels, and, where the embedding
is a network, a linear probe on its features, beside un-evolved samples, a run that selects at random, one vote with
nothing varied, and the real images. Adds to results/default.jsonl, and writes results/default.md from it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from record import RESULTS, keep, where

from pe.engine.demo.digits import RECIPES
from pe.engine.demo.pictures import probe_accuracies
from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.sets import Notes, Request, gather
from pe.evaluation.utility import utility
from pe.planning.build import build_embedding
from pe.progress import Progress
from pe.recipe.reading import read_yaml
from pe.recipe.schema import Recipe

KEPT = RESULTS / "default.jsonl"
SETS = {
    "synthetic": "PE",
    "unevolved": "un-evolved",
    "random_selection": "random selection",
    "one_vote": "one vote, nothing varied",
    "real": "real",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument("--only", choices=("mnist", "digits8"), help="of the first two sets")
    parser.add_argument("--folder", type=Path, nargs=3, metavar=("PRIVATE", "TEST", "POOL"))
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--channels", type=int, choices=(1, 3), default=3)
    parser.add_argument("--embedding", default="efficientnet_lite", help="of the folder's images")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for name, content, test in sets(Path(place), arguments):
            if arguments.only not in (None, name):
                continue
            for epsilon in arguments.epsilon:
                for run in range(arguments.runs):
                    found = measure(content, test, epsilon, run, Path(place) / f"{name}-{epsilon:g}-{run}")
                    line = {"set": name, "epsilon": epsilon, "run": run, "where": where()} | found
                    print(json.dumps(line), flush=True)
                    with KEPT.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    keep("default.md", table([json.loads(line) for line in KEPT.read_text().splitlines()]))


def sets(place: Path, arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, recipe without ε, and where the test images are."""
    if arguments.folder:
        private, test, pool = (path.resolve() for path in arguments.folder)
        files = [path for path in private.rglob("*") if path.is_file()]
        size = {"size": arguments.size, "resize": "crop", "channels": arguments.channels}
        classes = sorted({path.relative_to(private).parts[0] for path in files})
        declared = int(float(f"{len(files):.1g}"))  # rounded to one digit, as an owner would
        yield (
            private.parent.name,
            {
                "private": {"kind": "folder", "path": private, "classes": classes, "declared_size": declared} | size,
                "api": {"kind": "public_images", "path": pool} | size,
                "embedding": {"kind": arguments.embedding},
            },
            str(test),
        )
        return
    mnist = read_yaml(RECIPES["glyphs"])
    yield "mnist", {name: mnist[name] for name in ("private", "api", "embedding")}, "mnist"
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, chosen = (digits.images * (255 / 16)).round().astype(np.uint8)[..., None], np.arange(len(digits.target)) % 5
    for part, of in (("private", chosen > 0), ("test", chosen == 0)):
        np.savez(place / f"{part}.npz", images=images[of], labels=digits.target[of])
    private = {"kind": "npz", "path": place / "private.npz", "size": 8, "channels": 1, "classes": list(range(10))}
    content = {"private": private | {"declared_size": 1400}, "api": {"kind": "glyphs", "size": 8, "scale": [0.8, 1.0]}}
    yield "digits8", content, str(place / "test.npz")


def measure(content: dict[str, Any], test: str, epsilon: float, seed: int, out: Path) -> dict[str, Any]:
    """A run of the default, and accuracy by classifier and training set."""
    whole = content | {"name": "default", "seed": seed, "privacy": {"epsilon": epsilon, "delta": 1e-5}}
    run = run_recipe(Recipe.parse(whole | {"evolution": "auto"}, "the benchmark"), out, Surroundings())
    request = Request(test, seeds=1, classifiers=("logistic_regression", "mlp"), random_selection=True, one_vote=True)
    found = gather(run, request, Notes(Progress()), Surroundings().stop)
    scores = utility(request.trained, found.all, found.test.content, len(found.classes), [seed], Progress())
    recipe = Recipe.load(run.folder / "recipe.yaml")
    keys = ("iterations", "population", "neighbors", "threshold_sigmas", "degree")
    chosen = {key: getattr(recipe.evolution, key) for key in keys}
    accuracy = {
        classifier: {name: round(float(one.accuracy.mean()), 4) for name, one in by_set.items()}
        for classifier, by_set in scores.items()
    }
    if recipe.embedding.kind != "pixels":
        progress = Progress()
        probed = probe_accuracies(found.all, found.test.content, build_embedding(found.recipe), progress)
        accuracy = {"linear_probe": {name: probed[name] for name in found.all}} | accuracy
    return {"chosen": chosen, "accuracy": accuracy}


def table(lines: list[dict[str, Any]]) -> str:
    rows = []
    latest = {(line["set"], line["epsilon"], line["run"]): line for line in lines}
    cells = sorted({(line["set"], line["epsilon"]) for line in lines})
    for name, epsilon in cells:
        runs = [line for (of, at, _), line in latest.items() if (of, at) == (name, epsilon)]
        for classifier in runs[0]["accuracy"]:
            values = [[run["accuracy"][classifier].get(key) for run in runs] for key in SETS]
            told = " | ".join(" ".join("–" if one is None else f"{one:.3f}" for one in each) for each in values)
            rows.append(f"| {name} | {epsilon:g} | {classifier} | {told} |")
    return "\n".join(
        [
            "# The default on images that its rule was not chosen on",
            "",
            f"Accuracy on held-out real images, every run by itself; δ = 1e-5. {lines[-1]['where']}.",
            "`python benchmarks/default.py`",
            "",
            f"| set | ε | classifier | {' | '.join(SETS.values())} |",
            f"| --- | --: | --- |{' --- |' * len(SETS)}",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    main()
