"""Private images in a folder: class subfolders, or a labels.csv."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Literal

from pe.data.images import decode_image
from pe.errors import PrivateDataError
from pe.private.dataset import Outcome, PrivateDataset, outcome_of
from pe.private.fields import SourceFields, source
from pe.private.files import list_files
from pe.private.naming import encode_labels, encode_units

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@source
class ImageFolder(SourceFields):
    """A folder of images, one file per record (the rules: `pe.private.files`).

    Class folders, or a `labels.csv` at the top with the columns `file`, `label` and any others, one of which may be
    the privacy unit (docs/data.md).

    Attributes:
        path: the folder.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["folder"] = "folder"

    def open(self) -> PrivateDataset:
        """The records; images are decoded later, by `check` and `blocks`.

        Raises:
            PrivateDataError: a missing or empty folder, labels off the class list, or whatever else
                `pe.private.files` refuses.
        """
        classes = self.class_names
        files = list_files(self.path, suffixes=_SUFFIXES, classes=classes, privacy_unit=self.privacy_unit)
        names, labels = encode_labels(files.labels, len(files.paths), classes, files.where)
        return PrivateDataset(
            _Files(self, files.paths),
            labels,
            encode_units(files.units, len(files.paths), self.privacy_unit, files.where),
            classes=names,
            image_shape=self.image_shape,
            unit_name=self.privacy_unit,
            declared_size=self.declared_size,
            on_bad_image=self.on_bad_image,
            where=files.where,
        )


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
