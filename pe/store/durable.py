"""Files that are whole or absent: written under a temporary name, synced and renamed.

The folder is synced, too.
"""

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
from typing import BinaryIO, Self

from pe.errors import RunError
from pe.privacy.covered import RELEASES
from pe.privacy.covered import sha256 as sha256
from pe.store.places import CONFIDENTIAL, RECIPE

TEMPORARY = ".part"
Piece = bytes | memoryview


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of a write below `path` into a RunError.

    What was committed stays, so the run can go on.
    """
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror or error}). Check the disk, then go on "
            "with `pe run RUN`."
        ) from error


@contextmanager
def durable_file(path: Path, by_way_of: Path | None = None) -> Iterator[BinaryIO]:
    """Open a file that appears at `path`, whole and durable, when the block ends.

    Until then it is in the folder `by_way_of`, which is on the file system of `path`. The default
    is the folder of `path`.
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
    """Put `data` at `path`, durable when this returns, and return its SHA-256 (hexadecimal).

    See `durable_file`.
    """
    digest = hashlib.sha256()
    with durable_file(path, by_way_of) as file:
        for piece in [data] if isinstance(data, bytes) else data:
            file.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def publish_folder(temporary: Path, final: Path) -> None:
    """Rename the folder `temporary`, whose files are complete, to `final`, durably.

    An older `final` is replaced.
    """
    with writing(final):
        for path in (temporary, *temporary.rglob("*")):
            sync(path)
        if final.exists():
            shutil.rmtree(final)
        temporary.replace(final)
        sync(final.parent)


def remove_unfinished(folder: Path) -> None:
    """Delete, durably, what killed writers left under temporary names anywhere below `folder`."""
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


# Locks, which the operating system releases when their holder dies.

# `pe view` holds the lock for an instant while it looks who does
_ATTEMPTS = 6
_PAUSE = 0.02


class RunLock:
    """The lock of the one process that writes into a run.

    Raises:
        RunError: another process holds it; the message names that process.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                time.sleep(_PAUSE)
                if attempt == _ATTEMPTS:
                    holder = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
                    self.release()
                    raise RunError(
                        f"{path.parent.parent} is being written by process {holder or 'unknown'}. "
                        "Wait for it, or stop it."
                    ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def release(self) -> None:
        """Let go of the lock."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


@contextmanager
def folder_lock(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock `folder` until the block ends.

    If it is locked already, wait. With `wait=False` raise BlockingIOError instead.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Make a folder beside `target`, to be filled and renamed.

    It is deleted in the end if it is still there. Folders that killed processes left there are
    deleted first.
    """
    for leftover in target.parent.glob(f"{escape(target.name)}.{'[0-9a-f]' * 8}{TEMPORARY}"):
        with suppress(BlockingIOError), folder_lock(leftover, wait=False):
            shutil.rmtree(leftover)
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
    temporary.mkdir(parents=True)
    try:
        with folder_lock(temporary):
            yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "ceph", "glusterfs", "lustre", "9p"}
)
_NETWORK_FUSE = (
    "fuse.sshfs",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.davfs",
)


def check_local(folder: Path, mounts: Path = Path("/proc/mounts")) -> None:
    """Raise RunError if a folder is on a network mount, where SQLite's journal is not safe.

    The folder need not exist yet. Nothing is checked where there is no table of mounts (macOS).
    """
    if not mounts.is_file():
        return
    place = folder.resolve()
    kind = ""
    depth = -1
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, system, *_ = line.split(" ")
        mount = Path(point.replace("\\040", " "))
        if place.is_relative_to(mount) and len(mount.parts) >= depth:
            kind = system
            depth = len(mount.parts)
    if kind in _NETWORK or kind.startswith(_NETWORK_FUSE):
        raise RunError(
            f"{folder} lies on a network file system ({kind}), where a run's journal is not safe. "
            "Use a local disk."
        )


# Times of a run's files: none of them tells how long private work took.


def publish(folder: Path) -> None:
    """Replace each file in `releases/` by a fresh copy, and level all shareable times.

    The run must be locked. A release is stored when it is drawn, before its public deadline, and a
    birth time cannot be set. All other shareable files are written once, after a generator's answer
    or at a deadline. See docs/privacy.md.

    Guarantee: birth times of releases follow from the moment of the call and from their names and
    sizes.
    """
    with writing(folder):
        for path in sorted((folder / RELEASES).iterdir()):
            with (
                path.open("rb") as source,
                durable_file(path, by_way_of=folder / CONFIDENTIAL) as copy,
            ):
                shutil.copyfileobj(source, copy)
    level_times(folder)


def level_times(folder: Path) -> None:
    """Set the times of a run's shareable files to the second when the run began.

    This includes the run's directory.
    """
    with writing(folder):
        began = _beginning(folder)
        for top in folder.iterdir():
            if top.name != CONFIDENTIAL:
                inside = top.rglob("*") if top.is_dir() and not top.is_symlink() else ()
                for path in (*inside, top):
                    os.utime(path, (began, began), follow_symlinks=False)
        os.utime(folder, (began, began))
    level_confidential(folder)


def level_confidential(folder: Path) -> None:
    """Set the times of `confidential/` itself to when the run began.

    Anybody who sees the run can read these times. Call this after the last write into the folder:
    closing the journal removes files.
    """
    path = folder / CONFIDENTIAL
    with writing(folder):
        began = _beginning(folder)
        if (
            path.is_dir()
            and path.stat().st_mtime_ns != began * 10**9
            and not os.statvfs(path).f_flag & os.ST_RDONLY
        ):
            os.utime(path, (began, began))


def _beginning(folder: Path) -> int:
    return int((folder / RECIPE).stat().st_mtime)
