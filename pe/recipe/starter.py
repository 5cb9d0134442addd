"""A commented starting recipe for a folder of images."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

_ITERATIONS = 6
_LARGEST = 10_000  # synthetic images that a starting recipe asks for
_COLUMN = 29  # where comments begin; in the template a tab stands before them

_TEMPLATE = """\
# Private Evolution over the images in {folder}.
# Everything in this file is public, but where the private images are (a run's shareable recipe withholds that).
# It names no record and no number counted from the records.
name: images	# public: it goes into the name of the run's folder
seed: 0\t# all randomness but the noise

private:
  kind: folder
  path: {folder}
  classes: {classes}\t# public: the labels, confirmed by you, never read from the data; []: none
  size: {size}\t# height and width in pixels
  resize: crop\t# or fit, stretch
  channels: {channels}\t# 3 = colour, 1 = grey
  privacy_unit: {unit}\t# who is protected: record, subfolder, or a column of labels.csv
  declared_size: {declared}\t# public: about how many records there are
  on_bad_record: fail\t# or skip: an unreadable image casts no vote

# The generator. `pe doctor` lists what is installed; docs/adapters.md shows how to add your own.
api:
  kind: public_images\t# draws from a pool of public images and their neighbours
  path: {public}
  size: {size}
  channels: {channels}

embedding:
  kind: pixels

privacy:
  epsilon: 4\t# target of the whole run; or noise_multiplier
  delta: {delta}\t# well below 1 / number of records
  relation: add_remove\t# or replace_one, zero_out

evolution:
  iterations: {iterations}\t# T
  # Members of S_0 … S_T, divided among the labels. {voting:,} at a time stand for election: more, and the votes per
  # candidate drown in the noise (`pe plan` tells). The last, {final:,}, are the synthetic images that the run ends in;
  # `pe extend` makes more of them at no further ε.
  population: {population}
  degree: [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]\t# one number, or one per iteration; 0 = unchanged, 1 = as new
  lookahead: 4\t# k, variations whose mean embedding stands for a candidate
  threshold_sigmas: 1\t# H, in standard deviations of the noise
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
    voting = min(max(declared_size // (20 * labels), 5), 1000) * labels
    final = max(voting, min(declared_size, _LARGEST) // labels * labels)  # about as many as there are records
    text = _TEMPLATE.format(
        folder=_scalar(str(folder)),
        classes=json.dumps(classes, ensure_ascii=False),
        size=size,
        channels=channels,
        unit=_scalar(unit),
        declared=declared_size,
        public=_scalar(str(public)),
        delta=_power_of_ten_below(1 / declared_size),
        iterations=_ITERATIONS,
        voting=voting,
        final=final,
        population=[voting] * _ITERATIONS + [final],
    )
    return "\n".join(map(_align, text.split("\n")))


def _align(line: str) -> str:
    """A line whose comment, if it has one, stands below the others'."""
    code, tab, comment = line.partition("\t")
    return f"{code:<{_COLUMN - 2}}  {comment}" if tab else code


def _scalar(text: str) -> str:
    """Text as a YAML scalar (JSON strings are YAML); in quotes where YAML would read something else."""
    plain = text.replace("/", "").replace("_", "").replace(".", "").isalnum() and not text[0].isdecimal()
    return text if plain and yaml.safe_load(text) == text else json.dumps(text)


def _power_of_ten_below(value: float) -> str:
    """A tenth of `value` at most, as 1e-k."""
    exponent = 2
    while 10.0**-exponent > value / 10:
        exponent += 1
    return f"1e-{exponent}"
