"""Private images in a folder: class subfolders, or a labels.csv."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import ClassVar, Literal

from pe.data.samples import Array
from pe.private.folder_source import FolderSource
from pe.private.image_source import ImageSource
from pe.private.source import source

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@source
class ImageFolder(FolderSource, ImageSource):
    """A folder of images, one file per record (the rules: `pe.private.files`).

    Class folders, or a `labels.csv` at the top with the columns `file`, `label` and any others, one of which may be
    the privacy unit (docs/data.md).
    """

    _: KW_ONLY
    kind: Literal["folder"] = "folder"

    suffixes: ClassVar[frozenset[str]] = SUFFIXES

    def read_file(self, path: Path) -> Array:
        """The image in a file.

        Raises:
            BadImage: there is none.
        """
        return self.decode(path)
