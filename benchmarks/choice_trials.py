"""What benchmarks/choice.py tries on stand-in data: its settings, and how each is run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import demo_settings as short
import numpy as np

from adapters.glyphs import Glyphs
from pe.data.images import Images
from pe.engine.execution import Surroundings, run_recipe
from pe.evaluation.controls import unevolved
from pe.evaluation.utility import accuracies
from pe.recipe.schema import Recipe

SIGMA = {1: 3.7305, 4: 1.08, 10: 0.51}  # of one histogram with the whole of ε, δ = 1e-5
DEGREES = {1: (0.4,), 2: (0.5, 0.4), 4: (0.5, 0.45, 0.4, 0.4)}

DIGITS = [  # records, ε, T, candidates of a label, q, H
    (300, 1, 1, 100, 32, -1), (1000, 1, 1, 400, 32, -1),
    (300, 1, 1, 100, 32, 0), (300, 1, 1, 100, 32, 0.5), (300, 1, 1, 100, 32, 1.5), (300, 1, 4, 24, 8, 1.5),
    (1000, 1, 1, 100, 32, 0.5), (1000, 1, 1, 400, 32, 0), (1000, 1, 1, 400, 32, 0.5),
    (1000, 1, 1, 400, 32, 3.0), (1000, 1, 2, 150, 32, 1.5),
    (1000, 1, 4, 80, 32, 1.5), (1000, 1, 4, 80, 32, 2.5),
    (4000, 1, 1, 800, 32, 1.5), (4000, 1, 4, 300, 32, 1.5), (4000, 1, 4, 400, 32, 1.5), (4000, 1, 4, 400, 32, 2.5),
    (4000, 4, 4, 400, 32, 1.5), (4000, 4, 4, 1000, 16, 1.5), (4000, 10, 4, 1000, 8, 1.5), (4000, 10, 4, 1000, 1, 1.5),
]  # fmt: skip
KEEPING = [  # candidates of a label at each vote, members in the end, what is kept, H; at ε = 1 with 4,000 records
    ((400, 400, 400, 400), 1000, "none", 1.5), ((400, 400, 400, 400), 1000, "none", 1.0),
    ((400, 400, 400, 400), 1000, "winners", 1.0), ((400, 400, 400, 400), 1000, "winners", 1.5),
    ((450, 550, 650, 750), 1500, "winners", 1.0), ((450, 550, 650, 750), 1500, "winners", 1.5),
    ((500, 500, 500, 500), 1300, "winners", 1.0), ((270, 330, 390, 450), 900, "winners", 1.0),
    ((100, 100, 100), 200, "none", 1.5), ((100, 150, 200), 400, "winners", 1.0), ((100, 150, 200), 400, "winners", 0.5),
    ((150, 200), 400, "winners", 1.0), ((100, 130, 160, 200), 350, "winners", 1.0),
    ((50, 50, 50), 100, "none", 1.5), ((50, 75, 100), 200, "winners", 1.0),
]  # fmt: skip
FEW = [  # records of ten labels, ε: whether the rule's own choice beats un-evolved samples
    (100, 1), (200, 1), (400, 1), (1000, 1), (2000, 1), (50, 4), (100, 4), (200, 4), (400, 4), (1000, 4),
]  # fmt: skip
PICTURES = [  # pool, ε, T, candidates of a label (1842: the whole pool; 360: the largest class), q, H, degrees
    ("unlabelled", 4, 1, 1842, 16, 2.5, [0]), ("unlabelled", 4, 1, 1842, 4, 2.5, [0]),
    ("unlabelled", 4, 1, 1842, 16, 1.5, [0]), ("unlabelled", 4, 1, 1842, 16, 3.5, [0]),
    ("unlabelled", 4, 1, 1000, 4, 2.5, [0]), ("unlabelled", 4, 1, 300, 4, 2.5, [0]),
    ("unlabelled", 4, 1, 1842, 16, 2.5, [0.0016]), ("unlabelled", 4, 2, 500, 8, 2.5, [0.005, 0]),
    ("unlabelled", 4, 2, 1000, 32, 2.5, [0.005, 0]), ("unlabelled", 4, 2, 1000, 16, 2.5, [0, 0]),
    ("unlabelled", 1, 1, 1842, 32, 2.5, [0]), ("unlabelled", 1, 1, 1000, 32, 2.5, [0]),
    ("unlabelled", 1, 1, 1000, 32, 1.5, [0]), ("unlabelled", 1, 1, 500, 16, 2.5, [0]),
    ("unlabelled", 1, 2, 500, 16, 2.5, [0.01, 0]),
    ("by_class", 4, 1, 360, 4, 0, [0]), ("by_class", 4, 1, 360, 4, 0.5, [0]), ("by_class", 4, 1, 360, 4, 2.5, [0]),
    ("by_class", 1, 1, 360, 4, 0, [0]), ("by_class", 1, 1, 360, 4, 0.5, [0]),
]  # fmt: skip

BLIND = [  # generator, records, ε, candidates of a label at each vote, members in the end, q, what is kept, H
    *(("glyphs", 1500, 4, (221, 221), 191, 4, keep, h) for keep in ("winners", "none") for h in (1.0, 1.75, 2.5, 3.25)),
    *(("glyphs", 1500, 4, (443,), 170, q, "none", 2.5) for q in (16, 4, 1)),
    *(("glyphs", 1500, 4, (147, 147, 147), 170, 4, "winners", h) for h in (1.0, 2.5)),
    *(("glyphs", 4000, 1, (400, 400), 400, 8, "winners", h) for h in (1.0, 2.5)),
]
LIMITED = [  # candidates of a label at each vote, members in the end, q, H, last degree (0: taken as chosen)
    *(((95,), 95, 1, 1.0, 0), ((66,), 28, 1, 0.5, 0.4), ((33, 33), 28, 1, 1.0, 0.4)),  # within 1,000 images
    *(((142,), 142, 1, 1.0, 0), ((50, 50), 42, 1, 1.0, 0.4)),  # 1,500
    *(((237,), 237, 1, 1.0, 0), ((237,), 237, 1, 2.5, 0), ((166,), 71, 1, 0.5, 0.4), ((83, 83), 71, 1, 1.0, 0.4)),
    ((55, 55, 55), 72, 1, 1.0, 0.4),  # 2,500
    *(((475,), 475, 8, 1.0, 0), ((166, 166), 142, 4, 1.0, 0.4), ((83, 83, 83, 83), 143, 2, 1.0, 0.4)),  # 5,000
]


def digits_measurer(fonts: str) -> Callable[[Any, int], dict[str, float]]:
    """Accuracy of LR and MLP after one short run, mean of both stand-in sets of demo_settings.py."""
    sets = [short.stand_in(fonts, "boxed", 1), short.stand_in(fonts, "free", 2)]

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        records, epsilon, iterations, members, neighbors, threshold = setting
        short.NOISE = SIGMA[epsilon]
        wanted = replace(
            short.Setting(),
            population=(members,) * iterations,
            degree=DEGREES[iterations],
            neighbors=neighbors,
            threshold_sigmas=threshold,
        )
        some = [
            replace(one, private=one.private.take(np.arange(records)), private_labels=one.private_labels[:records])
            for one in sets
        ]
        lr, mlp = np.mean([short.evolved(one, wanted, run) for one in some], axis=0)
        return {"LR": round(float(lr), 3), "MLP": round(float(mlp), 3)}

    return accuracy


def keeping_measurer(fonts: str) -> Callable[[Any, int], dict[str, float]]:
    """Accuracy of LR and MLP after one short run, and images asked for: means of both stand-in sets."""
    sets = [short.stand_in(fonts, "boxed", 1), short.stand_in(fonts, "free", 2)]

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        population, final, keep, threshold = setting
        degree = {2: (0.5, 0.4), 3: (0.5, 0.45, 0.4), 4: DEGREES[4]}[len(population)]
        wanted = short.Setting(population, final, degree, keep=keep, threshold_sigmas=threshold)
        found = []
        for one in sets:
            samples, labels, asked = short.evolve(one, wanted, run)
            found.append((*short.measured(samples, labels, one), asked))
        lr, mlp, images = np.mean(found, axis=0)
        return {"LR": round(float(lr), 3), "MLP": round(float(mlp), 3), "images": round(float(images))}

    return accuracy


def limited_measurer(fonts: str) -> Callable[[Any, int], dict[str, float]]:
    """As `keeping_measurer`: one vote, or several with winners kept."""
    sets = [short.stand_in(fonts, "boxed", 1), short.stand_in(fonts, "free", 2)]

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        population, final, neighbors, threshold, last = setting
        wanted = short.Setting(
            population,
            final,
            (*(0.5, 0.45, 0.4)[: len(population) - 1], last),
            neighbors=neighbors,
            threshold_sigmas=threshold,
            keep="none" if len(population) == 1 else "winners",
            selection="systematic" if len(population) == 1 else "sample",
        )
        found = []
        for one in sets:
            samples, labels, asked = short.evolve(one, wanted, run)
            found.append((*short.measured(samples, labels, one), asked))
        lr, mlp, images = np.mean(found, axis=0)
        return {"LR": round(float(lr), 3), "MLP": round(float(mlp), 3), "images": round(float(images))}

    return accuracy


def blind_measurer(fonts: str) -> Callable[[Any, int], dict[str, float]]:
    """As `keeping_measurer`, over drawn text of any digit, whatever label is asked for.

    A variation of degree v has another digit with a probability of v².
    """
    sets = [short.stand_in(fonts, "boxed", 1), short.stand_in(fonts, "free", 2)]
    any_digit = {digit: tuple(short.DIGITS) for digit in short.DIGITS}
    degrees = {1: (0.4,), 2: (0.7, 0.4), 3: (0.7, 0.5, 0.4), 4: (0.7, 0.6, 0.5, 0.4)}

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        _, records, epsilon, population, final, neighbors, keep, threshold = setting
        wanted = short.Setting(
            population,
            final,
            degrees[len(population)],
            neighbors=neighbors,
            threshold_sigmas=threshold,
            glyphs=(("texts", any_digit),),
            keep=keep,
            selection="systematic" if len(population) == 1 else "sample",
        )
        short.NOISE = SIGMA[epsilon]
        found = []
        for one in sets:
            some = replace(
                one, private=one.private.take(np.arange(records)), private_labels=one.private_labels[:records]
            )
            samples, chosen, asked = short.evolve(some, wanted, run)
            found.append((*short.measured(samples, chosen, one), asked))
        lr, mlp, images = np.mean(found, axis=0)
        return {"LR": round(float(lr), 3), "MLP": round(float(mlp), 3), "images": round(float(images))}

    return accuracy


def few_measurer(fonts: str) -> Callable[[Any, int], dict[str, float]]:
    """Accuracy of LR and MLP after a run of the engine by the rule's choice, and of as many un-evolved samples.

    Means of both stand-in sets; the private records of a run are others than those of the next.
    """
    sets = [short.stand_in(fonts, "boxed", 1), short.stand_in(fonts, "free", 2)]

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        records, epsilon = setting
        found = np.mean([_few(one, records, epsilon, run) for one in sets], axis=0)
        names = ("LR", "MLP", "un-evolved LR", "un-evolved MLP")
        return {name: round(float(value), 3) for name, value in zip(names, found, strict=True)}

    return accuracy


def _few(digits: Any, records: int, epsilon: float, run: int) -> list[float]:
    """LR and MLP of a run, and of its generator's samples, over `records` of the stand-in's private digits."""
    rows = np.arange(run * records, (run + 1) * records) % len(digits.private)
    with tempfile.TemporaryDirectory() as folder:
        private = Path(folder) / "private.npz"
        np.savez(private, images=digits.private.array[rows], labels=digits.private_labels[rows].astype(str))
        kind = {"kind": "npz", "path": str(private), "size": 28, "channels": 1, "declared_size": records}
        content = {
            "seed": run,
            "private": kind | {"classes": [str(digit) for digit in range(10)]},
            "api": {"kind": "glyphs"},
            "embedding": {"kind": "pixels", "blur": 0.8},
            "privacy": {"epsilon": epsilon, "delta": 1e-5},
        }
        recipe = Recipe.parse(content, "the benchmark")
        made = run_recipe(recipe, Path(folder) / "run", Surroundings()).synthetic
        assert isinstance(made.samples, Images)
        drawn = unevolved(Glyphs(), made.labels, recipe.private.labels, run)
        each = ((made.samples, made.labels), (drawn.images, drawn.labels))
        scores = [accuracies(images, labels, digits.test, digits.test_labels, run) for images, labels in each]
        return [score[name] for score in scores for name in ("logistic_regression", "mlp")]


def pictures_measurer(folder: Path) -> Callable[[Any, int], dict[str, float]]:
    """Accuracy of a linear probe after a run of the engine, and of its controls."""
    import pictures

    network = pictures.Remembering(folder.with_name(f"{folder.name}-efficientnet_lite.npz"))

    def accuracy(setting: Any, run: int) -> dict[str, float]:
        pool, epsilon, iterations, members, neighbors, threshold, degrees = setting
        given = {
            "iterations": iterations,
            "population": [9 * members] * iterations + [3600],
            "degree": degrees,
            "neighbors": neighbors,
            "lookahead": 0,
            "threshold_sigmas": threshold,
        }
        changes = tuple(f"evolution.{key}={json.dumps(value)}" for key, value in given.items())
        setup = pictures.Setting(folder, network, None, changes)
        recipe = pictures.recipe_for(pool, "efficientnet_lite", epsilon, run, setup)
        found: dict[str, float] = pictures.cell(recipe, pool, run, setup, None)["accuracy"]
        return {name: found[name] for name in ("synthetic", "unevolved", "random_selection")}

    return accuracy
