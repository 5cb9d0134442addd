"""Files on object stores and web servers, read in pieces through fsspec and never written."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, WithJsonSchema

from pe.errors import BadTable, MissingDependency, printable

PROTOCOLS = ("s3", "gs", "abfs", "az", "http", "https", "memory")
_BLOCK = 2**22  # bytes that are asked for together


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or a folder on an object store, with the methods of `Path` that reading tables needs.

    All methods raise BadTable without credentials or a connection, and MissingDependency if no
    library is installed that speaks the protocol.

    Attributes:
        url: such as s3://bucket/folder/file.parquet; without credentials.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the path."""
        return PurePosixPath(urlsplit(self.url).path).name

    @property
    def suffix(self) -> str:
        """The name's ending, as `Path` has it: `.parquet`."""
        return PurePosixPath(self.name).suffix

    def is_file(self) -> bool:
        """Return True if a file is there."""
        with self._system() as (system, path):
            return bool(system.isfile(path))

    def is_dir(self) -> bool:
        """Return True if a folder is there."""
        with self._system() as (system, path):
            return bool(system.isdir(path))

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the entries of the folder."""
        with self._system() as (system, path):
            for name in system.ls(path, detail=False):
                yield RemotePath(str(system.unstrip_protocol(str(name))))

    def open(
        self,
        mode: str = "r",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Open the file for reading, as bytes where the mode is "rb"."""
        with self._system() as (system, path):
            file = system.open(path, "rb", block_size=_BLOCK)
        content = io.BufferedReader(_Reader(self, file), 2**16)
        return content if mode == "rb" else io.TextIOWrapper(content, encoding, errors, newline)

    @contextmanager
    def _system(self) -> Iterator[tuple[Any, str]]:
        """Yield fsspec's file system and the path in it.

        Whatever is raised inside becomes BadTable.
        """
        try:
            import fsspec
        except ImportError as error:
            raise MissingDependency.of("fsspec", "remote", f"Reading {self.url}") from error
        try:
            system, path = fsspec.core.url_to_fs(self.url)
        except ImportError as error:  # which tells what to install
            raise MissingDependency(
                f"Reading {self.url} needs another library: {error}."
            ) from error
        with self.errors():
            yield system, path

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn whatever a library of object stores raises inside into a BadTable."""
        try:
            yield
        except Exception as error:  # each store's library has exceptions of its own
            why = printable(f"{type(error).__name__}: {error}").rstrip(".")
            raise BadTable(
                f"{self.url} cannot be read ({why}): check the address, the credentials and the "
                "connection."
            ) from error


TablePath = Path | RemotePath


class _Reader(io.RawIOBase):
    """A remote file. What goes wrong in reading it is a BadTable that names it."""

    def __init__(self, path: RemotePath, file: IO[bytes]) -> None:
        self._path = path
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._path.errors():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        with self._path.errors():
            return self._file.seek(offset, whence)

    def close(self) -> None:
        self._file.close()
        super().close()


def is_remote(value: object) -> bool:
    """Return True if `value` is an address (`file://…` too), rather than a path on this machine."""
    return isinstance(value, str) and "://" in value


def _parse(value: Any) -> Any:
    """Return an address as a RemotePath, or as a Path for `file://…`.

    Any other value is returned as it is.
    """
    if not is_remote(value):
        return value
    address = urlsplit(value)
    if address.scheme == "file":
        return Path(address.path)
    if address.scheme not in PROTOCOLS:
        raise ValueError(
            f"'{address.scheme}://' is not read here: take one of {', '.join(PROTOCOLS)}, or a "
            "local path"
        )
    if "@" in address.netloc and address.scheme not in ("abfs", "az"):
        raise ValueError(
            "an address holds no credentials here: give them as the store's library reads them"
        )
    if "::" in value:
        raise ValueError("addresses are not chained here")
    return RemotePath(value)


_Remote = Annotated[
    InstanceOf[RemotePath],
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "format": "uri"}),
]
Place = Annotated[Path | _Remote, BeforeValidator(_parse)]
"""A path on this machine, or an address such as s3://bucket/folder."""
