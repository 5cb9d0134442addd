"""What every folder of private files has: its place, the files in it, and their records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from pe.data.samples import Array
from pe.errors import BadSample, PrivateDataError
from pe.private.dataset import Outcome, PrivateDataset, outcome_of
from pe.private.files import FileList, list_files
from pe.private.source import PrivateSource, source


@source
class FolderSource(PrivateSource):
    """A folder of files, one per record, by the rules of `pe.private.files`.

    Attributes:
        path: the folder.
    """

    path: Path

    suffixes: ClassVar[frozenset[str]]
    """Lower-case, of the records' files; "" for files without one."""

    @property
    def place(self) -> Path | None:
        """The folder."""
        return self.path

    @abstractmethod
    def read_file(self, path: Path) -> Array:
        """The sample in a file.

        Raises:
            BadSample: there is none.
        """

    def files(self, own_units: frozenset[str] = frozenset()) -> FileList:
        """The records' files; see `list_files`. Confidential."""
        return list_files(
            self.path,
            suffixes=self.suffixes,
            classes=self.class_names,
            privacy_unit=self.privacy_unit,
            own_units=own_units,
        )

    def open(self) -> PrivateDataset:
        """The records; files are read later, by `check` and `blocks`.

        Raises:
            PrivateDataError: a missing or empty folder, labels off the class list, or whatever else
                `pe.private.files` refuses.
        """
        files = self.files()
        records = FolderRecords(self, files.paths)
        return self.bind(records, len(files.paths), files.where, labels=files.labels, units=files.units)


class FolderRecords:
    """The outcome of each file, in order.

    Args:
        source: the folder.
        paths: of the files, below it.
        unreadable: errors that are known by place: these files are not read.
    """

    def __init__(
        self, source: FolderSource, paths: Sequence[str], unreadable: Mapping[int, BadSample] | None = None
    ) -> None:
        self._source, self._paths, self._unreadable = source, paths, unreadable or {}

    def __iter__(self) -> Iterator[Outcome]:
        folder = self._source.path
        if not folder.is_dir():
            raise PrivateDataError(f"The folder {folder} is gone.")
        for index, path in enumerate(self._paths):
            yield self._unreadable.get(index) or outcome_of(partial(self._source.read_file, folder / path))
