"""Surfaces: what two runs show to the world, compared byte by byte.

Where the noisy votes of two runs over neighbouring private sets are held equal, everything shareable must be
equal too: whatever differs got there past the noise.
"""

from __future__ import annotations

import json
from pathlib import Path

from pe.privacy.covered import CERTIFICATES, CONFIDENTIAL

_NAMELESS = "·"


def compare_surfaces(first: Path, second: Path) -> list[str]:
    """The names in which the shareable sides of two runs differ, sorted; empty if there is no difference.

    Compared are the names of all files, folders and links, what each is, and its every byte. Left out are
    `confidential/` at the top, and in the certificates the run's own name, where they state it.
    Times of files are not compared: two runs never have the same.

    Args:
        first: a run's folder, under the name that its certificate states.
        second: another's.
    """
    one, other = _entries(first), _entries(second)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _entries(folder: Path) -> dict[str, bytes | str]:
    """Name → content (bytes), or what it is instead of a file (text)."""
    entries: dict[str, bytes | str] = {}
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        if relative.parts[0] != CONFIDENTIAL:
            entries[relative.as_posix()] = _content(path, relative.as_posix(), folder.name)
    return entries


def _content(path: Path, name: str, run: str) -> bytes | str:
    if path.is_symlink():
        return f"a link to {path.readlink()}"
    if path.is_dir():
        return "a folder"
    if not path.is_file():
        return "neither file nor folder"
    return _nameless(path.read_bytes(), run) if name in CERTIFICATES else path.read_bytes()


def _nameless(certificate: bytes, run: str) -> bytes:
    """The certificate without the run's name in the one place where it is stated: a second one would stay."""
    for stated, blank in (
        (f'"run": {json.dumps(run, ensure_ascii=False)}', f'"run": "{_NAMELESS}"'),
        (f"Run `{run}`.", f"Run `{_NAMELESS}`."),
    ):
        certificate = certificate.replace(stated.encode(), blank.encode(), 1)
    return certificate
