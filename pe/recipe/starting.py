"""A commented starting recipe, over images or over texts: what `pe init` writes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from zipfile import BadZipFile

import numpy as np
import yaml

from pe.data.columns import Column
from pe.data.images import Images
from pe.data.rows import Rows
from pe.data.samples import modality
from pe.data.tables import TEXT, TextFiles, files_below, folder_labels, is_clutter, walk
from pe.data.texts import Texts
from pe.errors import RecipeError
from pe.plugins.protocols import class_default, info_of
from pe.plugins.registry import load
from pe.private.folder import SUFFIXES
from pe.private.look import text_kind_at
from pe.private.source import RECORD
from pe.private.tables import TextTable
from pe.recipe.page import page
from pe.recipe.usual_embedding import ProposedEmbedding, propose_embedding, propose_for_texts

_COLUMN = 29  # where comments begin; in starting.yaml.jinja a tab stands before them


class Undeclared:
    """Stands in a starting recipe for a value that nobody has declared."""

    def __str__(self) -> str:
        """A blank value, which no run takes, and a comment that says what to do."""
        return "\t# declare this"


UNDECLARED = Undeclared()


@dataclass(frozen=True)
class Start:
    """The values that a starting recipe states. All of it public."""

    noun: str
    # kind, path (as the recipe names it) and other settings of the private source; a None is left
    # out
    source: Mapping[str, object]
    # the label names, as the user declared them; empty if there are no labels
    classes: Sequence[str] | Undeclared
    unit: str | Undeclared  # the privacy unit; `units`: other possible privacy units, in words
    units: str
    declared_size: int | Undeclared
    declared_units: int | Undeclared  # the number of privacy units, ≥ 1, if these are not records
    # lines of `private` on what all samples share; `api` and `embedding`: the lines of these
    # sections
    shape: str
    api: str
    embedding: str


def starter_recipe(start: Start) -> str:
    """YAML for `pe run`, with a comment on every choice."""
    classes = start.classes
    size = start.declared_size
    # δ is at most 1 / (100 n), and a power of ten: of 2,000 records, 1e-6.
    delta = UNDECLARED if isinstance(size, Undeclared) else f"1e-{len(str(100 * size - 1))}"
    text = page(
        "pe.recipe",
        "starting.yaml.jinja",
        start=start,
        source=_lines(start.source),
        classes=classes
        if isinstance(classes, Undeclared)
        else json.dumps(list(classes), ensure_ascii=False),
        unit=start.unit if isinstance(start.unit, Undeclared) else _scalar(start.unit),
        has_units=start.unit not in (RECORD, UNDECLARED),
        is_billed="price:" in start.api or "base_url:" in start.api,
        delta=delta,
        expected="" if isinstance(size, Undeclared) else f"{size * float(str(delta)):g}",
    )
    return "\n".join(map(_align, text.split("\n")))


def starter_of(kind: str) -> str:
    """Lines of `api` with which a recipe over a generator of this kind may begin.

    Raises:
        RecipeError: it brings none.
    """
    starter: str | None = class_default(load("pe.adapters", kind), "starter")
    if starter is None:
        raise RecipeError(
            f"--api {kind}: it has no starting recipe. Write one with the help of `pe explain "
            f"{kind}`."
        )
    return starter


def path_from(folder: Path, path: Path) -> str:
    """The name of `path` in a recipe in `folder`: relative where it lies near, else in full."""
    relative = Path(os.path.relpath(path, folder))
    near = (
        relative.parts[:3] != ("..", "..", "..") and (folder / relative).resolve() == path.resolve()
    )
    return str(relative if near else path.absolute())


def _lines(settings: Mapping[str, object]) -> str:
    """A line for each setting. A setting that is None is left out."""
    values = {key: value for key, value in settings.items() if value is not None}
    return "".join(
        f"  {key}: {_scalar(v) if isinstance(v, str) else v}\n" for key, v in values.items()
    )


def _scalar(text: str) -> str:
    """Text as a YAML scalar, in quotes where YAML would read something else."""
    plain = (
        text.replace("/", "").replace("_", "").replace(".", "").isalnum()
        and not text[0].isdecimal()
    )
    return text if plain and yaml.safe_load(text) == text else json.dumps(text)


def _align(line: str) -> str:
    """The line, with its comment, if it has one, moved to the column where all comments begin."""
    code, tab, comment = line.partition("\t")
    comment = comment.replace("\t#", ":")  # of a blank, and of its key
    return f"{code.rstrip():<{_COLUMN - 2}}  {comment}" if tab else code


@dataclass(frozen=True)
class Pool:
    """A pool of public samples, a folder or a file."""

    path: Path
    # the labels of its samples; empty if the samples have none, or the pool does not exist
    labels: frozenset[str] = frozenset()
    text_column: str | None = None  # the column of texts, if the pool is a table of texts
    # the column of labels, if the pool is a table of texts that has one
    label_column: str | None = None

    @property
    def exists(self) -> bool:
        """True if the folder or file is there."""
        return self.path.exists()

    def lacks(self, classes: Sequence[str]) -> list[str]:
        """The classes that are no label of the pool."""
        return [name for name in classes if name not in self.labels]


@dataclass(frozen=True)
class ImageStart:
    """The beginning of a recipe over images: `side` pixels high and wide, of 1 or 3 `channels`."""

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
        """The pool of images at `path`. None is decoded."""
        if not path.exists():
            return Pool(path)
        if path.is_dir():
            # A folder without images, such as a cache, is no label.
            folders = (
                entry for entry in path.iterdir() if entry.is_dir() and not is_clutter(entry.name)
            )
            with_images = (
                each
                for each in folders
                if any(file.suffix.lower() in SUFFIXES for file in walk(each))
            )
            return Pool(path, frozenset(folder.name for folder in with_images))
        try:
            with np.load(path, allow_pickle=False) as archive:
                return Pool(
                    path,
                    frozenset(map(str, archive["labels"])) if "labels" in archive else frozenset(),
                )
        except (OSError, ValueError, TypeError, AttributeError, BadZipFile, EOFError) as error:
            raise RecipeError(
                f"The public images {path} are neither a folder nor an .npz file."
            ) from error

    def generator(self, kind: str, classes: Sequence[str]) -> str:
        """Lines of `api` for a generator of this kind.

        Raise RecipeError as `starter_of`, or if it makes no images.
        """
        prompts = json.dumps("a photo of a {label}" if classes else "a photo")
        return _generator(kind, self.noun, size=self.side, channels=self.channels, prompts=prompts)

    def pool_lines(self, folder: Path, pool: Pool, by_label: bool | None) -> str:
        """Lines of `api` that draw from a pool, in a recipe in `folder`.

        `by_label` is None if there are no classes.
        """
        settings = {
            "path": path_from(folder, pool.path),
            "size": self.side,
            "channels": self.channels,
        }
        return _pool("public_images", settings, by_label, self.noun)

    def embedding(self, folder: Path, pool: Pool | None) -> ProposedEmbedding | None:
        """Propose an embedding for images of this size, if it is declared."""
        if isinstance(self.side, Undeclared) or isinstance(self.channels, Undeclared):
            return None
        return propose_embedding((self.side, self.side, self.channels))


@dataclass(frozen=True)
class TextStart:
    """The beginning of a recipe over texts of at most `longest` bytes."""

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
        """The pool of texts at `path`."""
        if not path.exists():
            return Pool(path)
        TextFiles(path).check()
        if path.is_file() and path.suffix.lower() == TEXT:
            return Pool(path)
        if text_kind_at(path) == TextTable.kind:
            seen = TextTable.find(path, None, None)
            settings = seen.settings
            return Pool(
                path,
                frozenset(seen.labels),
                settings["text_column"],
                settings["label_column"],
            )
        return Pool(
            path,
            frozenset(label for label in folder_labels(path, files_below(path, (TEXT,))) if label),
        )

    def generator(self, kind: str, classes: Sequence[str]) -> str:
        """Lines of `api` for a generator of this kind.

        Raise RecipeError as `starter_of`, or if it makes no texts.
        """
        prompts = json.dumps(
            "Write a short text about {label}." if classes else "Write a short text."
        )
        return _generator(kind, self.noun, longest=self.longest, prompts=prompts)

    def pool_lines(self, folder: Path, pool: Pool, by_label: bool | None) -> str:
        """Lines of `api` that draw from a pool, in a recipe in `folder`.

        `by_label` is None if there are no classes.
        """
        settings = {
            "path": path_from(folder, pool.path),
            "text_column": pool.text_column,
            "label_column": pool.label_column if by_label else None,
            "longest": self.longest,
        }
        return _pool("public_texts", settings, by_label, self.noun)

    def embedding(self, folder: Path, pool: Pool | None) -> ProposedEmbedding:
        """Propose the usual embedding of texts, with the pool's words where there is a pool."""
        if pool is None:
            return propose_for_texts(
                "  # public: public.jsonl\t# public texts tell how rare a word is\n"
            )
        settings = {"public": path_from(folder, pool.path), "text_column": pool.text_column}
        return propose_for_texts(_lines(settings))


@dataclass(frozen=True)
class TableStart:
    """The beginning of a recipe over rows, whose columns the file `columns` declares."""

    columns: str

    noun: ClassVar[str] = Rows.noun

    @property
    def shape(self) -> str:
        """Lines of `private` on what all rows share."""
        return f"  columns: !include {_scalar(self.columns)}\t# what a record can hold\n"

    def generator(self, kind: str, classes: Sequence[str]) -> str:
        """Lines of `api` for a generator of this kind.

        Raise RecipeError as `starter_of`, or if it makes no rows.
        """
        return _generator(kind, self.noun)

    def embedding(self, folder: Path, pool: Pool | None) -> ProposedEmbedding:
        """Propose the usual embedding of rows."""
        return ProposedEmbedding(Rows.embedding, "numbers from 0 to 1, categories one-hot")


def columns_file(columns: Mapping[str, Column | None], is_looking: bool) -> str:
    """YAML that declares the columns, one a line, and a blank for one that nobody has declared.

    Proposals stand nowhere: they are of the private records until somebody confirms them.
    """
    text = page(
        "pe.recipe",
        "columns.yaml.jinja",
        columns=columns,
        is_looking=is_looking,
        scalar=_scalar,
        undeclared=UNDECLARED,
    )
    return "\n".join(map(_align, text.split("\n")))


def _generator(kind: str, noun: str, **values: object) -> str:
    """Lines of `api` for a generator of this kind.

    `values` take the place of the names in braces.
    """
    starter = starter_of(kind)
    makes = modality(info_of(load("pe.adapters", kind)).modality).noun
    if makes != noun:
        raise RecipeError(
            f"--api {kind}: it makes {makes}, but the private records are {noun}. Name another one."
        )
    return f"  kind: {kind}\n{starter.format(**values)}"


def _pool(kind: str, settings: Mapping[str, object], by_label: bool | None, noun: str) -> str:
    return page(
        "pe.recipe",
        "pool.yaml.jinja",
        kind=kind,
        settings=_lines(settings).rstrip("\n"),
        by_label=by_label,
        noun=noun,
    )
