"""What an evaluation takes in time and memory: python benchmarks/evaluation.py.

Each row runs in a process of its own on two cores, reads its images from .npz files as `pe
evaluate` does, and reports wall-clock and CPU seconds and the peak of its resident memory. Images
are made-up: smooth colour fields with noise. Writes benchmarks/results/evaluation.md.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from record import keep, where

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2")
TURNS = 3
PE = [sys.executable, "-c", "from pe.cli.main import main; main()"]
SIDE, IMAGES = 32, 50_000
TASKS = {
    "frechet": "Fréchet distance, 50,000 against 50,000 of 32×32×3, pixels (d = 3,072)",
    "fidelity": "all of fidelity, the same images",
    "memorisation": "memorisation, 10,000 generated, 10,000 private, 2,000 held out, pixels (d = "
    "3,072)",
    "logistic_regression": "logistic regression, 10,000 digits of 28×28×1, one seed",
    "mlp": "MLP, the same",
    "resnet9": "ResNet-9, 1,000 digits, one epoch",
}


def made_up(path: Path, seed: int, count: int, side: int, channels: int) -> None:
    """`count` images of ten classes: class-dependent colour fields, a random bump, noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    coarse = np.random.default_rng(99).uniform(60, 190, (10, 4, 4, channels))
    patterns = coarse.repeat(side // 4, 1).repeat(side // 4, 2)
    images = np.empty((count, side, side, channels), np.uint8)
    for start in range(0, count, 1000):
        part = slice(start, start + 1000)
        noise = rng.normal(0, 25, images[part].shape) + rng.normal(
            0, 20, (len(images[part]), 1, 1, channels)
        )
        images[part] = np.clip(patterns[labels[part]] + noise, 0, 255)
    np.savez(path, images=images, labels=labels)


def read(path: Path, side: int, channels: int):
    from pe.evaluation.sets import read_real
    from pe.private.npz import ImageNpz

    names = tuple("0123456789")
    return read_real(
        ImageNpz(path, size=side, channels=channels, classes=names), "set", names
    ).content


def work(task: str, folder: Path) -> None:
    """One row's work."""
    from embeddings.pixels import Pixels
    from pe.evaluation.classifiers import Classifier
    from pe.evaluation.features import CachedEmbedding
    from pe.evaluation.fidelity import features, fidelity, frechet_distance
    from pe.evaluation.labelled import NetworkSettings
    from pe.evaluation.memorisation import memorisation
    from pe.evaluation.utility import ClassifierTrial, utility
    from pe.progress import Progress, Task

    seen = CachedEmbedding("pixels", Pixels(size=SIDE, blur=0))
    if task == "frechet":
        one, other = (
            features(read(folder / name, SIDE, 3).images, seen, 0, Task()).moments
            for name in ("a.npz", "b.npz")
        )
        print(f"{frechet_distance(one, other):.6g}", file=sys.stderr)
    elif task == "fidelity":
        made, real = (read(folder / name, SIDE, 3).images for name in ("a.npz", "b.npz"))
        fidelity(seen, {"synthetic": made}, real, 0, Progress())
    elif task == "memorisation":
        made, real = (read(folder / name, SIDE, 3).images for name in ("a.npz", "b.npz"))
        memorisation(
            made.take(slice(10_000)),
            real.take(slice(10_000)),
            real.take(slice(10_000, 12_000)),
            seen,
        )
    else:
        training, test = (read(folder / name, 28, 1) for name in ("train.npz", "test.npz"))
        if task == "resnet9":
            training = training.take(slice(1000))
        classifier = Classifier(task, NetworkSettings(epochs=1))
        utility(
            [ClassifierTrial(task, classifier, {"synthetic": training}, test)], 10, [0], Progress()
        )


def bare_loop(train, epochs: int) -> float:
    """Seconds of the least that PyTorch needs to train the same network on the same images in
    batches of that size.
    """
    import torch
    from torch.nn import functional

    from pe.evaluation.resnet9 import _Batches, resnet9

    model = resnet9(train.images.shape[2], 10).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9, weight_decay=5e-4, nesterov=True)
    pixels = torch.from_numpy(train.images.pixels.astype(np.float32) / 255).permute(0, 3, 1, 2)
    labels = torch.from_numpy(train.labels.astype(np.int64))
    steps = len(_Batches(train, False, np.random.default_rng(0)))
    started = time.perf_counter()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).tensor_split(steps):
            optimizer.zero_grad()
            given = pixels[rows].contiguous(memory_format=torch.channels_last)
            functional.cross_entropy(model(given), labels[rows]).backward()
            optimizer.step()
    return time.perf_counter() - started


def compare(name: str, folder: Path) -> None:
    """A row of the second table, to the file `row`: the start, our training, and the bare loop, in
    turns.
    """
    started = time.perf_counter()
    from pe.evaluation.classifiers import Classifier
    from pe.evaluation.labelled import NetworkSettings, hold_out

    rest, held = hold_out(read(folder / "train.npz", 28, 1).take(slice(1000)), 0.1, 0)
    classifier = Classifier(name, NetworkSettings(epochs=1, device="cpu"))
    first, few = rest.take(slice(32)), held.take(slice(10))
    classifier.fit(first, few, 10, 0)
    start = time.perf_counter() - started
    ours, bare = [], []
    for _ in range(TURNS):
        started = time.perf_counter()
        classifier.fit(rest, held, 10, 0)
        ours.append(time.perf_counter() - started)
        bare.append(bare_loop(rest, 1))
    ratio = np.median(np.divide(ours, bare))
    row = f"| {name} | {start:.1f} | {np.median(ours):.1f} | {np.median(bare):.1f} | {ratio:.2f} |"
    (folder / "row").write_text(row, encoding="utf-8")


def row_of(name: str, folder: Path) -> str:
    """A row of the second table."""
    subprocess.run(
        [sys.executable, __file__, "compare", name, str(folder)],
        check=True,
        env=os.environ | THREADS,
    )
    return (folder / "row").read_text(encoding="utf-8")


def measure(task: str, folder: Path) -> str:
    """A row of the table."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, __file__, task, str(folder)], check=True, env=os.environ | THREADS
    )
    seconds = time.perf_counter() - started
    cpu, peak = map(float, (folder / "used").read_text().split())
    return (
        f"| {TASKS[task]} | {seconds:.1f} | {cpu:.1f} | {os.getloadavg()[0]:.1f} | "
        f"{peak / 2**20:.2f} |"
    )


def digits(folder: Path) -> list[str]:
    """A run of the demo's recipe, evaluated whole: what the command prints, and its seconds."""
    recipe = Path(__file__).parents[1] / "pe" / "engine" / "recipes" / "glyphs.yaml"
    subprocess.run([*PE, "run", str(recipe), "--out", "digits", "--quiet"], check=True, cwd=folder)
    started = time.perf_counter()
    command = [*PE, "evaluate", "digits", "--test", "mnist", "--quiet"]
    page = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True).stdout
    return [
        "",
        f"`pe evaluate digits --test mnist`, {time.perf_counter() - started:.0f} s (one run; ε = "
        "1):",
        "",
        *("    " + line if line else "" for line in page.splitlines()),
    ]


def colour(folder: Path, embedding: str) -> str:
    """A row of the table: `pe evaluate` with its defaults, of a run over 64×64 colour images of ten
    classes.
    """
    for name, seed, count in (("private", 5, 1500), ("test-colour", 6, 380), ("pool", 7, 4500)):
        made_up(folder / f"{name}.npz", seed, count, 64, 3)
    evolution = {"iterations": 3, "population": 1900, "degree": [0.3, 0.1, 0.03], "lookahead": 0}
    recipe = {
        "private": {
            "kind": "npz",
            "path": "private.npz",
            "size": 64,
            "classes": list("0123456789"),
        },
        "api": {"kind": "public_images", "path": "pool.npz"},
        "embedding": {"kind": embedding},
        "privacy": {"epsilon": 5, "delta": 1e-5},
        "evolution": evolution,
    }
    (folder / "colour.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    subprocess.run(
        [*PE, "run", "colour.yaml", "--out", embedding, "--quiet"], check=True, cwd=folder
    )
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [*PE, "evaluate", embedding, "--test", "test-colour.npz", "--quiet"]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    what = (
        "`pe evaluate`, 1,900 images of 64×64×3, 1,500 private, 380 test, ten classes, three "
        f"controls, {embedding}"
    )
    return f"| {what} | {seconds:.1f} | {cpu:.1f} | {os.getloadavg()[0]:.1f} | – |"


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made_up(folder / "a.npz", 1, IMAGES, SIDE, 3)
        made_up(folder / "b.npz", 2, IMAGES, SIDE, 3)
        made_up(folder / "train.npz", 3, 10_000, 28, 1)
        made_up(folder / "test.npz", 4, 1000, 28, 1)
        rows = [
            measure(task, folder) for task in TASKS
        ]  # one after the other: they share the cores
        rows += [colour(folder, embedding) for embedding in ("pixels", "efficientnet_lite")]
        loops = [row_of(name, folder) for name in ("resnet9",)]
        page = digits(folder)
    lines = [
        "# Time and memory of an evaluation",
        "",
        f"{where()}. Two threads, no GPU; a process each, its start and the reading of the images "
        "included. Other work shared the two cores where the load is over 2, and made the "
        "wall-clock seconds more; made by `python benchmarks/evaluation.py`.",
        "",
        "| what | seconds | CPU seconds | load then | peak memory, GiB |",
        "|---|--:|--:|--:|--:|",
        *rows,
        "",
        "Training alone: an epoch over 900 digits with its validation on 100, beside a bare "
        "PyTorch loop over the same network and images (no augmentation, average or validation); "
        f"medians of {TURNS} turns. The start, which no other column holds, loads torch and reads "
        "the images:",
        "",
        "| network | start, s | training, s | bare loop, s | ratio |",
        "|---|--:|--:|--:|--:|",
        *loops,
        *page,
    ]
    keep("evaluation.md", "\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["compare"]:
        compare(sys.argv[2], Path(sys.argv[3]))
    elif len(sys.argv) == 3:
        work(sys.argv[1], Path(sys.argv[2]))
        used = resource.getrusage(resource.RUSAGE_SELF)
        content = f"{used.ru_utime + used.ru_stime} {used.ru_maxrss}"  # seconds, KiB
        (Path(sys.argv[2]) / "used").write_text(content, encoding="utf-8")
    else:
        main()
