"""How the public pool of a starting recipe is drawn from."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from pe.data.public_folders import files_below, folder_labels, is_clutter, walk
from pe.data.public_texts import TEXT, PublicTexts
from pe.errors import RecipeError
from pe.private.folder import SUFFIXES
from pe.private.look import text_kind_at
from pe.private.text_table import TextTable


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
