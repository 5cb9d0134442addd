"""Which files a certificate covers: each by name and SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath

CONFIDENTIAL = "confidential"
RELEASES = "releases"
BANNER = "NO-GUARANTEE.txt"
"""Of a run without noise: that nothing is promised, for whoever sees the folder and opens no certificate."""
CERTIFICATES = frozenset({"certificate.json", "certificate.md"})
SIGNED = "certificate.dsse.json"
"""The owner's signature under the certificate, if there is one."""
_NOT_COVERED = CERTIFICATES | {SIGNED}


def release_file(name: str) -> str:
    """Place of the noisy array of the release `name` in a run."""
    return f"{RELEASES}/{name.replace('/', '-')}.npy"


def hash_files(folder: Path) -> dict[str, str]:
    """Name → SHA-256 of every file below `folder`, but confidential/, the certificate itself and its signature.

    Names are relative, with `/`, sorted. A symbolic link is not followed and not listed.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or name in _NOT_COVERED or _confidential(name):
            continue
        found[name] = sha256(path)
    return found


def compare_files(folder: Path, covered: Mapping[str, str]) -> list[str]:
    """One sentence for each file that is missing, changed, or not covered though it is there."""
    problems = []
    for name, digest in sorted(covered.items()):
        try:
            if not _inside(name):
                problems.append(f"'{name}' is not the name of a file inside the folder.")
            elif (folder / name).is_symlink() or not (folder / name).is_file():
                problems.append(f"'{name}' is covered but missing.")
            elif sha256(folder / name) != digest:
                problems.append(f"'{name}' was changed: its SHA-256 is not the certificate's.")
        except (OSError, ValueError):  # no name of a file on this system, or not to be read
            problems.append(f"'{name}' is covered but cannot be read.")
    return problems + [f"'{name}' is there but not covered." for name in _extra(folder, covered)]


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extra(folder: Path, covered: Collection[str]) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(folder).as_posix() for path in paths)
    return sorted(
        name for name in names if name not in covered and name not in _NOT_COVERED and not _confidential(name)
    )


def _confidential(name: str) -> bool:
    return PurePosixPath(name).parts[0] == CONFIDENTIAL


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)
