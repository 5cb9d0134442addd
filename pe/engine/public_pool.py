"""The public samples that a run's plug-ins read: none is a private record, and none changes while the run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pe.data.samples import Array
from pe.engine.private_side import PrivateSide
from pe.errors import DamagedFile, RecipeError, RunError
from pe.planning.readiness import reads_public
from pe.plugins.protocols import ReadsPublicSamples
from pe.private.digests import DIGEST_BYTES, Overlap, find_overlap
from pe.private.source import PrivateSource
from pe.progress import Progress
from pe.recipe.schema import Recipe
from pe.store.certified import read_json_file
from pe.store.places import PUBLIC_SAMPLES


@dataclass(frozen=True)
class PublicPool:
    """The public samples as a run finds them.

    Attributes:
        readers: section of the recipe → the plug-in that reads them.
        compared: whether none of them may be a private record.
        source: of the private records, whose shape they get.
        progress: told that they are read.
    """

    readers: Mapping[str, ReadsPublicSamples]
    compared: bool
    source: PrivateSource
    progress: Progress

    @classmethod
    def of(cls, recipe: Recipe, plugins: Mapping[str, object], progress: Progress) -> PublicPool | None:
        """That of a recipe's plug-ins, by their sections; None where none of them reads any, or where they are gone.

        They may be gone where a model, which another run fitted with them, reads them no more; that is warned of.
        """
        readers: dict[str, ReadsPublicSamples] = {}
        for section, plugin in plugins.items():
            if not reads_public(plugin):
                continue
            gone = [path for path in plugin.public_paths() if not path.exists()]
            if gone:
                noun = recipe.private.modality.noun
                progress.warn(f"The public {noun} {gone[0]} are not there: they are not compared with the records.")
            else:
                readers[section] = plugin
        compared = recipe.privacy.pool_overlaps == "refused"
        return cls(readers, compared, recipe.private, progress) if readers else None

    def pin(self, private: PrivateSide) -> bytes:
        """What PUBLIC_SAMPLES is to hold, after a comparison with the private records, whose pre-flight comes first.

        Args:
            private: whose records they are compared with.

        Raises:
            RecipeError: some are private records, and `privacy.pool_overlaps` is not `declared`.
            PEError: one cannot be decoded.
        """
        if not self.compared:
            return _dump(self._content())
        with self.progress.task(f"comparing public {self._noun} with private records", None):
            found = {section: private.overlap(self._samples(section)) for section in self.readers}
        for one in found.values():
            if one.equal:
                raise RecipeError(
                    f"{one.equal:,} of {one.compared:,} public {self._noun} are private records, to the last bit (the "
                    f"first: {one.first}): take them out, or, if the records are published, set "
                    "privacy.pool_overlaps: declared."
                )
        return _dump({section: _told(one) for section, one in found.items()})

    def check_same(self, folder: Path) -> None:
        """Refuse to go on with the run in `folder` if the samples are not those that it began with.

        Raises:
            RunError: they are not.
            DamagedFile: the run has lost PUBLIC_SAMPLES.
            PEError: one cannot be decoded.
        """
        path = folder / PUBLIC_SAMPLES
        if not path.is_file():
            raise DamagedFile(f"{path} is gone: restore it from a copy.")
        first = read_json_file(path)
        for section, told in self._content().items():
            if first.get(section) != told:
                places = ", ".join(map(str, self.readers[section].public_paths()))
                raise RunError(
                    f"The public {self._noun} {places} are not those that {folder} began with, and were compared with "
                    "private records: restore them, or start a new run."
                )

    def _content(self) -> dict[str, dict[str, object]]:
        modality, shape = self.source.modality, self.source.shape
        nothing = np.empty((0, DIGEST_BYTES), np.uint8)
        with self.progress.task(f"reading public {self._noun}", None):
            return {
                section: _told(find_overlap(nothing, self._samples(section), modality, shape))
                for section in self.readers
            }

    def _samples(self, section: str) -> Iterator[tuple[str, Array]]:
        return self.readers[section].public_samples(self.source.shape, self.source.rule)

    @property
    def _noun(self) -> str:
        return self.source.modality.noun


def _told(found: Overlap) -> dict[str, object]:
    return {"samples": found.compared, "sha256": found.sha256}


def _dump(content: Mapping[str, object]) -> bytes:
    return json.dumps(content).encode() + b"\n"
