"""Private images in a folder: class subfolders, or a labels.csv."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Literal

from pe.data.decoding import decode_image
from pe.errors import PrivateDataError
from pe.private.dataset import Outcome, PrivateDataset, outcome_of
from pe.private.files import list_files
from pe.private.image_source import ImageSource
from pe.private.source import source

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@source
class ImageFolder(ImageSource):
    """A folder of images, one file per record (the rules: `pe.private.files`).

    Class folders, or a `labels.csv` at the top with the columns `file`, `label` and any others, one of which may be
    the privacy unit (docs/data.md).

    Attributes:
        path: the folder.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["folder"] = "folder"

    @property
    def place(self) -> Path | None:
        """The folder."""
        return self.path

    def open(self) -> PrivateDataset:
        """The records; images are decoded later, by `check` and `blocks`.

        Raises:
            PrivateDataError: a missing or empty folder, labels off the class list, or whatever else
                `pe.private.files` refuses.
        """
        files = list_files(
            self.path,
            suffixes=SUFFIXES,
            noun=self.modality.noun,
            classes=self.class_names,
            privacy_unit=self.privacy_unit,
        )
        records = _Files(self, files.paths)
        return self.bind(records, len(files.paths), files.where, labels=files.labels, units=files.units)


class _Files:
    def __init__(self, source: ImageFolder, paths: Sequence[str]) -> None:
        self._source, self._paths = source, paths

    def __iter__(self) -> Iterator[Outcome]:
        source = self._source
        if not source.path.is_dir():
            raise PrivateDataError(f"The folder {source.path} is gone.")
        size = source.height_width if source.resize else None
        for path in self._paths:
            yield outcome_of(
                partial(decode_image, source.path / path, size=size, resize=source.resize, channels=source.channels)
            )
