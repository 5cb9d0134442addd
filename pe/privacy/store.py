"""Where charges and noisy arrays are kept; the run's journal is one such place, memory another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pe.errors import PrivacyError
from pe.privacy.release import Release

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class StoredRelease:
    """A release that was charged.

    Attributes:
        release: as declared when it was first charged.
        charges: how often it was charged, ≥ 1; more than once after a crash that may have left traces.
        unsafe: whether any of its draws came from unsafe noise.
        array: the noisy array; None while charged only.
    """

    release: Release
    charges: int
    unsafe: bool
    array: Array | None


class ReleaseStore(Protocol):
    """Durable records: when a method returns, what it did survives a crash of the process and the machine."""

    def find(self, name: str) -> StoredRelease | None:
        """What is stored under `name`; None if it was never charged."""
        ...

    def charged(self) -> Sequence[StoredRelease]:
        """Every release ever charged, in the order of the first charge."""
        ...

    def charge(self, release: Release, unsafe: bool) -> None:
        """Record one more charge of `release`, to be drawn from safe or unsafe noise."""
        ...

    def keep(self, name: str, array: Array) -> None:
        """Store the noisy array of a charged release, all of it or nothing."""
        ...

    def traces(self, name: str) -> bool:
        """Whether anything of a draw of `name` that was never kept may still exist anywhere.

        A draw lives in memory until `keep`, so a process that ended leaves none; a partly written file,
        a checkpoint or a swapped page that could survive does. When in doubt, True.
        """
        ...


class MemoryStore:
    """Keeps everything in this process: for tests and for use from Python without a run."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredRelease] = {}

    def find(self, name: str) -> StoredRelease | None:
        """What is stored under `name`."""
        return self._stored.get(name)

    def charged(self) -> Sequence[StoredRelease]:
        """Every release ever charged."""
        return tuple(self._stored.values())

    def charge(self, release: Release, unsafe: bool) -> None:
        """Record one more charge."""
        before = self._stored.get(release.name)
        if before is None:
            self._stored[release.name] = StoredRelease(release, 1, unsafe, None)
        else:
            unsafe = before.unsafe or unsafe
            self._stored[release.name] = replace(before, charges=before.charges + 1, unsafe=unsafe)

    def keep(self, name: str, array: Array) -> None:
        """Store a read-only copy."""
        before = self._stored.get(name)
        if before is None or before.array is not None:
            raise PrivacyError(f"Release '{name}' cannot be kept: it was not charged, or is kept already.")
        array = np.array(array)
        array.setflags(write=False)
        self._stored[name] = replace(before, array=array)

    def traces(self, name: str) -> bool:
        """The memory in which a failed draw lived is this process's own and may be alive still."""
        return True
