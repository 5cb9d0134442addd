"""A commented starting recipe; what it says of the samples is its modality's (`start_images.py`, `start_texts.py`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import yaml

from pe.data.samples import modality
from pe.errors import RecipeError
from pe.plugins.protocols import info_of
from pe.plugins.registry import load
from pe.private.source import RECORD

_COLUMN = 29  # where comments begin; in the template a tab stands before them

_TEMPLATE = """\
# Private Evolution over the {noun} in {path}. Relative paths are taken from this file's folder.
# Everything in this file is public, but where the private {noun} are (a run's shareable recipe withholds that).
# You declare each value below `private`, and no noise protects it: keep only what you would have known without the
# records, also where `pe init` proposed it from looking at them (docs/privacy.md).
name: {noun}\t# public: it goes into the name of the run's folder
seed: 0\t# all randomness but the noise

private:
{source}  classes: {classes}\t# public: the labels, as you declare them; []: none
{shape}  privacy_unit: {unit}\t# who is protected: record, or {units}
  declared_size: {declared}\t# public: about how many records there are
{declared_units}  on_bad_record: fail\t# or skip: an unreadable record casts no vote

# The generator. `pe doctor` lists what is installed; docs/adapters.md shows how to add your own.
api:
{api}
{embedding}
privacy:
  epsilon: 4\t# target of the whole run; or noise_multiplier
  delta: {delta}\t# well below 1 / number of records
  relation: add_remove\t# or replace_one, zero_out

# T, population, degrees, q, threshold and the rest: chosen by `pe plan`'s rule from the public numbers above. Write a
# section with keys of your own to change any of them (pe explain evolution).
evolution: auto
{limits}"""
_LIMITS = """
# A small first run, to which `pe plan` fits its choice. Raise it once `pe probe` has told what a call costs.
limits:
  max_images: 2000\t# samples made over the whole run
  max_cost: 20\t# in the currency of api.price; it counts once that is stated
"""


class Undeclared:
    """Stands in a starting recipe for a value that nobody has declared."""

    def __str__(self) -> str:
        """A blank, which no run takes, and what to do."""
        return "\t# declare this"


UNDECLARED = Undeclared()


_USUAL = (
    "# Without a section `embedding` the one that is usual for the declared size is taken (pe explain embedding).\n"
)


@runtime_checkable
class HasStarter(Protocol):
    """A generator's class that says how a recipe over it may begin.

    Attributes:
        starter: lines of `api` after `kind`, indented by two; before a comment stands a tab. {prompts} becomes a
            prompt; of images {size} and {channels} those of the private ones, of texts {longest} their bytes.
    """

    starter: str


@dataclass(frozen=True)
class Start:
    """What a starting recipe states; all of it public.

    Attributes:
        noun: what people call the samples: `images`.
        source: kind, path (as the recipe names it) and other settings of the private source; None is left out.
        classes: the label names, as the user declared them; empty: no labels.
        unit: the privacy unit.
        units: what else it may be, in words.
        declared_size: the number of records, ≥ 1.
        declared_units: the number of privacy units, ≥ 1; None where a unit is a record.
        shape: lines of `private` on what all samples share.
        api: lines of the section.
        embedding: likewise; empty: what is usual for the size that is to be declared.
    """

    noun: str
    source: Mapping[str, object]
    classes: Sequence[str] | Undeclared
    unit: str
    units: str
    declared_size: int
    declared_units: int | None
    shape: str
    api: str
    embedding: str


def starter_recipe(start: Start) -> str:
    """YAML for `pe run`, with a comment on every choice."""
    text = _TEMPLATE.format(
        noun=start.noun,
        path=start.source["path"],
        source=lines_of(start.source),
        classes=start.classes
        if isinstance(start.classes, Undeclared)
        else json.dumps(list(start.classes), ensure_ascii=False),
        shape=start.shape,
        unit=scalar(start.unit),
        units=start.units,
        declared=start.declared_size,
        declared_units=_declared_units(start),
        api=start.api,
        embedding=f"embedding:\n{start.embedding}" if start.embedding else _USUAL,
        limits=_LIMITS if "price:" in start.api or "base_url:" in start.api else "",
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


def generator_lines(kind: str, noun: str, **values: object) -> str:
    """Lines of `api` over a generator of this kind.

    Args:
        kind: its name.
        noun: what people call the private samples.
        values: what takes the place of names in braces.

    Raises:
        PluginError, RecipeError: see `starter_of`; or it makes other samples.
    """
    starter, made = starter_of(kind), modality(info_of(load("pe.adapters", kind)).modality).noun
    if made != noun:
        raise RecipeError(f"--api {kind}: it makes {made}, and the private records are {noun}: name another one.")
    return f"  kind: {kind}\n{starter.format(**values)}"


def pool_lines(kind: str, settings: Mapping[str, object], by_label: bool | None, noun: str) -> str:
    """Lines of `api` over a generator that draws from a pool.

    Args:
        kind: its name.
        settings: its settings, but for by_label.
        by_label: whether each class draws from the samples of its name; None: there are no classes.
        noun: what people call the samples.
    """
    lines = f"  kind: {kind}\t# draws from a pool of public {noun} and their neighbours\n{lines_of(settings)}"
    if by_label is None:
        return lines
    if by_label:
        return f"{lines}  by_label: true\t# each class draws from the {noun} of its name; false: from the whole pool\n"
    return (
        f"{lines}  by_label: false\t# true, once the pool has {noun} of every class's name: each draws from its own\n"
    )


def lines_of(settings: Mapping[str, object]) -> str:
    """A line for each setting; None is left out."""
    given = {key: value for key, value in settings.items() if value is not None}
    return "".join(f"  {key}: {scalar(v) if isinstance(v, str) else v}\n" for key, v in given.items())


def _declared_units(start: Start) -> str:
    if start.unit == RECORD:
        return ""
    return f"  declared_units: {start.declared_units}\t# public: about how many units there are\n"


def _align(line: str) -> str:
    """A line whose comment, if it has one, stands below the others'."""
    code, tab, comment = line.partition("\t")
    comment = comment.replace("\t#", ":")  # of a blank, and of its key
    return f"{code.rstrip():<{_COLUMN - 2}}  {comment}" if tab else code


def scalar(text: str) -> str:
    """Text as a YAML scalar (JSON strings are YAML); in quotes where YAML would read something else."""
    plain = text.replace("/", "").replace("_", "").replace(".", "").isalnum() and not text[0].isdecimal()
    return text if plain and yaml.safe_load(text) == text else json.dumps(text)


def _power_of_ten_below(value: float) -> str:
    """A tenth of `value` at most, as 1e-k."""
    exponent = 2
    while 10.0**-exponent > value / 10:
        exponent += 1
    return f"1e-{exponent}"
