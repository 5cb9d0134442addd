"""Train ResNet-9 on some of a run's images: `python -m published.judge RUN TEST IMAGES EPOCHS`.

`pe evaluate` trains on all of them, and on controls: hours on two cores for 60,000 images. The
accuracy on the whole test set goes to RUN/confidential/judged.json: internal, as `pe evaluate`'s
metrics are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from pe.data.images import Images
from pe.evaluation.labelled import Labelled, NetworkSettings
from pe.evaluation.resnet9 import fit_network

HELD_OUT = 500
"""Synthetic images on which the best epoch is chosen."""


def labelled(archive: Any, rows: np.ndarray[Any, Any], names: list[str]) -> Labelled:
    """Return images of a .npz file with their places in `names`, the classes."""
    labels = archive["labels"][rows]
    if "label_names" in archive.files:
        labels = archive["label_names"][labels]
    return Labelled(
        Images(archive["images"][rows]), np.searchsorted(names, labels).astype(np.int32)
    )


def main(run: str, test: str, images: str, epochs: str) -> None:
    """Train, test, and write the accuracy."""
    synthetic, real = np.load(f"{run}/synthetic.npz"), np.load(test)
    names = sorted(synthetic["label_names"])
    rows = np.random.default_rng(0).permutation(len(synthetic["labels"]))[: HELD_OUT + int(images)]
    train, validation = (
        labelled(synthetic, part, names) for part in (rows[HELD_OUT:], rows[:HELD_OUT])
    )
    classify = fit_network(train, validation, len(names), 0, NetworkSettings(epochs=int(epochs)))
    held_out = labelled(real, np.arange(len(real["labels"])), names)
    accuracy = float(np.mean(classify(held_out).argmax(axis=1) == held_out.labels))
    Path(run, "confidential", "judged.json").write_text(json.dumps({"resnet9": accuracy}))


if __name__ == "__main__":
    main(*sys.argv[1:])
