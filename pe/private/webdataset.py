"""Private images in WebDataset's form: .tar files, in which members with one key are a sample.

The rules:

- A member's key is its name up to the first dot of the name's last part, its suffix what follows,
  in lower case. Folders, hidden files and what a system puts there (`is_clutter`) are passed over.
  Links, devices and sparse files are refused.
- A key comes once in a .tar file. Several files may have samples of the same key.
- Only the image of each sample is read, and the members that hold its label and its unit. No member
  is ever written to a file, and none is read that is too long: more than 256 MiB for an image, 1
  MiB for another member.
- A damaged header is the fault of its member's sample as long as the name, the type and the length
  can be read. Where they cannot, nobody knows where the next member begins: the file is refused.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pe.data.arrays import UInt8Array
from pe.data.remote import TablePath
from pe.data.tables import is_clutter, table_files
from pe.errors import BadImage, PrivateDataError, nearest_name
from pe.private.dataset import Outcome, PrivateDataset, as_private, outcome_of
from pe.private.folder import SUFFIXES
from pe.private.modalities import ImageSource
from pe.private.naming import Seen, in_quotes, see_columns
from pe.private.source import Text, source
from pe.private.tables import Key, TableSource

TAR = (".tar",)
_IMAGES = frozenset(suffix[1:] for suffix in SUFFIXES)
_JSON = "json"
_CLASS = "cls"
# bytes
_LONGEST_IMAGE = 2**28
_LONGEST_TEXT = 2**20
# of a header: mode and owner, time, names of the owner and the device
_NOT_NEEDED = (slice(100, 124), slice(136, 148), slice(265, 345))
_DIGITS = 20  # of a length
# types of headers whose content tells name, length and more of the member that follows
_EXTENSIONS = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
_LENGTHS = {"size", "GNU.sparse.size", "GNU.sparse.realsize"}


@source
class WebDataset(TableSource, ImageSource):
    """A .tar file, or a folder of them, with one image per sample, as WebDataset has it.

    Files are read in the order of their names. Neighbouring members with one key (`a/0001` of
    `a/0001.png`, `a/0001.cls`, `a/0001.json`) are a sample. Files are streamed: one image is in
    memory at a time, and all keys of a file while it is opened. Compressed files are refused.

    Attributes:
        path: the file, or the folder of files `*.tar`; either may be remote, such as
            s3://bucket/folder (extra `remote`).
        image_column: the suffix of the images, such as `png`; None: each sample has one member with
            an image's suffix.
        label_column: where the label is: the suffix of a member, such as `cls`, or else a key of
            the sample's .json; None: no labels.
    """

    _: KW_ONLY
    kind: Literal["webdataset"] = "webdataset"
    image_column: Text | None = None

    noun = "Sample"
    unit_hint = "samples in {path} have no subfolders: name a member's suffix, or a key of .json"

    @as_private()
    def open(self) -> PrivateDataset:
        """List the records. Raise as `PrivateSource.open`.

        Images are read later, by `check` and `blocks`.
        """
        dataset = super().open()
        if len(dataset) == 1 and not self.skips:
            for sample in (each for path in self._files() for each in _samples(path, (), 0)):
                if "." in sample.image(self.image_column) and len(sample.views()) > 1:
                    raise sample.run_together()
        return dataset

    @classmethod
    def find(cls, path: Path, image_column: str | None, label: str | None) -> Seen:
        """Propose columns to `pe init`, as the first sample has them. See `see_columns`.

        Confidential.
        """
        files = table_files(path, TAR)
        first = next(
            (sample for each in files for sample in _samples(each, {_JSON}, _LONGEST_TEXT)),
            None,
        )
        if first is None:
            raise PrivateDataError(f"{path} holds no samples.")

        def values(column: str) -> Iterator[object]:
            samples = (
                sample
                for each in files
                for sample in _samples(each, {_JSON, column}, _LONGEST_TEXT)
            )
            return (sample.value(column) for sample in samples)

        settings = {"kind": cls.kind, "path": path, "image_column": first.image(image_column)}
        columns = [name for name in first.names() if name != _JSON]
        return see_columns(settings, columns, label, values, {_CLASS} & set(columns))

    def _label_hint(self, file: TablePath) -> str:
        return f"name the suffix of the labels in {self.path}, such as cls, or a key of .json"

    def _files(self) -> Sequence[TablePath]:
        return table_files(self.path, TAR)

    def _keys(self, file: TablePath) -> Iterator[Key]:
        texts = {_JSON, self.label_column or _JSON, self.privacy_unit}
        keys: set[str] = set()
        for sample in _samples(file, texts, _LONGEST_TEXT):
            if sample.key in keys and not self.skips:
                raise PrivateDataError(
                    f"{sample} comes twice, apart: put its members side by side, or rename it."
                )
            must = not (keys or self.skips)  # the first sample shows a name that is misspelt
            keys.add(sample.key)
            try:
                sample.image(self.image_column)
                label = None if self.label_column is None else sample.value(self.label_column, must)
                unit = None if self._unit is None else sample.value(self._unit, must)
            except PrivateDataError:
                if not self.skips:
                    raise
                label = unit = None  # the image's outcome tells why
            yield label, unit

    def _outcomes(self, files: Sequence[TablePath]) -> Iterator[Outcome]:
        suffixes = _IMAGES if self.image_column is None else {self.image_column}
        for path in files:
            for sample in _samples(path, suffixes, _LONGEST_IMAGE):
                yield outcome_of(self.read, sample, f"The image of sample '{sample.key}' of {path}")

    def read(self, value: _Sample, name: str) -> UInt8Array:
        """Return the image of a sample.

        Raises:
            BadImage: there is none.
        """
        data = value.members[value.image(self.image_column)]
        if data is None:
            raise BadImage(
                f"{name} has more than {_LONGEST_IMAGE:,} bytes and was not read: scale it down "
                "first."
            )
        return super().read(data, name)


@dataclass(frozen=True)
class _Sample:
    """A sample: `members` are bytes by suffix. Confidential.

    A member is None if it was not asked for, or is too large.
    """

    path: TablePath
    key: str
    members: dict[str, bytes | None]
    faults: list[str]  # why this is no sample

    def __str__(self) -> str:
        return f"Sample '{self.key}' of {self.path}"

    def image(self, column: str | None) -> str:
        """Return the suffix of the sample's one image.

        Raises:
            PrivateDataError: there are several or none, or the sample has a fault.
        """
        if self.faults:
            raise PrivateDataError(self.faults[0])
        images = [
            name
            for name in self.members
            if (name in _IMAGES if column is None else name == column.lower())
        ]
        is_numbered = any(
            re.fullmatch(r"[\d._-]+", suffix.rpartition(".")[0]) for suffix in self.views()
        )
        if len(images) == 1 and not (is_numbered and "." in images[0] and len(self.views()) > 1):
            return images[0]
        if is_numbered:
            raise self.run_together()
        has = in_quotes(images or self.members)
        remedy = "name the suffix of the images in image_column, or take the sample out"
        raise PrivateDataError(
            f"{self} has {'several images' if images else 'no image'} ({has}): {remedy}."
        )

    def views(self) -> list[str]:
        """Return the images' suffixes that hold a dot.

        They are views of one record, or several records run together.
        """
        return sorted(
            each for each in self.members if "." in each and each.rpartition(".")[2] in _IMAGES
        )

    def run_together(self) -> PrivateDataError:
        """Return the error that says that the sample seems to be several records."""
        return PrivateDataError(
            f"{self} seems to be several records ({in_quotes(self.views()[:3])}), because a key "
            "ends at the first dot of a name: rename the files, with no dot but that before the "
            "suffix."
        )

    def value(self, name: str, must: bool = False) -> object:
        """Return the content of the member `name`, or else of that key of .json, or None.

        With `must`, a name that the sample does not have is an error.
        """
        if name.lower() in self.members:
            return self._text(name.lower()).strip() or None
        if must and name not in self.names():
            raise PrivateDataError(f"{self} has no '{name}': {nearest_name(name, self.names())}")
        return self._json().get(name)

    def names(self) -> list[str]:
        """Return the names that `value` knows."""
        return list(dict.fromkeys([*self.members, *self._json()]))

    def _json(self) -> Mapping[str, object]:
        try:
            content = json.loads(self._text(_JSON)) if _JSON in self.members else {}
        except (ValueError, RecursionError) as error:
            raise PrivateDataError(
                f"{self} has a .json that is not JSON: repair it, or remove the sample."
            ) from error
        return content if isinstance(content, dict) else {}

    def _text(self, suffix: str) -> bytes:
        data = self.members[suffix]
        if data is None:
            raise PrivateDataError(
                f"{self} has a .{suffix} of more than {_LONGEST_TEXT:,} bytes: shorten it."
            )
        return data


class _Header(tarfile.TarInfo):
    """A header whose name, type and length alone must be readable.

    If anything else in it is damaged, reading goes on behind the member that it announces.
    """

    is_damaged = False

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError:
            if buf[257:262] != b"ustar":
                raise
        plain = bytearray(buf)
        for part in _NOT_NEEDED:
            plain[part] = bytes(len(plain[part]))
        plain[148:156] = b" " * 8
        plain[148:156] = b"%07o\0" % sum(plain)
        header = super().frombuf(plain, encoding, errors)
        if header.type in _EXTENSIONS:
            raise tarfile.HeaderError("the content would change the next member")
        header.is_damaged = True
        return header

    def _apply_pax_info(
        self,
        pax_headers: dict[str, str],
        encoding: str,
        errors: str,
    ) -> None:
        # tarfile would take a length that is no number for 0, and look for a header in the content
        for key in _LENGTHS & pax_headers.keys():
            if not pax_headers[key].isdecimal() or len(pax_headers[key]) > _DIGITS:
                del pax_headers[key]
                self.is_damaged = True
        super()._apply_pax_info(pax_headers, encoding, errors)  # type: ignore[misc]


class _Bounded(io.BufferedReader):
    """A file that refuses to read more than the longest image at a time.

    A header may announce any length.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_IMAGE:
            raise tarfile.ReadError("a header announces an impossible length")
        return super().read(size)


def _samples(
    path: TablePath,
    suffixes: Collection[str],
    longest: int,
) -> Iterator[_Sample]:
    """Yield a file's samples in order. Confidential.

    Members of these suffixes are read if they have at most `longest` bytes.
    """
    read = {suffix.lower() for suffix in suffixes}
    sample = None
    for member, file in _members(path):
        folder, slash, last = member.name.rpartition("/")
        stem, _, suffix = last.partition(".")
        if member.isdir() or any(map(is_clutter, PurePosixPath(member.name).parts)):
            continue
        key = folder + slash + stem
        suffix = suffix.lower()
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample
            sample = _Sample(path, key, {}, [])
        if member.is_damaged:
            sample.faults.append(
                f"'{member.name}' in {path} cannot be read as a member of a .tar file, because its "
                "header is damaged: put it in again."
            )
        if not member.isreg() or member.issparse():
            sample.faults.append(
                f"'{member.name}' in {path} is a link, a device or sparse: put in the file itself."
            )
            continue
        if suffix in sample.members:
            sample.faults.append(f"{sample} has two members '{suffix}': keep one of them.")
        sample.members[suffix] = None
        # tarfile would make a reader for each member; its bytes lie in one piece.
        if suffix in read and member.size <= longest:
            file.seek(member.offset_data)
            data = sample.members[suffix] = file.read(member.size)
            if len(data) < member.size:
                raise PrivateDataError(f"{path} is truncated: copy it again.")
    if sample is not None:
        yield sample


def _members(path: TablePath) -> Iterator[tuple[_Header, _Bounded]]:
    """Yield the header of each member, one in memory at a time, together with the open file."""
    try:
        file = _Bounded(path.open("rb").detach(), 2**16)  # type: ignore[union-attr]
        with file, tarfile.open(fileobj=file, mode="r:", tarinfo=_Header) as tar:
            for member in iter(tar.next, None):
                assert isinstance(member, _Header)
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
            f"{path} cannot be read as a .tar file: it is damaged, compressed (unpack it) or of "
            "another format."
        ) from error
