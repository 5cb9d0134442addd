"""Private images in WebDataset's form: .tar files, in which neighbouring members of one key are a sample.

The rules:

- A member's key is its name up to the first dot of the name's last part, its suffix what follows, in lower case.
  Folders, hidden files and what a system puts there (`is_clutter`) are passed over. Links, devices and sparse files are
  refused.
- A key comes once in a .tar file. Several files may have samples of the same key.
- Of each sample the image is read, and what holds its label and its unit; no other member. No member is ever written to
  a file, and none is read whose length is beyond what such a member may have.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from pe.data.decoding import UInt8Array
from pe.data.remote import Place, RemotePath, TablePath
from pe.data.tables import is_clutter, table_files
from pe.errors import BadImage, PrivateDataError, nearest_name
from pe.private.dataset import Outcome, PrivateDataset, as_private, outcome_of, place_in
from pe.private.folder import SUFFIXES
from pe.private.modalities import ImageSource
from pe.private.naming import FoundColumns, LabelNumbers, UnitNumbers, check_columns, label_column, label_names
from pe.private.source import RECORD, SUBFOLDER, Text, source

TAR = (".tar",)
_IMAGES = frozenset(suffix[1:] for suffix in SUFFIXES)
_JSON, _CLASS = "json", "cls"
_LONGEST_IMAGE, _LONGEST_TEXT = 2**28, 2**20  # bytes


@source
class WebDataset(ImageSource):
    """A .tar file, or a folder of them (read in the order of their names): one image per sample, as WebDataset has it.

    Neighbouring members of one key (`a/0001` of `a/0001.png`, `a/0001.cls`, `a/0001.json`) are a sample. The files are
    streamed: one image is in memory, and while a file is opened its keys. Compressed .tar files are refused.

    Attributes:
        path: the file, or the folder of files `*.tar`; or an address of theirs, such as s3://bucket/folder (extra
            `remote`).
        image_column: the suffix of the images, such as `png`; None: each sample has one member with an image's suffix.
        label_column: where the label is: the suffix of a member, such as `cls`, or else a key of the sample's .json;
            None: no labels.
    """

    path: Place
    _: KW_ONLY
    kind: Literal["webdataset"] = "webdataset"
    image_column: Text | None = None
    label_column: Text | None = None

    @property
    def place(self) -> TablePath | None:
        """The file or folder."""
        return self.path

    def open(self) -> PrivateDataset:
        """The records; images are read later, by `check` and `blocks`.

        Raises:
            PrivateDataError: no such file, one that is damaged, a sample without an image, label or unit, a key that
                comes twice in a file, no samples, labels off the class list.
        """
        self._check_names()
        paths, count = _paths(self.path), 0
        ends: list[int] = []  # of the files that were read
        where = place_in(paths, ends, "Sample")
        labels = None if self.label_column is None else LabelNumbers(self.class_names, where)
        units = None if self.privacy_unit == RECORD else UnitNumbers(self.privacy_unit, where)
        texts = {_JSON, self.label_column or _JSON, self.privacy_unit}
        for path in paths:
            keys: set[str] = set()
            for sample in _samples(path, texts, _LONGEST_TEXT):
                if sample.key in keys:
                    raise PrivateDataError(f"{sample} comes twice, apart: put its members side by side, or rename it.")
                keys.add(sample.key)
                is_view = "." in sample.image(self.image_column)
                if labels is not None and self.label_column is not None:
                    labels.take([sample.value(self.label_column, known=count > 0)])
                if units is not None:
                    units.take([sample.value(self.privacy_unit, known=count > 0)])
                count += 1
            ends.append(count)
        if count == 1 and is_view and len(sample.views()) > 1:
            raise sample.run_together()
        return self.bind(_Images(self, paths), count, where, labels=labels, units=units)

    @classmethod
    def find(cls, path: Path, image_column: str | None, label: str | None) -> FoundColumns:
        """What `pe init` proposes, as the first sample has it, and the names of labels. Confidential.

        Args:
            path: the file or folder.
            image_column: the images' suffix as the owner names it; None: there is one image in a sample.
            label: where the label is, as the owner names it; empty: nowhere; None: a usual name, or `cls`.

        Raises:
            PrivateDataError: no such file, no samples, or a name that the first sample lacks.
        """
        paths = _paths(path)
        first = next((sample for each in paths for sample in _samples(each, {_JSON}, _LONGEST_TEXT)), None)
        if first is None:
            raise PrivateDataError(f"{path} holds no samples.")
        image, names = first.image(image_column), first.names()
        if label is None:
            label = label_column(names, image, [name for name in names if name == _CLASS])
        check_columns(path, (label,), names)
        others = tuple(name for name in names if name not in (image, label, _JSON))
        if not label:
            return FoundColumns(image, None, (), others)
        samples = (sample for each in paths for sample in _samples(each, {_JSON, label}, _LONGEST_TEXT))
        return FoundColumns(image, label, label_names(sample.value(label) for sample in samples), others)

    def _check_names(self) -> None:
        if self.privacy_unit == SUBFOLDER:
            raise PrivateDataError(
                f"privacy_unit: samples in {self.path} have no subfolders: name a member's suffix, or a key of .json."
            )
        if self.label_column is None and len(self.class_names or ()) > 1:
            raise PrivateDataError(
                f"label_column is not set, and classes lists {len(self.class_names or ())} classes: name the suffix of "
                f"the labels in {self.path}, such as cls, or a key of .json."
            )


@dataclass(frozen=True)
class _Sample:
    """The members of one key, by suffix: their bytes; None for what was not asked for, or is too long. Confidential."""

    path: TablePath
    key: str
    members: dict[str, bytes | None]

    def __str__(self) -> str:
        return f"Sample '{self.key}' of {self.path}"

    def image(self, named: str | None) -> str:
        """The suffix of its image."""
        found = [suffix for suffix in self.members if (suffix in _IMAGES if named is None else suffix == named.lower())]
        numbered = any(re.fullmatch(r"[\d._-]+", suffix.rpartition(".")[0]) for suffix in self.views())
        if len(found) == 1 and not (numbered and "." in found[0] and len(self.views()) > 1):
            return found[0]
        has = ", ".join(f"'{suffix}'" for suffix in (found or self.members))
        remedy = "name the suffix of the images in image_column, or take the sample out"
        if numbered:
            raise self.run_together()
        raise PrivateDataError(f"{self} has {'several images' if found else 'no image'} ({has}): {remedy}.")

    def views(self) -> list[str]:
        """The suffixes of images with a dot in them: several views of a record, or several records run together."""
        return sorted(each for each in self.members if "." in each and each.rpartition(".")[2] in _IMAGES)

    def run_together(self) -> PrivateDataError:
        """Return the error: several records in one sample."""
        views = ", ".join(f"'{suffix}'" for suffix in self.views()[:3])
        return PrivateDataError(
            f"{self} seems to be several records ({views}), because a key ends at the first dot of a name: rename the "
            "files, with no dot but that before the suffix."
        )

    def value(self, name: str, known: bool = True) -> object:
        """What a member holds, or a key of .json; None where there is neither, an error if it is not `known` to be."""
        if name.lower() in self.members:
            return self._text(name.lower()).strip() or None
        if not known and name not in self.names():
            raise PrivateDataError(f"{self} has no '{name}': {nearest_name(name, self.names())}")
        return self._json().get(name)

    def names(self) -> list[str]:
        """What `value` may be asked for."""
        return list(dict.fromkeys([*self.members, *self._json()]))

    def _json(self) -> Mapping[str, object]:
        try:
            found = json.loads(self._text(_JSON)) if _JSON in self.members else {}
        except (ValueError, RecursionError) as error:
            raise PrivateDataError(f"{self} has a .json that is none: mend it, or take the sample out.") from error
        return found if isinstance(found, dict) else {}

    def _text(self, suffix: str) -> bytes:
        data = self.members[suffix]
        if data is None:
            raise PrivateDataError(f"{self} has a .{suffix} of more than {_LONGEST_TEXT:,} bytes: shorten it.")
        return data


class _Images:
    def __init__(self, source: WebDataset, paths: Sequence[TablePath]) -> None:
        self._source, self._paths = source, paths

    def __iter__(self) -> Iterator[Outcome]:
        named = self._source.image_column
        wanted = _IMAGES if named is None else {named}
        for path in self._paths:
            for sample in _samples(path, wanted, _LONGEST_IMAGE):
                data = sample.members[sample.image(named)]
                yield outcome_of(partial(self._decode, data, f"The image of sample '{sample.key}' of {path}"))

    def _decode(self, data: bytes | None, name: str) -> UInt8Array:
        if data is None:
            raise BadImage(f"{name} has more than {_LONGEST_IMAGE:,} bytes and was not read: scale it down first.")
        return self._source.decode(data, name)


class _Bounded(io.BufferedReader):
    """A file of which no read is longer than the longest image, whatever length a header announces."""

    def read(self, size: int | None = -1) -> bytes:
        """As of any file; raises tarfile.ReadError."""
        if size is None or not 0 <= size <= _LONGEST_IMAGE:
            raise tarfile.ReadError("a header announces an impossible length")
        return super().read(size)


def _paths(path: TablePath) -> Sequence[TablePath]:
    with as_private():
        return table_files(path, TAR)


def _samples(path: TablePath, wanted: Collection[str], longest: int) -> Iterator[_Sample]:
    """The samples of a file in order, with their members of `wanted` suffixes up to a length. Confidential."""
    suffixes, sample = {suffix.lower() for suffix in wanted}, None
    for member, file in _members(path):
        folder, slash, last = member.name.rpartition("/")
        stem, _, suffix = last.partition(".")
        if member.isdir() or any(map(is_clutter, PurePosixPath(member.name).parts)):
            continue
        key, suffix = folder + slash + stem, suffix.lower()
        if not member.isreg() or member.issparse():
            raise PrivateDataError(f"'{member.name}' in {path} is a link, a device or sparse: put in the file itself.")
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = _Sample(path, key, {})
        if suffix in sample.members:
            raise PrivateDataError(f"{sample} has two members '{suffix}': keep one of them.")
        sample.members[suffix] = None
        if suffix in suffixes and member.size <= longest:
            file.seek(member.offset_data)
            data = sample.members[suffix] = file.read(member.size)
            if len(data) < member.size:
                raise PrivateDataError(f"{path} is truncated: copy it again.")
    if sample is not None:
        yield sample


def _members(path: TablePath) -> Iterator[tuple[tarfile.TarInfo, _Bounded]]:
    """The headers of a file's members, one in memory, and the file."""
    try:
        with as_private():
            opened = path.open_bytes() if isinstance(path, RemotePath) else path.open("rb")
            with _Bounded(opened.detach(), 2**16) as file, tarfile.open(fileobj=file, mode="r:") as tar:  # type: ignore[attr-defined]
                while (member := tar.next()) is not None:
                    if member.size < 0:
                        raise tarfile.ReadError("a negative length")
                    tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps them all
                    yield member, file
                file.seek(tar.offset)  # tarfile takes a damaged header, or none, for the end
                end = file.read(2**16)
                if len(end) < tarfile.BLOCKSIZE or end.strip(b"\0"):
                    raise tarfile.ReadError("no end")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise PrivateDataError(
            f"{path} cannot be read as a .tar file: it is damaged, compressed (unpack it) or of another format."
        ) from error
