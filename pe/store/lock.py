"""One writer per run: a lock that the operating system releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import NoReturn, Self

from pe.errors import RunError
from pe.store.durable import TEMPORARY

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
