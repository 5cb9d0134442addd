"""What `pe plan --private-side` foretells, beside what the work then takes; and what it foretells of an archive.

    python benchmarks/private_side.py [--records N] [--candidates M]

The records are PNG files of drawn digits, 28×28; other drawn digits are the candidates. Seconds of one core's work are
counted, whatever else the machine does. Writes results/private_side.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as a worker has it

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from record import keep, where

from adapters.glyphs import Glyphs
from pe.planning.build import build_embedding, set_up_generator
from pe.planning.forecast import forecast
from pe.planning.layout import lay_out
from pe.planning.trials import seconds_of
from pe.planning.workload import Workload, workload
from pe.plugins.protocols import RandomRequest
from pe.private.embeddings import embed_private
from pe.private_work import InThisProcess
from pe.recipe.schema import Recipe

DIGITS = tuple("0123456789")
ARCHIVE = 10**8, 10**6


def recipe_of(folder: Path, records: int, candidates: int) -> Recipe:
    private = {"kind": "folder", "path": folder, "size": 28, "channels": 1, "classes": DIGITS}
    content = {
        "private": private | {"declared_size": records},
        "api": {"kind": "glyphs"},
        "embedding": {"kind": "pixels", "blur": 0.8},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "evolution": {"iterations": 1, "population": candidates, "lookahead": 0},
    }
    return Recipe.parse(content, "here")


def drawn(count: int, seed: int) -> np.ndarray:
    """Digits, all labels in turn."""
    seeds = np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)
    return Glyphs().random_api(RandomRequest(tuple(DIGITS[i % 10] for i in range(count)), seeds)).samples.array


def save(images: np.ndarray, folder: Path) -> None:
    """One PNG file each, in its label's folder."""
    for digit in DIGITS:
        (folder / digit).mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(folder / DIGITS[i % 10] / f"{i}.png")


def measure(folder: Path, records: int, candidates: int) -> tuple[Workload, dict[str, float]]:
    """What is foretold, and the seconds that decoding, embedding and voting then take."""
    save(drawn(records, 0), folder)
    recipe = recipe_of(folder, records, candidates)
    found = workload(recipe, lay_out(recipe, DIGITS, "record"))
    dataset, embedding, clock = recipe.private.open(), build_embedding(recipe), time.process_time
    public = embedding.embed(type(dataset.modality.examples(1, dataset.shape))(drawn(candidates, 1)))
    labels = np.arange(candidates, dtype=np.int32) % 10
    decoding = seconds_of(lambda: dataset.preflight(b"key"), clock)
    both = seconds_of(lambda: embed_private(dataset, embedding, folder.parent), clock)
    private = embed_private(dataset, embedding, None)
    voting = seconds_of(
        lambda: InThisProcess().count_votes(private, public, labels, 1, lay_out(recipe, DIGITS, "record").voting), clock
    )
    return found, {"decoding": decoding, "decoding and embedding": both, "voting": voting}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--candidates", type=int, default=50_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "private"
        folder.mkdir()
        found, taken = measure(folder, arguments.records, arguments.candidates)
        archive = recipe_of(folder, *ARCHIVE)
        page = forecast(archive, set_up_generator(archive.api)[0], private_side=True).page
    decoding = found.decoding_seconds
    foretold = {
        "decoding": decoding,
        "decoding and embedding": decoding + found.embedding_seconds,
        "voting": found.vote_seconds,
    }
    lines = page.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("Private"))
    last = next(i for i, line in enumerate(lines) if "in this process alone" in line)
    text = [
        f"# What `pe plan --private-side` says: {arguments.records:,} records, {arguments.candidates:,} candidates",
        "",
        f"{where()}. PNG files of drawn digits, 28×28, 10 labels, {found.dimension} dimensions, q = 1; seconds of one "
        "core's work. `python benchmarks/private_side.py`",
        "",
        "| | foretold, s | taken, s | ratio |",
        "| --- | --: | --: | --: |",
        *(
            f"| {name} | {foretold[name]:.3g} | {taken[name]:.3g} | {foretold[name] / taken[name]:.2f} |"
            for name in taken
        ),
        "",
        f"An archive of {ARCHIVE[0]:,} such records and {ARCHIVE[1]:,} candidates:",
        "",
        "```",
        *lines[first : last + 1],
        "```",
    ]
    keep("private_side.md", "\n".join(text) + "\n")


if __name__ == "__main__":
    main()
