"""The files that a certificate covers: each by name and SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

CONFIDENTIAL = "confidential"
RELEASES = "releases"
BANNER = "NO-GUARANTEE.txt"
"""The file of a run without noise that says, to those who see the folder alone, that nothing is
promised."""
CERTIFICATES = frozenset({"certificate.json", "certificate.md"})
SIGNED = "certificate.dsse.json"
"""The owner's signature under the certificate, if there is one."""


def release_file(name: str) -> str:
    """Path, within a run, of the file with the noisy array of the release `name`."""
    return f"{RELEASES}/{name.replace('/', '-')}.npy"


def hash_files(folder: Path) -> dict[str, str]:
    """Return name → SHA-256 of every file below `folder` that a certificate can cover.

    Confidential files, the certificate and its signature are left out. Names are relative, with
    `/`, sorted.
    """
    return {name: sha256(path) for name, path in coverable(folder).items()}


def coverable(folder: Path) -> dict[str, Path]:
    """Return name → path of every file below `folder` that a certificate can cover.

    Files are found by walking, never opened by a name: a certificate may name any file of this
    machine. Symbolic links are not followed.
    """
    return {
        name: path
        for name, path in _entries(folder).items()
        if path.is_file() and not path.is_symlink()
    }


def compare_files(folder: Path, digests: Mapping[str, str]) -> list[str]:
    """Return one sentence for each file that is missing, changed or not covered.

    Args:
        folder: the folder that holds the files.
        digests: name → SHA-256 of every covered file.
    """
    problems = []
    files = coverable(folder)
    for name, digest in sorted(digests.items()):
        try:
            if name not in files:
                problems.append(f"'{name}' is covered but missing.")
            elif sha256(files[name]) != digest:
                problems.append(f"'{name}' was changed: its SHA-256 is not the certificate's.")
        except OSError:
            problems.append(f"'{name}' is covered but cannot be read.")
    # links and pipes, too
    extra = sorted(_entries(folder).keys() - digests.keys())
    return problems + [f"'{name}' is there but not covered." for name in extra]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entries(folder: Path) -> dict[str, Path]:
    """Return name → path of all files, links and pipes but confidential ones and certificates."""
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
    return {
        name: path
        for name, path in paths.items()
        if (path.is_symlink() or not path.is_dir())
        and name not in CERTIFICATES | {SIGNED}
        and PurePosixPath(name).parts[0] != CONFIDENTIAL
    }
