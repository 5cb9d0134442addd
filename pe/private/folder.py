"""Private files in a folder: which of them are records, with which labels and units.

The rules:

- A `labels.csv` at the top of the folder lists the records: columns `file` (a path inside the
  folder), `label` unless there are no labels, and any others, such as `patient`. Files that it does
  not list are no records. The records are in the order of its rows.
- Without a `labels.csv`, the top folders are the classes and everything below a class folder, at
  any depth, is of that class; a folder without subfolders holds records without labels. Records are
  in the order of their paths.
- A file's name tells only whether it is a record: hidden files, what a system puts there
  (`is_clutter`) and texts of types that are not the source's (.txt .md .csv .json .jsonl .xml .yaml
  .yml .html) are passed over; any other file that is not of the source's types is an error rather
  than a silent loss.
- Symbolic links below the folder are refused, since a link can leave the folder or make one file
  two records; so is one file under two names. The folder itself may be a link.
- The unit "subfolder" is the folder directly below the class folder; with labels.csv, or without
  classes, the top folder. Folders of equal names are one unit, below different classes too: whoever
  is in both is protected as one.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from pe.data.cells import LONGEST
from pe.data.tables import (
    LABELS_CSV,
    check_column,
    columns_of,
    is_clutter,
    read_rows,
    read_rows_or_faults,
)
from pe.errors import BadSample, PEError, PrivateDataError, nearest_name
from pe.private.dataset import (
    Outcome,
    PrivateDataset,
    Reread,
    Where,
    absence,
    as_private,
    outcome_of,
    refusal,
)
from pe.private.modalities import ImageSource, TextSource
from pe.private.naming import Seen, check_labels, label_names, suggestion, text_of
from pe.private.source import RECORD, SUBFOLDER, PrivateSource, source

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff"}
)
TEXT_SUFFIXES = frozenset({".txt"})
_METADATA = ("metadata.csv", "metadata.jsonl")
_PASSED_OVER = frozenset(
    {".txt", ".md", ".csv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".html"}
)


@dataclass(frozen=True)
class FileList:
    """The records of a folder. Confidential.

    Where bad records are skipped, an error stands in the place of a value.
    """

    paths: Sequence[str | PEError]  # below the folder, POSIX
    labels: Sequence[object] | None  # None: there are none
    units: Sequence[object] | None  # None: each record is its own, or `own_units` tells
    where: Where


@source
class FolderSource(PrivateSource):
    """A folder of files, one per record, by the rules of `pe.private.folder`.

    Attributes:
        path: the folder.
    """

    path: Path

    suffixes: ClassVar[frozenset[str]]
    """Suffixes of records' files, in lower case; "" for files without one. With labels.csv they do
    not matter."""
    own_units: ClassVar[frozenset[str]] = frozenset()
    """Names of units that the source can read from the files, where labels.csv has no such
    column."""

    @classmethod
    def find(cls, root: Path) -> Seen:
        """Propose labels to `pe init`, and privacy units: subfolders and columns of labels.csv.

        Confidential.
        """
        columns = []
        if (root / LABELS_CSV).is_file():
            cells = _read_csv(root)
            check_labels("label", cells, root / LABELS_CSV)
            labels = label_names(cells.pop("label", ()))
            columns = [name for name in cells if name != "file"]
        else:
            folders = _top_folders(root)
            _refuse_metadata(root, folders, None)
            for name in folders:
                if text_of(name) is None:
                    raise PrivateDataError(
                        f"The name {root / name} is not UTF-8, so no recipe can hold it: rename it."
                    )
            labels = label_names(folders)
        return Seen(
            {"kind": cls.kind, "path": root},
            labels,
            (SUBFOLDER, *columns),
            "subfolder, a column of labels.csv",
        )

    def open(self) -> PrivateDataset:
        """List the records. Raise as `PrivateSource.open`.

        Files are read later, by `check` and `blocks`.
        """
        return self._bind(self._files())

    def _bind(self, files: FileList) -> PrivateDataset:
        """Return the data set of listed files."""
        nothing = [None] * len(files.paths)
        labels = files.labels or nothing
        units = files.units or nothing
        keys = (
            (path, None) if isinstance(path, PEError) else (label, unit)
            for path, label, unit in zip(files.paths, labels, units, strict=True)
        )
        return self.bind(
            Reread(self._outcomes, files.paths),
            keys,
            files.where,
            is_labelled=files.labels is not None,
            has_units=files.units is not None,
        )

    def _outcomes(self, paths: Sequence[str | PEError]) -> Iterator[Outcome]:
        """Yield each file's sample or error, in order.

        A file that was refused already is not read.
        """
        if not self.path.is_dir():
            raise PrivateDataError(f"The folder {self.path} is gone.")
        for path in paths:
            if isinstance(path, PEError):
                yield path
            else:
                yield outcome_of(self.read, self.path / path, str(self.path / path))

    def _files(self) -> FileList:
        """List the records' files, by the rules above. Confidential."""
        root = self.path
        if not root.is_dir():
            raise absence(root, "folder")
        try:
            files = self._in_csv() if (root / LABELS_CSV).is_file() else self._in_folders()
        except OSError as error:
            raise PrivateDataError(
                f"The folder {root} cannot be read: {error.strerror}."
            ) from error
        first = _same_files(root, files.paths)
        for index, earlier in enumerate(first):
            if index != earlier and not self.skips:
                raise PrivateDataError(
                    f"{root}/{files.paths[index]} is listed twice, or is the same file as "
                    f"{root}/{files.paths[earlier]}: one file is one record with one label."
                )
        if files.units is None and self.privacy_unit == RECORD and self.skips:
            files = replace(
                files,
                units=first,
            )  # whoever is in a file has one vote, however often it is listed
        return files

    def _or_error(
        self,
        read: Callable[..., str],
        *arguments: object,
    ) -> str | PEError:
        """Return what `read` returns, or its error if bad records are skipped."""
        try:
            return read(*arguments)
        except PrivateDataError as error:
            if not self.skips:
                raise
            return error

    def _in_csv(self) -> FileList:
        root = self.path
        table = self.path / LABELS_CSV
        unit = self.privacy_unit
        columns = _read_csv(root, self.skips)
        if self.class_names != ():
            check_labels("label", columns, table)

        def where(index: int) -> str:
            return f"Record {index + 1} of {table}"

        # A path may lead out of the folder, or to a file that another row names.
        paths = [
            self._or_error(_inside, root, file, where(index))
            for index, file in enumerate(columns["file"])
        ]
        units: Sequence[object] | None = None
        if unit == SUBFOLDER:
            units = [
                path if isinstance(path, PEError) else self._or_error(_folder_at, path, 0, root)
                for path in paths
            ]
        elif unit in columns and unit != RECORD:
            units = columns[unit]
        elif unit != RECORD and unit not in self.own_units:
            choices = [
                RECORD,
                SUBFOLDER,
                *self.own_units,
                *(one for one in columns if one not in ("file", "label")),
            ]
            raise PrivateDataError(
                f"privacy_unit: {table} has no column '{unit}': {nearest_name(unit, choices)}"
            )
        return FileList(paths, columns.get("label"), units, where)

    def _in_folders(self) -> FileList:
        root = self.path
        classes = self.class_names
        unit = self.privacy_unit
        if unit not in (RECORD, SUBFOLDER, *self.own_units):
            raise PrivateDataError(
                f"privacy_unit: '{unit}' would be a column of {root / LABELS_CSV}, which does not "
                f"exist: {nearest_name(unit, [RECORD, SUBFOLDER, *self.own_units])}"
            )
        folders = _top_folders(root)
        if not (classes and self.skips):  # else a folder that no class names would stop the run
            _refuse_metadata(root, folders, classes)
        if folders and classes is None and not self.skips:
            raise PrivateDataError(
                f"The folder {root} has subfolders, but the class list, which is public, is not "
                f"given: confirm it with classes: {suggestion(label_names(folders))}, or set "
                "classes: [] if the subfolders are no classes."
            )
        strangers: dict[str, str] = {}
        paths = list(_walk(root, self.suffixes, strangers))
        if strangers and not self.skips:
            remedy = f"Move {{it}} away, convert {{it}}, or list the records in {LABELS_CSV}."
            raise refusal(
                [strangers[path] for path in sorted(strangers)],
                "files are not read here",
                remedy,
            )
        if classes is None:  # a folder would be a label
            strangers |= {
                path: f"{root / path} lies in a subfolder, and no classes are declared."
                for path in paths
                if "/" in path
            }
        names = sorted({*paths, *strangers})
        # Where bad records are skipped, whether there are folders at all must not decide what a
        # label is. Of a single class, then, are all files that lie in no folder.
        is_labelled = bool(classes) and (bool(folders) or self.skips)
        alone = f"{classes[0]}/" if classes and len(classes) == 1 and self.skips else ""
        placed = [name if "/" in name else f"{alone}{name}" for name in names]
        labels = (
            [self._or_error(_folder_at, name, 0, root) for name in placed] if is_labelled else None
        )
        units = None
        if unit == SUBFOLDER:
            units = [self._or_error(_folder_at, name, int(is_labelled), root) for name in names]
        records = [
            PrivateDataError(strangers[name]) if name in strangers else name for name in names
        ]
        return FileList(records, labels, units, lambda index: f"{root / names[index]}")


@source
class ImageFolder(FolderSource, ImageSource):
    """A folder of images, one file per record.

    Images lie in class folders, or a `labels.csv` lists them (docs/data.md).
    """

    _: KW_ONLY
    kind: Literal["folder"] = "folder"

    suffixes = SUFFIXES


@source
class TextFolder(FolderSource, TextSource):
    """A folder of .txt files, one file per record.

    Texts lie in class folders, or a `labels.csv` lists them (docs/text.md).
    """

    _: KW_ONLY
    kind: Literal["text_folder"] = "text_folder"

    suffixes = TEXT_SUFFIXES


@as_private()
def _read_csv(root: Path, skips: bool = False) -> dict[str, Sequence[Any]]:
    """Return the cells of labels.csv, by column.

    If it `skips` bad records, a row that cannot be read has no cells.
    """
    table = root / LABELS_CSV
    columns = columns_of(table)
    check_column(table, "file", columns)
    read = read_rows_or_faults if skips else read_rows
    none = (None,) * len(columns)
    rows = [none if isinstance(row, BadSample) else row for row in read(table, columns)]
    return dict(zip(columns, zip(*rows, strict=True) if rows else [()] * len(columns), strict=True))


@as_private()
def _refuse_metadata(
    root: Path,
    folders: Sequence[str],
    classes: Sequence[str] | None,
) -> None:
    """Refuse Hugging Face's list of files and labels.

    It is passed over if `classes` is empty, or names all of the folders.
    """
    if classes == () or (folders and {text_of(name) for name in folders} <= set(classes or ())):
        return
    for name in _METADATA:
        table = root / name
        if table.is_file() and "file_name" in columns_of(table):
            raise PrivateDataError(
                f"{table} is not read: write its rows to {LABELS_CSV}, with a column file for "
                "file_name and a column label, or set classes: [] if there are no labels."
            )


def _top_folders(root: Path) -> list[str]:
    folders = (entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    return [name for name in folders if not is_clutter(name)]


def _walk(
    root: Path,
    suffixes: frozenset[str],
    strangers: dict[str, str],
) -> Iterator[str]:
    """Yield the paths of records.

    Links, files of other types and folders that cannot be read go to `strangers`, with the reasons.
    """
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            entries = [*os.scandir(root / below)]
        except OSError as error:
            if not below:
                raise
            strangers[below] = f"{root / below} cannot be read: {error.strerror}."
            continue
        for entry in entries:
            path = f"{below}{entry.name}"
            if is_clutter(entry.name):
                continue
            if entry.is_symlink():
                strangers[path] = (
                    f"{root / path} is a symbolic link: put the files themselves into the folder."
                )
            elif entry.is_dir():
                folders.append(f"{path}/")
            elif _suffix(entry.name) in suffixes and entry.is_file():
                yield path
            elif _suffix(entry.name) not in _PASSED_OVER:
                strangers[path] = f"{root / path} is no file of a type that is read here."


def _suffix(name: str) -> str:
    """Return a name's suffix in lower case.

    The numbers that end the name of a DICOM file (1.2.840.10008) are no suffix.
    """
    suffix = PurePosixPath(name).suffix.lower()
    return "" if suffix[1:].isdecimal() else suffix


def _inside(root: Path, text: Any, where: str) -> str:
    """Return the path below `root` that a cell of labels.csv names.

    Raises:
        PrivateDataError: the cell names none.
    """
    if not text or "\0" in text or len(text) > LONGEST:
        raise PrivateDataError(f"{where} names no file.")
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise PrivateDataError(f"{where} names '{text}', which is not inside the folder {root}.")
    if any(map(is_clutter, path.parts)):
        raise PrivateDataError(
            f"{where} names '{text}', which is hidden or a system's own copy: leave the row out."
        )
    forms = [str(path), *(unicodedata.normalize(form, str(path)) for form in ("NFC", "NFD"))]
    name = next((form for form in forms if os.path.lexists(root / form)), str(path))
    real = os.path.realpath(root)
    if os.path.realpath(root / name) != os.path.normpath(os.path.join(real, name)):  # noqa: PTH118
        raise PrivateDataError(
            f"{root / name} is a symbolic link: put the files themselves into the folder."
        )
    return name


def _folder_at(path: str, depth: int, root: Path) -> str:
    parts = PurePosixPath(path).parts
    if len(parts) < depth + 2:
        raise PrivateDataError(
            f"{root / path} lies in no subfolder of {'its class folder' if depth else root}: put "
            "each unit's files into a folder of its own, or take another privacy_unit (record, or "
            "a column of labels.csv)."
        )
    return parts[depth]


def _same_files(root: Path, paths: Sequence[str | PEError]) -> list[int]:
    """Return for each path the index of the first one of the same file."""
    first: dict[object, int] = {}
    indices = []
    for index, path in enumerate(paths):
        identity: object = path  # a missing file is a bad record, which the pre-flight names
        if not isinstance(path, PEError):
            with suppress(OSError):
                status = (root / path).stat()
                identity = (status.st_dev, status.st_ino)
        indices.append(first.setdefault(identity, index))
    return indices
