"""Files that are whole or absent: written to a temporary name, synced, renamed, and the folder synced."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import BinaryIO, NoReturn, Self

from pe.errors import RunError
from pe.store.places import CONFIDENTIAL, RECIPE

TEMPORARY = ".part"
Piece = bytes | memoryview
"""Of a file, one after another."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a disk's refusal into a sentence: what was committed before stands, and the run can go on.

    Raises:
        RunError: the operating system refused a write below `path`.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror or error}): see to the disk, then `pe resume` goes on."
        ) from error


@contextmanager
def durable_file(path: Path, by_way_of: Path | None = None) -> Iterator[BinaryIO]:
    """A file to be written, which appears at `path`, whole and durable, when the block ends.

    Args:
        path: where.
        by_way_of: the folder, on the same file system, in which it lies until then; default: its own.
    """
    temporary = (by_way_of or path.parent) / (path.name + TEMPORARY)
    with writing(path):
        temporary.unlink(missing_ok=True)  # never written through a link that somebody left there
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)


def write_durably(path: Path, data: bytes | list[Piece], by_way_of: Path | None = None) -> str:
    """Put `data` at `path`, durable when this returns; return its SHA-256 (hexadecimal). See `durable_file`."""
    digest = hashlib.sha256()
    with durable_file(path, by_way_of) as file:
        for piece in [data] if isinstance(data, bytes) else data:
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def publish_folder(temporary: Path, final: Path) -> None:
    """Make the folder `temporary`, its files complete, appear durably under the name `final`."""
    with writing(final):
        for path in (temporary, *temporary.rglob("*")):
            sync(path)
        if final.exists():
            shutil.rmtree(final)
        temporary.replace(final)
        sync(final.parent)


def remove_unfinished(folder: Path) -> None:
    """Delete, durably, what a writer that was killed left under temporary names anywhere below `folder`."""
    for path in sorted(folder.rglob(f"*{TEMPORARY}"), reverse=True):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        sync(path.parent)


def sync(path: Path) -> None:
    """Make the names in a folder durable, or the content of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The SHA-256 (hexadecimal) of a file, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# One writer per run: a lock that the operating system releases when its holder dies.


_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre", "9p"})
_NETWORK_FUSE = ("fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.davfs")

_ATTEMPTS, _PAUSE = 6, 0.02  # `pe status` holds the lock for an instant while it looks who does


class RunLock:
    """Held while a process writes into a run.

    The file holds the holder's process id, for the message alone; who holds the lock is the operating
    system's to say, so that of a dead process is free.

    Raises:
        RunError: another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        for attempt in range(_ATTEMPTS):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if attempt == _ATTEMPTS - 1:
                    self._refuse(path, error)
                time.sleep(_PAUSE)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def _refuse(self, path: Path, error: BlockingIOError) -> NoReturn:
        holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(self._descriptor)
        raise RunError(
            f"{path.parent.parent} is being written by process {holder}: wait for it, or stop it."
        ) from error

    def release(self) -> None:
        """Let go of the lock."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """What is done inside no other process does in `folder` at the same time: it waits."""
    with _held(folder, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(folder: Path, how: int) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """A new folder beside `target`, to be filled and renamed; it is deleted in the end if it is still there.

    Those that killed processes left there go first.
    """
    for left in target.parent.glob(f"{escape(target.name)}.{'[0-9a-f]' * 8}{TEMPORARY}"):
        with suppress(BlockingIOError), _held(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
            shutil.rmtree(left)
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
    temporary.mkdir(parents=True)
    try:
        with _held(temporary, fcntl.LOCK_EX):
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_local(folder: Path, mounts: Path = Path("/proc/mounts")) -> None:
    """Refuse a folder on a network mount: SQLite's journal is not safe there.

    Args:
        folder: where a run is to lie; it need not exist.
        mounts: the kernel's table of mounts; where there is none (macOS), nothing is checked.

    Raises:
        RunError: the folder lies on a network file system.
    """
    if not mounts.is_file():
        return
    place = folder.resolve()
    kind, depth = "", -1
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, system, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        if place.is_relative_to(mounted) and len(mounted.parts) >= depth:
            kind, depth = system, len(mounted.parts)
    if kind in _NETWORK or kind.startswith(_NETWORK_FUSE):
        raise RunError(
            f"{folder} lies on a network file system ({kind}), where a run's journal is not safe: use a disk."
        )


# The shareable side of a finished run, published as fresh copies, whose times do not tell how long work took.
#
# A file's birth time cannot be set. Files that were made as the run went on would tell how long the embedding and each
# histogram took, which depends on the private records.


_STAGED = f"{CONFIDENTIAL}/published{TEMPORARY}"
_REPLACED = f"{CONFIDENTIAL}/replaced"


def publish(folder: Path) -> None:
    """Replace every shareable file and folder of a run by a fresh copy, in the order of their names; level all times.

    All copies are made and synced first, so the disk needs room for the shareable side once more. Links stay links.

    Guarantee: birth and change times of the copies follow from the moment of the call and from their names and sizes;
    inode numbers are new. After a crash at any instant, `put_back` makes the run whole.

    Args:
        folder: the run's directory, locked by this process.

    Raises:
        RunError: the operating system refused a write, for lack of room or otherwise. The run can be resumed.
    """
    staged, replaced = folder / _STAGED, folder / _REPLACED
    with writing(folder), folder_lock(folder):  # no report or certificate changes meanwhile
        names = sorted(path.name for path in _shareable(folder) if path.suffix != TEMPORARY)
        try:
            staged.mkdir()
            for name in names:
                _copy(folder / name, staged / name, _began(folder))
            sync(staged)
            replaced.mkdir()
            for name in names:
                _replace(folder / name, staged / name, replaced)
            sync(folder)
            shutil.rmtree(replaced)
        finally:
            shutil.rmtree(staged, ignore_errors=True)  # copies alone lie there
    level_times(folder)


def put_back(folder: Path) -> None:
    """Move the folders that a killed `publish` left without a successor back into the run; delete the others.

    Raises:
        OSError: the operating system refused.
    """
    replaced = folder / _REPLACED
    if not replaced.is_dir():
        return
    for path in sorted(replaced.iterdir()):
        if not (folder / path.name).exists():
            path.replace(folder / path.name)
    sync(folder)
    shutil.rmtree(replaced)
    sync(replaced.parent)


def level_times(folder: Path) -> None:
    """Set the times of a run's directory, and of all in it that may be shared, to when the run began, in whole seconds.

    Raises:
        RunError: the operating system refused.
    """
    with writing(folder):
        began = _began(folder)
        for top in _shareable(folder):
            inside = top.rglob("*") if top.is_dir() and not top.is_symlink() else ()
            for path in (*inside, top):
                os.utime(path, (began, began), follow_symlinks=False)
        os.utime(folder, (began, began))
    level_confidential(folder)


def level_confidential(folder: Path) -> None:
    """Set the times of `confidential/` itself, which anybody who sees the run can read, to when the run began.

    To be called after the last write into it: a journal that is closed removes files.

    Raises:
        RunError: the operating system refused.
    """
    path = folder / CONFIDENTIAL
    with writing(folder):
        began = _began(folder)
        if path.is_dir() and path.stat().st_mtime_ns != began * 10**9 and not os.statvfs(path).f_flag & os.ST_RDONLY:
            os.utime(path, (began, began))


def _began(folder: Path) -> int:
    return int((folder / RECIPE).stat().st_mtime)


def _shareable(folder: Path) -> list[Path]:
    """What lies at the top of a run's directory and may be shared."""
    return [path for path in folder.iterdir() if path.name != CONFIDENTIAL]


def _copy(source: Path, target: Path, began: int) -> None:
    """Copy a file by blocks, a folder with all it holds in the order of names, or a link as a link; durably."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    if source.is_dir():
        target.mkdir()
        for path in sorted(source.iterdir()):
            _copy(path, target / path.name, began)
    else:
        shutil.copyfile(source, target)
    shutil.copymode(source, target)
    os.utime(target, (began, began))
    sync(target)


def _replace(final: Path, copy: Path, replaced: Path) -> None:
    """Put `copy` in the place of `final`: a file at once, a folder after `final` was moved into `replaced`."""
    if final.is_dir() and not final.is_symlink():
        final.replace(replaced / final.name)
        sync(replaced)
    copy.replace(final)
