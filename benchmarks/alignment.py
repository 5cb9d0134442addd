"""DP-ImgSyn: what alignment is worth, and whether its images look like private ones.

    python benchmarks/alignment.py [--runs N] [--epsilon E] [--private FILE.npz --test FILE.npz]

Private: the demo's 4,000 MNIST digits at 14×14. For each set of public images (low-pass noise, drawn letters, drawn
digits) the teacher and the moments are fitted once; then the same public images are aligned by 0, 2, 5, 10 and 20
steps, and students are trained on the results with the teacher's soft labels. What results/alignment.jsonl has already
is not run again. Writes results/alignment.md and docs/images/alignment-*.png; with digits of your own it prints and
writes nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import string
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from methods import digits
from methods_settings import DELTA, DIGITS, SETTINGS
from methods_table import PICTURES
from PIL import Image, ImageDraw, ImageFont
from record import RESULTS, keep, where

SETTING, KEPT = SETTINGS["cpu"], RESULTS / "alignment.jsonl"
STEPS = (0, 2, 5, 10, 20)
SAMPLES, EPOCHS, FAR, ZOOM = 2000, 10, 500, 3
PUBLIC: dict[str, dict[str, Any]] = {
    "low-pass noise": {"kind": "noise", "count": 12400},
    "drawn letters": {"kind": "glyphs", "characters": string.ascii_letters, "count": 10400},
    "drawn digits": {"kind": "glyphs", "characters": string.digits, "count": 2000},
}


def recipe_of(public: dict[str, Any], epsilon: float, run: int, private: Path | None) -> dict[str, Any]:
    """Fit alone; few samples, since others are asked for afterwards."""
    source: dict[str, Any] = {"kind": "mnist"} if private is None else {"kind": "npz", "path": str(private)}
    shape = {"size": SETTING.side, "resize": "stretch", "channels": 1}
    return {
        "name": "alignment",
        "seed": run,
        "private": source | shape | {"classes": list(DIGITS), "declared_size": 4000},
        "api": {"kind": "dp_imgsyn", "public": public, "alignment": {"steps": max(STEPS)}},
        "embedding": {"kind": "pixels", "size": SETTING.side},
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "evolution": {"iterations": 0, "population": 10},
    }


def fitted(public: dict[str, Any], epsilon: float, run: int, private: Path | None, folder: Path) -> Path:
    """The folder of the fitted model."""
    from pe.engine.execution import Surroundings, run_recipe
    from pe.recipe.schema import Recipe

    recipe = Recipe.parse(recipe_of(public, epsilon, run, private), "the benchmark")
    return run_recipe(recipe, folder / "run", Surroundings()).folder / "model"


def rows_of(
    model: Path, public: dict[str, Any], run: int, private: Any, test: Any
) -> tuple[list[dict[str, float]], Any]:
    """For each number of steps: the student's accuracy, and the mean distance to the nearest private image.

    And a picture: a row for each number of steps, an image for each label.
    """
    from pe.evaluation.classifiers import Classifier, NetworkSettings
    from pe.evaluation.labelled import label_samples
    from pe.evaluation.utility import utility
    from pe.plugins.protocols import RandomRequest
    from pe.plugins.registry import construct
    from pe.progress import Progress

    labels = tuple(DIGITS[i % len(DIGITS)] for i in range(SAMPLES))
    request = RandomRequest(labels, np.arange(SAMPLES).astype(np.uint64))
    found, shown = [], []
    for steps in STEPS:
        api: Any = construct("pe.adapters", "dp_imgsyn", {"public": public, "alignment": {"steps": steps}})
        api.load(model)
        answer = api.random_api(request)
        train = label_samples(answer.samples, np.array([DIGITS.index(each) for each in labels]), answer.conditions)
        student = Classifier("resnet9", NetworkSettings(epochs=EPOCHS))
        scores = utility([student], {"set": train}, test, len(DIGITS), [run], Progress())
        found.append(
            {
                "steps": float(steps),
                "accuracy": float(scores["resnet9"]["set"].accuracy[0]),
                "nearest": nearest_private(answer.samples.array, private),
            }
        )
        print(found[-1], flush=True)
        shown.append(answer.samples.array[: len(DIGITS), :, :, 0])
    return found, marked(Image.fromarray(sheet(np.stack(shown)).repeat(ZOOM, axis=0).repeat(ZOOM, axis=1)))


def sheet(images: Any) -> Any:
    """Images (rows, columns, h, w) beside and below one another, with a white line between them."""
    framed = np.pad(images, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=255)
    return framed.transpose(0, 2, 1, 3).reshape(framed.shape[0] * framed.shape[2], -1)[:-1, :-1]


def marked(picture: Any) -> Any:
    """The sheet with the number of steps before each row, and the label above each column."""
    left, top = 62, 22
    whole = Image.new("L", (left + picture.width, top + picture.height), 255)
    whole.paste(picture, (left, top))
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(14)
    height, width = (picture.height + ZOOM) / len(STEPS), (picture.width + ZOOM) / len(DIGITS)
    for row, steps in enumerate(STEPS):
        draw.text((left - 6, top + (row + 0.5) * height), f"k = {steps}", fill=0, font=font, anchor="rm")
    for column, digit in enumerate(DIGITS):
        draw.text((left + (column + 0.5) * width, top - 4), digit, fill=0, font=font, anchor="ms")
    return whole


def nearest_private(images: Any, private: Any) -> float:
    """Mean distance of the first images to the nearest private one: root mean square of grey levels, 0 to 255."""
    some, all_ = (each.astype(np.float64).reshape(len(each), -1) for each in (images[:FAR], private.images.array))
    squares = np.square(some).sum(axis=1)[:, None] - 2 * some @ all_.T + np.square(all_).sum(axis=1)
    return float(np.sqrt(squares.min(axis=1).clip(0) / some.shape[1]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--private", type=Path, help=".npz of digits that stand in for the private ones")
    parser.add_argument("--test", type=Path, help=".npz of digits to test on, with --private")
    arguments = parser.parse_args()
    private, test = digits("private", SETTING, arguments.private), digits("test", SETTING, arguments.test)
    done = {} if arguments.private or not KEPT.exists() else dict(map(json.loads, KEPT.read_text().splitlines()))
    for run in range(arguments.runs):
        for name, public in PUBLIC.items():
            key = f"{name}, ε = {arguments.epsilon:g}, run {run}"
            if key in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                model = fitted(public, arguments.epsilon, run, arguments.private, Path(folder))
                done[key], picture = rows_of(model, public, run, private, test)
            if not arguments.private:
                picture.save(PICTURES / f"alignment-{name.replace(' ', '-')}.png")
                with KEPT.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps([key, done[key]], ensure_ascii=False) + "\n")
    table = [
        line(name, [rows[i] for key, rows in done.items() if key.startswith(f"{name}, ε = {arguments.epsilon:g}, ")])
        for name in PUBLIC
        for i in range(len(STEPS))
    ]
    text = "\n".join(
        [
            f"# DP-ImgSyn: what alignment is worth (ε = {arguments.epsilon:g}, δ = {DELTA:g})",
            "",
            f"{SAMPLES:,} images of 14×14; the student is a ResNet-9 taught with the teacher's soft labels for "
            f"{EPOCHS} epochs and tested on 1,000 real digits; k = 0 are the public images as they are, labelled, too."
            " Distance: from a made image to the nearest of the 4,000 private digits, root mean square of grey levels, "
            f"mean of {FAR}; real digits that nobody saw are at {nearest_private(test.images.array, private):.1f}. "
            f"Mean ± standard deviation over runs with fresh noise, where there are several. {where()}. "
            f"`python benchmarks/alignment.py --runs {arguments.runs}`",
            "",
            "| public images | k | student | distance to the nearest private image | runs |",
            "| --- | ---: | ---: | ---: | ---: |",
            *table,
            "",
        ]
    )
    if arguments.private:
        print(text)
    else:
        keep("alignment.md", text)


def line(name: str, runs: list[dict[str, float]]) -> str:
    accuracy, nearest = ([each[key] for each in runs] for key in ("accuracy", "nearest"))
    return f"| {name} | {runs[0]['steps']:.0f} | {spread(accuracy, 3)} | {spread(nearest, 1)} | {len(runs)} |"


def spread(values: list[float], digits_: int) -> str:
    mean = f"{statistics.mean(values):.{digits_}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits_}f}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
