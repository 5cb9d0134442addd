"""Private files in a folder: which of them are records, with which labels and units.

The rules:

- A `labels.csv` at the top of the folder lists the records: columns `file` (a path inside the folder),
  `label` unless there are no labels, and any others, such as `patient`. Files that it does not list are
  no records. Order: that of its rows.
- Without one, the top folders are the classes and everything below a class folder, at any depth, is of
  that class; a folder without subfolders holds records without labels. Order: by path.
- A file's name tells only whether it is a record: hidden files, what a system puts there (`is_clutter`) and texts of
  types that are not the source's (.txt .md .csv .json .jsonl .xml .yaml .yml .html) are passed over; any other file
  that is not of the source's types is an error rather than a silent loss.
- Symbolic links below the folder are refused, since a link can leave the folder or make one file two
  records; so is one file under two names. The folder itself may be a link.
- The unit "subfolder" is the folder directly below the class folder; with labels.csv, or without
  classes, the top folder. Folders of equal names are one unit, below different classes too: whoever is
  in both is protected as one.
"""

from __future__ import annotations

import os
import unicodedata
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

from pe.data.samples import Array
from pe.data.tables import LABELS_CSV, check_column, columns_of, is_clutter, read_rows
from pe.errors import BadSample, PrivateDataError, nearest_name
from pe.private.dataset import Outcome, PrivateDataset, Where, as_private, outcome_of, refusal
from pe.private.modalities import ImageSource, TextSource
from pe.private.naming import label_names, like_labels, suggestion, text_of
from pe.private.source import RECORD, SUBFOLDER, PrivateSource, source

_METADATA = ("metadata.csv", "metadata.jsonl")
_PASSED_OVER = frozenset({".txt", ".md", ".csv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".html"})


@dataclass(frozen=True)
class FileList:
    """The records of a folder. All of it is confidential.

    Attributes:
        root: the folder.
        paths: each record's path below the folder, POSIX.
        labels: each record's label; None where there are none.
        units: each record's unit; None where each is its own or the source knows better.
        where: names a record's place in messages.
    """

    root: Path
    paths: Sequence[str]
    labels: Sequence[str | None] | None
    units: Sequence[str | None] | None
    where: Where


def list_files(
    root: Path,
    *,
    suffixes: frozenset[str],
    classes: Sequence[str] | None,
    privacy_unit: str,
    own_units: frozenset[str] = frozenset(),
) -> FileList:
    """The records of the folder `root`, by the rules above. Confidential.

    Args:
        root: the folder.
        suffixes: lower-case suffixes of the records' files; "" for files without one. With labels.csv
            they do not matter.
        classes: the public class list; see `PrivateSource`.
        privacy_unit: "record", "subfolder" or a column.
        own_units: units that the source reads from the files where labels.csv has no such column.

    Raises:
        PrivateDataError: whatever the rules refuse; a missing folder.
    """
    if not root.is_dir():
        raise PrivateDataError(f"{root} is not a folder." if root.exists() else f"The folder {root} does not exist.")
    try:
        if (root / LABELS_CSV).is_file():
            listed = _from_csv(root, classes, privacy_unit, own_units)
        else:
            listed = _from_folders(root, suffixes, classes, privacy_unit, own_units)
    except OSError as error:
        raise PrivateDataError(f"The folder {root} cannot be read: {error.strerror}.") from error
    _refuse_one_file_twice(listed)
    return listed


def find_labels(root: Path) -> tuple[str, ...]:
    """The label names in a folder, for `pe init` to propose: the owner confirms which are public. Confidential.

    Empty where there are no labels.

    Raises:
        PrivateDataError: the folder is missing, labels.csv is malformed, or a class folder's name is not UTF-8.
    """
    if not root.is_dir():
        raise PrivateDataError(f"The folder {root} does not exist.")
    if (root / LABELS_CSV).is_file():
        return label_names(_from_csv(root, None, RECORD, frozenset()).labels or ())
    folders = _top_folders(root)
    _refuse_metadata(root, folders, None)
    for name in folders:
        if text_of(name) is None:
            raise PrivateDataError(f"The name {root / name} is not UTF-8, so no recipe can hold it: rename it.")
    return label_names(folders)


def find_units(root: Path) -> tuple[str, ...]:
    """What may be the privacy unit in a folder, besides `record`: subfolders, and columns of labels.csv. Confidential.

    Raises:
        PrivateDataError: labels.csv is malformed.
    """
    columns = _read_csv(root) if (root / LABELS_CSV).is_file() else {}
    return (SUBFOLDER, *(name for name in columns if name not in ("file", "label")))


def _read_csv(root: Path) -> dict[str, Sequence[Any]]:
    """The cells of labels.csv, by column."""
    table = root / LABELS_CSV
    with as_private():
        columns = columns_of(table)
        check_column(table, "file", columns)
        rows = list(read_rows(table, columns))
    return dict(zip(columns, zip(*rows, strict=True) if rows else [()] * len(columns), strict=True))


def _from_csv(root: Path, classes: Sequence[str] | None, privacy_unit: str, own_units: frozenset[str]) -> FileList:
    table = root / LABELS_CSV
    columns = _read_csv(root)
    if "label" not in columns and (near := like_labels(columns)) and classes != ():
        raise PrivateDataError(
            f"{table} has no column 'label', but '{near}': rename that, or set classes: [] if it holds no labels."
        )

    def where(index: int) -> str:
        return f"Record {index + 1} of {table}"

    paths = [_inside(root, file, where(index)) for index, file in enumerate(columns["file"])]
    units: Sequence[str | None] | None = None
    if privacy_unit == SUBFOLDER:
        units = [_folder_at(path, 0, root) for path in paths]
    elif privacy_unit in columns and privacy_unit != RECORD:
        units = columns[privacy_unit]
    elif privacy_unit != RECORD and privacy_unit not in own_units:
        known = [RECORD, SUBFOLDER, *own_units, *(name for name in columns if name not in ("file", "label"))]
        near = nearest_name(privacy_unit, known)
        raise PrivateDataError(f"privacy_unit: {table} has no column '{privacy_unit}': {near}")
    return FileList(root, paths, columns.get("label"), units, where)


def _from_folders(
    root: Path, suffixes: frozenset[str], classes: Sequence[str] | None, privacy_unit: str, own_units: frozenset[str]
) -> FileList:
    if privacy_unit not in (RECORD, SUBFOLDER, *own_units):
        raise PrivateDataError(
            f"privacy_unit: '{privacy_unit}' would be a column of {root / LABELS_CSV}, which does not exist: "
            f"{nearest_name(privacy_unit, [RECORD, SUBFOLDER, *own_units])}"
        )
    folders = _top_folders(root)
    _refuse_metadata(root, folders, classes)
    if folders and classes is None:
        raise PrivateDataError(
            f"The folder {root} has subfolders, but the class list, which is public, is not given: confirm it with "
            f"classes: {suggestion(label_names(folders))}, or set classes: [] if the subfolders are no classes."
        )
    strangers: list[str] = []
    paths = sorted(_walk(root, "", suffixes, strangers))
    if strangers:
        faults = [f"{root / path} is no file of a type that is read here." for path in sorted(strangers)]
        remedy = f"Move {{it}} away, convert {{it}}, or list the records in {LABELS_CSV}."
        raise refusal(faults, "files are not read here", remedy)
    labelled = bool(folders) and bool(classes)
    labels = [_folder_at(path, 0, root) for path in paths] if labelled else None
    units = [_folder_at(path, int(labelled), root) for path in paths] if privacy_unit == SUBFOLDER else None
    return FileList(root, paths, labels, units, lambda index: f"{root / paths[index]}")


def _refuse_metadata(root: Path, folders: Sequence[str], classes: Sequence[str] | None) -> None:
    """Refuse Hugging Face's list of files and labels, unless the folders are the classes, or there are none."""
    if classes == () or (folders and {text_of(name) for name in folders} <= set(classes or ())):
        return
    with as_private():
        found = [
            root / name for name in _METADATA if (root / name).is_file() and "file_name" in columns_of(root / name)
        ]
    if found:
        raise PrivateDataError(
            f"{found[0]} is not read: write its rows to {LABELS_CSV}, with a column file for file_name and a column "
            "label, or set classes: [] if there are no labels."
        )


def _top_folders(root: Path) -> list[str]:
    return [entry.name for entry in os.scandir(root) if entry.is_dir() and not is_clutter(entry.name)]


def _walk(root: Path, below: str, suffixes: frozenset[str], strangers: list[str]) -> Iterator[str]:
    """The records' paths; those of files of other types are added to `strangers`."""
    with os.scandir(root / below) as entries:
        for entry in entries:
            path = f"{below}{entry.name}"
            if is_clutter(entry.name):
                continue
            if entry.is_symlink():
                raise PrivateDataError(f"{root / path} is a symbolic link: put the files themselves into the folder.")
            if entry.is_dir():
                yield from _walk(root, f"{path}/", suffixes, strangers)
            elif _suffix(entry.name) in suffixes and entry.is_file():
                yield path
            elif _suffix(entry.name) not in _PASSED_OVER:
                strangers.append(path)


def _suffix(name: str) -> str:
    """Lower-case; the numbers that end a DICOM file's name (1.2.840.10008) are no suffix."""
    suffix = PurePosixPath(name).suffix.lower()
    return "" if suffix[1:].isdecimal() else suffix


def _inside(root: Path, text: str | None, where: str) -> str:
    """The path below `root` that a cell names."""
    if not text or "\0" in text:
        raise PrivateDataError(f"{where} names no file.")
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts:
        raise PrivateDataError(f"{where} names '{text}', which is not inside the folder {root}.")
    if any(map(is_clutter, path.parts)):
        raise PrivateDataError(f"{where} names '{text}', which is hidden or a system's own copy: leave the row out.")
    forms = [str(path), *(unicodedata.normalize(form, str(path)) for form in ("NFC", "NFD"))]
    found = next((form for form in forms if os.path.lexists(root / form)), str(path))
    real = os.path.realpath(root)
    if os.path.realpath(root / found) != os.path.normpath(os.path.join(real, found)):  # noqa: PTH118
        raise PrivateDataError(f"{root / found} is a symbolic link: put the files themselves into the folder.")
    return found


def _folder_at(path: str, depth: int, root: Path) -> str:
    parts = PurePosixPath(path).parts
    if len(parts) < depth + 2:
        raise PrivateDataError(
            f"{root / path} lies in no subfolder of {'its class folder' if depth else root}: put each unit's files "
            "into a folder of its own, or take another privacy_unit (record, or a column of labels.csv)."
        )
    return parts[depth]


def _refuse_one_file_twice(listed: FileList) -> None:
    seen: dict[object, int] = {}
    for index, path in enumerate(listed.paths):
        try:
            status = (listed.root / path).stat()
        except OSError:
            identity: object = path  # a missing file is a bad record, which the pre-flight names
        else:
            identity = status.st_dev, status.st_ino
        first = seen.setdefault(identity, index)
        if first != index:
            raise PrivateDataError(
                f"{listed.root / path} is listed twice, or is the same file as {listed.root / listed.paths[first]}: "
                "one file is one record with one label."
            )


# What every folder of private files has: its place, the files in it, and their records.


@source
class FolderSource(PrivateSource):
    """A folder of files, one per record, by the rules of `pe.private.folder`.

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
                `pe.private.folder` refuses.
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


# Private images in a folder: class subfolders, or a labels.csv.


SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@source
class ImageFolder(FolderSource, ImageSource):
    """A folder of images, one file per record (the rules: `pe.private.folder`).

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


# Private texts in a folder: class subfolders, or a labels.csv.


TEXT_SUFFIXES = frozenset({".txt"})


@source
class TextFolder(FolderSource, TextSource):
    """A folder of .txt files, one per record (the rules: `pe.private.folder`).

    Class folders, or a `labels.csv` at the top with the columns `file`, `label` and any others, one of which may be
    the privacy unit (docs/text.md).
    """

    _: KW_ONLY
    kind: Literal["text_folder"] = "text_folder"

    suffixes: ClassVar[frozenset[str]] = TEXT_SUFFIXES

    def read_file(self, path: Path) -> Array:
        """The text in a file.

        Raises:
            BadSample: there is none.
        """
        return self.read(path, str(path))
