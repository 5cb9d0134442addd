"""A commented starting recipe for private images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import yaml

from pe.errors import RecipeError
from pe.plugins.registry import load
from pe.private.source import RECORD
from pe.recipe.proposals import ProposedEmbedding

_COLUMN = 29  # where comments begin; in the template a tab stands before them

_TEMPLATE = """\
# Private Evolution over the images in {path}. Relative paths are taken from this file's folder.
# Everything in this file is public, but where the private images are (a run's shareable recipe withholds that).
# It names no record and no number counted from the records.
name: images	# public: it goes into the name of the run's folder
seed: 0\t# all randomness but the noise

private:
{source}
  classes: {classes}\t# public: the labels, confirmed by you, never read from the data; []: none
  size: {size}\t# height and width in pixels
  resize: crop\t# or fit, stretch
  channels: {channels}\t# 3 = colour, 1 = grey
  privacy_unit: {unit}\t# who is protected: record, or {units}
  declared_size: {declared}\t# public: about how many records there are
{declared_units}  on_bad_record: fail\t# or skip: an unreadable image casts no vote

# The generator. `pe doctor` lists what is installed; docs/adapters.md shows how to add your own.
api:
{api}
embedding:
  kind: {embedding}

privacy:
  epsilon: 4\t# target of the whole run; or noise_multiplier
  delta: {delta}\t# well below 1 / number of records
  relation: add_remove\t# or replace_one, zero_out

# T, population, degrees, q, threshold and the rest: chosen by `pe plan`'s rule from the public numbers above. Write a
# section with keys of your own to change any of them (pe explain evolution).
evolution: auto
"""


_POOL = """\
  kind: public_images\t# draws from a pool of public images and their neighbours
  path: {public}
  size: {size}
  channels: {channels}
{by_label}"""


@runtime_checkable
class HasStarter(Protocol):
    """A generator's class that says how a recipe over it may begin.

    Attributes:
        starter: lines of `api` after `kind`, indented by two; before a comment stands a tab. {size}, {channels} and
            {prompts} become those of the private images.
    """

    starter: str


@dataclass(frozen=True)
class Start:
    """What a starting recipe states; all of it public.

    Attributes:
        source: kind, path (as the recipe names it) and other settings of the private source; None is left out.
        classes: the label names, as the user confirmed them; empty: no labels.
        unit: the privacy unit.
        units: what else it may be, in words.
        declared_size: the number of records, ≥ 1.
        declared_units: the number of privacy units, ≥ 1; None where a unit is a record.
        side: height and width, in pixels.
        channels: 1 or 3.
        public: where the public images are that the generator draws from, as the recipe names it; empty: it has none.
        api: the generator's kind, if it does not draw from public images.
        by_label: whether each class draws from the public images of its name; None: there are no classes.
        embedding: which.
    """

    source: Mapping[str, str | None]
    classes: Sequence[str]
    unit: str
    units: str
    declared_size: int
    declared_units: int | None
    side: int
    channels: int
    public: str
    by_label: bool | None
    embedding: ProposedEmbedding
    api: str = ""


def starter_recipe(start: Start) -> str:
    """YAML for `pe run`, with a comment on every choice."""
    text = _TEMPLATE.format(
        path=start.source["path"],
        source="\n".join(f"  {key}: {_scalar(value)}" for key, value in start.source.items() if value is not None),
        classes=json.dumps(list(start.classes), ensure_ascii=False),
        size=start.side,
        channels=start.channels,
        unit=_scalar(start.unit),
        units=start.units,
        declared=start.declared_size,
        declared_units=_declared_units(start),
        api=_generator(start),
        embedding=_embedding(start.embedding),
        delta=_power_of_ten_below(1 / start.declared_size),
    )
    return "\n".join(map(_align, text.split("\n")))


def starter_of(kind: str) -> str:
    """How a recipe over a generator of this kind may begin.

    Raises:
        PluginError: there is no such kind.
        RecipeError: it does not say.
    """
    found = load("pe.adapters", kind)
    if not isinstance(found, HasStarter):
        raise RecipeError(f"--api {kind}: it brings no starting recipe; write one by `pe explain {kind}`.")
    return found.starter


def _generator(start: Start) -> str:
    prompts = "a photo of a {label}" if start.classes else "a photo"
    known = {"size": start.side, "channels": start.channels, "prompts": json.dumps(prompts)}
    if start.api:
        return f"  kind: {start.api}\n{starter_of(start.api).format(**known)}"
    return _POOL.format(public=_scalar(start.public), by_label=_by_label(start.by_label), **known)


def _declared_units(start: Start) -> str:
    if start.unit == RECORD:
        return ""
    return f"  declared_units: {start.declared_units}\t# public: about how many units there are\n"


def _by_label(by_label: bool | None) -> str:
    if by_label is None:
        return ""
    if by_label:
        return "  by_label: true\t# each class draws from the images of its name; false: from the whole pool\n"
    return "  by_label: false\t# true, once the pool has images of every class's name: each draws from its own\n"


def _embedding(proposed: ProposedEmbedding) -> str:
    offline = "\n  offline: true\t# nothing is fetched" if proposed.offline else ""
    return f"{proposed.kind}\t# {proposed.why}{offline}"


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
