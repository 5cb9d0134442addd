"""Private texts in a folder: class subfolders, or a labels.csv."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Literal

from pe.errors import PrivateDataError
from pe.private.dataset import Outcome, PrivateDataset, outcome_of
from pe.private.files import list_files
from pe.private.source import source
from pe.private.text_source import TextSource

SUFFIXES = frozenset({".txt"})


@source
class TextFolder(TextSource):
    """A folder of .txt files, one per record (the rules: `pe.private.files`).

    Class folders, or a `labels.csv` at the top with the columns `file`, `label` and any others, one of which may be
    the privacy unit (docs/text.md).

    Attributes:
        path: the folder.
    """

    path: Path
    _: KW_ONLY
    kind: Literal["text_folder"] = "text_folder"

    @property
    def place(self) -> Path | None:
        """The folder."""
        return self.path

    def open(self) -> PrivateDataset:
        """The records; texts are decoded later, by `check` and `blocks`.

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
    def __init__(self, source: TextFolder, paths: Sequence[str]) -> None:
        self._source, self._paths = source, paths

    def __iter__(self) -> Iterator[Outcome]:
        folder = self._source.path
        if not folder.is_dir():
            raise PrivateDataError(f"The folder {folder} is gone.")
        for path in self._paths:
            yield outcome_of(partial(self._source.read, folder / path, str(folder / path)))
