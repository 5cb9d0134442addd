"""PrivImage's query: what public character each private digit is taken for, by either network, with one view and two.

    python benchmarks/semantics.py FONTS

FONTS holds the fonts of demo_settings.py. The private digits are drawn from those, of two kinds, and stand in for
handwriting; the public characters are `kind: glyphs`. Writes results/semantics.md.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from demo_settings import stand_in
from record import keep, where

from adapters.trained.public import CHARACTERS, Characters, PublicSet
from adapters.trained.sections import QueryTraining
from adapters.trained.semantics.counts import chosen_semantics
from adapters.trained.semantics.query import train_query

RECORDS, COUNT, SHAPE = 500, 3720, (28, 28, 1)
KINDS: tuple[tuple[Literal["boxed", "free"], int], ...] = (("boxed", 1), ("free", 2))
ALIKE = dict(zip("0123456789", ("Oo", "lIi", "Zz", "", "A", "Ss", "Gb", "T", "B", "gq"), strict=True))
"""Public characters that a digit may be taken for: semantics of a form, not of a meaning."""
HARD = "016"

Taken = npt.NDArray[np.int64]


def taken_for(network: Any, public: PublicSet, digits: dict[str, Any]) -> dict[tuple[str, int], tuple[Taken, float]]:
    """The public label of each record, by kind and views; CPU seconds of the training."""
    started = time.process_time()
    device = torch.device("cpu")
    found = {}
    for views in (1, 2):
        if views == 1:
            query = train_query(public, QueryTraining(network=network), 0, device, lambda: None)
            seconds = time.process_time() - started
        asked = type(query)(query.classifier, views, device)
        for kind, (images, _) in digits.items():
            found[kind, views] = np.array([asked.tops(image, 1)[0] for image in images]), seconds
    return found


def row(network: str, kind: str, views: int, taken: Taken, labels: Taken, seconds: float) -> str:
    names = np.array(list(CHARACTERS))[taken]
    right = names == labels.astype(str)
    alike = np.array([name in ALIKE[str(label)] for name, label in zip(names, labels, strict=True)])
    counts = np.zeros((10, len(CHARACTERS)), dtype=np.int64)
    np.add.at(counts, (labels, taken), 1)
    held = [sum(i in row for i, row in enumerate(chosen_semantics(counts, k))) for k in (1, 2)]
    hard = " · ".join(f"{right[labels == int(d)].mean():.2f}, {alike[labels == int(d)].mean():.2f}" for d in HARD)
    numbers = f"{right.mean():.3f} | {alike.mean():.3f} | {hard} | {held[0]} | {held[1]} | {seconds:.0f}"
    return f"| {network} | {kind} | {views} | {numbers} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("fonts", help="folder of the fonts that demo_settings.py names")
    fonts = parser.parse_args().fonts
    digits: dict[str, Any] = {}
    for kind, seed in KINDS:
        drawn = stand_in(fonts, kind, seed)
        digits[kind] = drawn.private.array[:RECORDS], drawn.private_labels[:RECORDS].astype(np.int64)
    public = Characters(count=COUNT).read(SHAPE, 0)
    rows = []
    for network in ("small", "efficientnet"):
        for (name, views), (taken, seconds) in sorted(taken_for(network, public, digits).items()):
            rows.append(row(network, name, views, taken, digits[name][1], seconds))
            print(rows[-1], flush=True)
    keep("semantics.md", page(rows))


def page(rows: list[str]) -> str:
    heads = "| network | digits | views | right | look-alike | 0 · 1 · 6: right, look-alike | k = 1 | k = 2 | CPU s |"
    return "\n".join([
        "# PrivImage's query on digits that stand in for private ones",
        "",
        f"{RECORDS} digits of each kind at 28×28, drawn from handwriting fonts (as in demo_settings.py); {COUNT:,} "
        "public characters, 62 labels. Shares of the digits that the query takes for the right character, and for one "
        f"that looks alike ({', '.join(f'{digit}: {names}' for digit, names in ALIKE.items() if names)}); for how many "
        "of the ten digits the k characters that are chosen without noise hold the digit; CPU seconds of the query's "
        f"training. One seed. {where()}. `python benchmarks/semantics.py FONTS`",
        "",
        heads,
        "| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
        *rows,
    ])  # fmt: skip


if __name__ == "__main__":
    main()
