"""A commented starting recipe for a folder of images."""

from __future__ import annotations

import json
from pathlib import Path

_TEMPLATE = """\
# Private Evolution over the images in {folder}.
# Everything in this file is public: it names no record and no number counted from the records.
name: {name}
seed: 0                      # all randomness but the noise

private:
  kind: folder
  path: {folder}
  classes: {classes}         # public: the labels, confirmed by you, never read from the data
  size: {size}               # height and width in pixels
  resize: {resize}             # crop, fit or stretch
  channels: {channels}                # 3 = colour, 1 = grey
  privacy_unit: {unit}       # who is protected: record, subfolder, or a column of labels.csv
  declared_size: {declared}        # public: about how many records there are
  on_bad_image: fail         # or skip: an unreadable image casts no vote

# The generator. `pe doctor` lists what is installed; docs/adapters.md shows how to add your own.
api:
  kind: public_images        # draws from a pool of public images and their neighbours
  path: {public}
  size: {size}
  channels: {channels}

embedding:
  kind: pixels

privacy:
  epsilon: 4                 # target of the whole run; or noise_multiplier
  delta: {delta}               # below 1 / number of records
  relation: add_remove       # or replace_one, zero_out

evolution:
  iterations: 6              # T
  population: {population}           # members of every S_t, divided among the labels
  degree: [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]   # one number, or one per iteration; 0 = unchanged, 1 = as new
  lookahead: 4               # k, variations whose mean embedding stands for a candidate
  threshold_sigmas: 1        # H, in standard deviations of the noise
"""


def starter_recipe(
    folder: Path, classes: list[str], unit: str, declared_size: int, size: int, channels: int, public: Path
) -> str:
    """YAML for `pe run`, with a comment on every choice.

    Args:
        folder: where the private images are.
        classes: the public label names, as the user confirmed them; empty: no labels.
        unit: the privacy unit.
        declared_size: the public number of records, ≥ 1.
        size: height and width, in pixels.
        channels: 1 or 3.
        public: folder of public images for the generator to draw from.
    """
    labels = max(len(classes), 1)
    per_label = min(max(declared_size // (20 * labels), 5), 1000)
    return _TEMPLATE.format(
        folder=_scalar(str(folder)),
        name="".join(c if c.isascii() and c.isalnum() else "-" for c in folder.resolve().name).strip("-") or "images",
        classes=json.dumps(classes, ensure_ascii=False) if classes else "null",
        size=size,
        resize="crop",
        channels=channels,
        unit=_scalar(unit),
        declared=declared_size,
        public=_scalar(str(public)),
        delta=_power_of_ten_below(1 / declared_size),
        population=per_label * labels,
    )


def _scalar(text: str) -> str:
    """Text as a YAML scalar (JSON strings are YAML)."""
    return text if text.replace("/", "").replace("_", "").replace(".", "").isalnum() else json.dumps(text)


def _power_of_ten_below(value: float) -> str:
    """A tenth of `value` at most, as 1e-k."""
    exponent = 2
    while 10.0**-exponent > value / 10:
        exponent += 1
    return f"1e-{exponent}"
