"""Private texts in a folder: class subfolders, or a labels.csv."""

from __future__ import annotations

from dataclasses import KW_ONLY
from pathlib import Path
from typing import ClassVar, Literal

from pe.data.samples import Array
from pe.private.folder_source import FolderSource
from pe.private.source import source
from pe.private.text_source import TextSource

SUFFIXES = frozenset({".txt"})


@source
class TextFolder(FolderSource, TextSource):
    """A folder of .txt files, one per record (the rules: `pe.private.files`).

    Class folders, or a `labels.csv` at the top with the columns `file`, `label` and any others, one of which may be
    the privacy unit (docs/text.md).
    """

    _: KW_ONLY
    kind: Literal["text_folder"] = "text_folder"

    suffixes: ClassVar[frozenset[str]] = SUFFIXES

    def read_file(self, path: Path) -> Array:
        """The text in a file.

        Raises:
            BadSample: there is none.
        """
        return self.read(path, str(path))
