"""A commented starting recipe; what it says of the samples is its modality's (`start_images.py`, `start_texts.py`)."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable
from zipfile import BadZipFile

import numpy as np
import yaml

from pe.data.images import Images
from pe.data.samples import modality
from pe.data.tables import TEXT, PublicTexts, files_below, folder_labels, is_clutter, walk
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.plugins.protocols import info_of
from pe.plugins.registry import load
from pe.private.folder import SUFFIXES
from pe.private.look import text_kind_at
from pe.private.source import RECORD
from pe.private.tables import TextTable
from pe.recipe.usual_embedding import ProposedEmbedding, propose_embedding

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

# The generator. `pe doctor` lists what is installed; docs/write-your-own.md shows how to add your own.
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


# How the public pool of a starting recipe is drawn from.


@dataclass(frozen=True)
class Pool:
    """A pool of public samples.

    Attributes:
        path: a folder or a file.
        labels: of its samples; none where they have none, or where it does not exist.
        text_column: of a table of texts.
        label_column: of a table of texts; None: it has none.
    """

    path: Path
    labels: frozenset[str] = frozenset()
    text_column: str | None = None
    label_column: str | None = None

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return self.path.exists()

    def lacks(self, classes: Sequence[str]) -> list[str]:
        """The classes that are no label of the pool."""
        return [name for name in classes if name not in self.labels]


def image_pool(path: Path) -> Pool:
    """The pool of images at `path`; none is decoded.

    Raises:
        RecipeError: something else is there.
    """
    if not path.exists():
        return Pool(path)
    if path.is_dir():
        return Pool(path, _folders_with(path, SUFFIXES))
    try:
        with np.load(path, allow_pickle=False) as archive:
            return Pool(path, frozenset(map(str, archive["labels"])) if "labels" in archive else frozenset())
    except (OSError, ValueError, TypeError, AttributeError, BadZipFile, EOFError) as error:
        raise RecipeError(f"The public images {path} are neither a folder nor an .npz file.") from error


def text_pool(path: Path) -> Pool:
    """The pool of texts at `path`.

    Raises:
        RecipeError: something else is there.
        PrivateDataError: a table cannot be read, or has no column of texts.
        MissingDependency: pyarrow is not installed, which reads Parquet and Arrow.
    """
    if not path.exists():
        return Pool(path)
    PublicTexts(path).check()
    if path.is_file() and path.suffix.lower() == TEXT:
        return Pool(path)
    if text_kind_at(path) == TextTable.kind:
        found = TextTable.find(path, None, None)
        return Pool(path, frozenset(found.labels), found.sample, found.label)
    return Pool(path, frozenset(label for label in folder_labels(path, files_below(path, (TEXT,))) if label))


def path_from(folder: Path, path: Path) -> str:
    """How a recipe in `folder` names `path`: relative to the folder where it lies near, else in full."""
    relative = Path(os.path.relpath(path, folder))
    near = relative.parts[:3] != ("..", "..", "..") and (folder / relative).resolve() == path.resolve()
    return str(relative if near else path.absolute())


def _folders_with(folder: Path, suffixes: Collection[str]) -> frozenset[str]:
    """The names of the subfolders that hold such a file."""
    inner = (entry for entry in folder.iterdir() if entry.is_dir() and not is_clutter(entry.name))
    return frozenset(each.name for each in inner if any(file.suffix.lower() in suffixes for file in walk(each)))


# What a starting recipe says of images, and of texts.


@dataclass(frozen=True)
class ImageStart:
    """How a recipe over images begins.

    Attributes:
        side: height and width, in pixels.
        channels: 1 or 3.
    """

    side: int | Undeclared
    channels: int | Undeclared

    noun: ClassVar[str] = Images.noun
    pools: ClassVar[str] = "a folder or an .npz file"

    @property
    def shape(self) -> str:
        """Lines of `private` on what all images share."""
        return (
            f"  size: {self.side}\t# height and width in pixels\n"
            "  resize: crop\t# or fit, stretch\n"
            f"  channels: {self.channels}\t# 3 = colour, 1 = grey\n"
        )

    @staticmethod
    def pool(path: Path) -> Pool:
        """See `image_pool`."""
        return image_pool(path)

    def generator(self, kind: str, classes: Sequence[str]) -> str:
        """Lines of `api` over a generator of this kind; see `generator_lines`."""
        prompts = "a photo of a {label}" if classes else "a photo"
        return generator_lines(kind, self.noun, size=self.side, channels=self.channels, prompts=json.dumps(prompts))

    def drawn(self, folder: Path, pool: Pool, by_label: bool | None) -> str:
        """Lines of `api` over a pool, in a recipe in `folder`."""
        settings = {"path": path_from(folder, pool.path), "size": self.side, "channels": self.channels}
        return pool_lines("public_images", settings, by_label, self.noun)

    def embedding(self, folder: Path, pool: Pool | None) -> ProposedEmbedding | None:
        """Propose an embedding for images of this size; None for a size that is not declared."""
        if isinstance(self.side, Undeclared) or isinstance(self.channels, Undeclared):
            return None
        return propose_embedding((self.side, self.side, self.channels))


@dataclass(frozen=True)
class TextStart:
    """How a recipe over texts begins.

    Attributes:
        longest: bytes of a text.
    """

    longest: int | Undeclared

    noun: ClassVar[str] = Texts.noun
    pools: ClassVar[str] = "a folder of .txt files, a .txt file (a text a line) or a table"

    @property
    def shape(self) -> str:
        """Lines of `private` on what all texts share."""
        return (
            f"  longest: {self.longest}\t# bytes of a text, in UTF-8\n"
            "  cut: true\t# of a longer one its beginning counts; false: it is a bad record\n"
        )

    @staticmethod
    def pool(path: Path) -> Pool:
        """See `text_pool`."""
        return text_pool(path)

    def generator(self, kind: str, classes: Sequence[str]) -> str:
        """Lines of `api` over a generator of this kind; see `generator_lines`."""
        prompts = "Write a short text about {label}." if classes else "Write a short text."
        return generator_lines(kind, self.noun, longest=self.longest, prompts=json.dumps(prompts))

    def drawn(self, folder: Path, pool: Pool, by_label: bool | None) -> str:
        """Lines of `api` over a pool, in a recipe in `folder`."""
        settings = {
            "path": path_from(folder, pool.path),
            "text_column": pool.text_column,
            "label_column": pool.label_column if by_label else None,
            "longest": self.longest,
        }
        return pool_lines("public_texts", settings, by_label, self.noun)

    def embedding(self, folder: Path, pool: Pool | None) -> ProposedEmbedding:
        """TF-IDF, which needs no model, with the pool's words where there is a pool."""
        why = "words and runs of characters; no network, no weights"
        if pool is None:
            return ProposedEmbedding(
                Texts.embedding, why, "  # public: public.jsonl\t# public texts tell how rare a word is\n"
            )
        settings = {"public": path_from(folder, pool.path), "text_column": pool.text_column}
        return ProposedEmbedding(Texts.embedding, why, lines_of(settings))
