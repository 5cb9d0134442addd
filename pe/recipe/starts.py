"""What a starting recipe says of images, and of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pe.data.images import Images
from pe.data.texts import Texts
from pe.recipe.pools import Pool, image_pool, path_from, text_pool
from pe.recipe.starter import Undeclared, generator_lines, lines_of, pool_lines
from pe.recipe.usual_embedding import ProposedEmbedding, propose_embedding


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
