"""Bind runs to this machine, to tell them from folders that somebody else made.

The state directory holds a random secret that no run contains. A run that begins notes a keyed hash
of its two recipes in `confidential/`. The hash covers content and not the place, so the run may be
moved or copied on this machine.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from pe.data.bounded import read_bytes
from pe.errors import PEError, RunError
from pe.store.places import BINDING, FULL_RECIPE, PURGED, RECIPE

ELSEWHERE = (
    "was made on another machine or by an earlier version, or has another recipe than it began with"
)
"""Continues a sentence on a run that `is_own` does not know."""

NO_STATE = (
    "The run is not bound to this machine, because no secret can be kept in the state directory: "
    "`pe run RUN` and `pe extend` will want its addresses and keys named again. Set XDG_STATE_HOME "
    "to a folder that can be written."
)

_BYTES = 32


def bind(*recipes: bytes) -> bytes:
    """Return a line for each recipe, by which this machine knows it as its own.

    The result is empty if no secret can be kept.
    """
    with suppress(OSError, RuntimeError):
        path = _secret_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, buffering=0) as file:  # mode 0600
            file.write(secrets.token_bytes(_BYTES))
            os.fsync(file)
            os.link(file.name, path)  # fails where there is a secret already, which counts
    return b"".join(map(_line, recipes))


def is_own(folder: Path, name: str = RECIPE) -> bool:
    """Return True if this user's machine wrote the recipe `name` in `folder` as it is."""
    notes = [folder / place for place in (BINDING, PURGED) if (folder / place).is_file()]
    with suppress(OSError, PEError):
        line = _line(read_bytes(folder / name))
        return bool(line) and any(line in read_bytes(note) for note in notes)
    return False


def is_ours(folder: Path) -> bool:
    """Return True if `is_own` knows a run's whole recipe, or after a purge its shareable one."""
    return is_own(folder, FULL_RECIPE if (folder / FULL_RECIPE).exists() else RECIPE)


def check_no_links(folder: Path) -> None:
    """Raise RunError if a run made elsewhere holds a link or a pipe.

    A link may lead out of the run, and a pipe never ends.
    """
    for path in () if is_ours(folder) else folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise RunError(
                f"{path} is a link or a pipe, and the run {ELSEWHERE}. Put the file itself in its "
                "place."
            )


def _secret_file() -> Path:
    """Return the file of the secret in the user's state directory.

    Raises:
        RuntimeError: the user has no home.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    place = given if given.is_absolute() else Path("~/.local/state").expanduser()
    return place / "private-evolution-toolkit" / "machine-secret"


def _line(recipe: bytes) -> bytes:
    """Return the hash of a recipe, keyed by the secret, or b"" without a whole secret."""
    secret = b""
    with suppress(OSError, RuntimeError):
        secret = _secret_file().read_bytes()
    if len(secret) != _BYTES:
        return b""
    return hmac.digest(secret, recipe, "sha256").hex().encode() + b"\n"
