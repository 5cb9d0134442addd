"""The public images that a run's generator reads: none is a private record, and none changes while the run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pe.data.decoding import UInt8Array
from pe.engine.private_side import PrivateSide
from pe.errors import DamagedFile, RecipeError, RunError
from pe.planning.readiness import reader_to_compare
from pe.plugins.protocols import GenerationAPI, ReadsPublicImages
from pe.private.digests import Overlap, find_overlap
from pe.private.image_source import ImageSource
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.places import PUBLIC_IMAGES


@dataclass(frozen=True)
class PublicPool:
    """The public images as a run finds them.

    Attributes:
        reader: reads them.
        compared: whether none of them may be a private record.
        source: of the private records, whose shape they get.
        progress: told that they are read.
    """

    reader: ReadsPublicImages
    compared: bool
    source: ImageSource
    progress: Progress

    @classmethod
    def of(cls, recipe: Recipe, api: GenerationAPI, progress: Progress) -> PublicPool | None:
        """That of a recipe's generator; None where it reads none, or where they are gone.

        They may be gone where a model, which another run fitted with them, reads them no more; that is warned of.
        """
        if not isinstance(api, ReadsPublicImages) or not api.public_paths():
            return None
        for path in api.public_paths():
            if not path.exists():
                progress.warn(f"The public images {path} are not there: they are not compared with the records.")
                return None
        if not isinstance(recipe.private, ImageSource):
            noun = recipe.private.modality.noun
            raise RecipeError(f"{type(api).__name__} reads public images, and the private records are {noun}.")
        return cls(api, reader_to_compare(recipe, api) is not None, recipe.private, progress)

    def pin(self, private: PrivateSide, key: str) -> bytes:
        """What PUBLIC_IMAGES is to hold, after a comparison with the private records, whose pre-flight comes first.

        Args:
            private: whose records they are compared with.
            key: the run's, as its Identity has it.

        Raises:
            RecipeError: some are private records, and `privacy.pool_overlaps` is not `declared`.
            PEError: one cannot be decoded.
        """
        if not self.compared:
            return self._content()
        with self.progress.task("comparing public images with private records", None):
            found = private.overlap(key, self._images(), self.source.shape)
        if found.equal:
            raise RecipeError(
                f"{found.equal:,} of {found.compared:,} public images are private records, pixel by pixel (the first: "
                f"{found.first}): take them out, or, if the records are published, set privacy.pool_overlaps: declared."
            )
        return _dump(found)

    def check_same(self, folder: Path) -> None:
        """Refuse to go on with the run in `folder` if the images are not those that it began with.

        Raises:
            RunError: they are not.
            DamagedFile: the run has lost PUBLIC_IMAGES.
            PEError: one cannot be decoded.
        """
        path = folder / PUBLIC_IMAGES
        if not path.is_file():
            raise DamagedFile(f"{path} is gone: restore it from a copy.")
        if self._content() != path.read_bytes():
            places = ", ".join(map(str, self.reader.public_paths()))
            raise RunError(
                f"The public images {places} are not those that {folder} began with, and were compared with private "
                "records: restore them, or start a new run."
            )

    def _content(self) -> bytes:
        with self.progress.task("reading public images", None):
            return _dump(find_overlap(b"", (), self._images(), self.source.shape))

    def _images(self) -> Iterator[tuple[str, UInt8Array]]:
        return self.reader.public_images(self.source.shape, self.source.resize)


def _dump(found: Overlap) -> bytes:
    return json.dumps({"images": found.compared, "sha256": found.sha256}).encode() + b"\n"
