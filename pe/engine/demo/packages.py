"""Packages of the package index npm: fetched, checked and read; nothing of them is run or unpacked."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pe.errors import MissingDependency, RunError
from pe.store.durable import sha256

MAX_FILE = 2**22
"""Most bytes of one file that is read from a package."""

_MAX_MEMBERS, _MAX_UNPACKED = 50_000, 2**30
_PATIENCE = 900.0  # seconds for one package
_CODE = re.compile(r"^npm (?:error|ERR!) code (\w+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """One version of a package.

    Attributes:
        name: as the index has it.
        version: exact.
        sha256: of its .tgz, hexadecimal.
    """

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def fetch_package(package: Package, folder: Path) -> Path:
    """The package's .tgz in `folder`, fetched by npm from the index that npm is set to.

    Raises:
        MissingDependency: npm is not installed, or cannot get the package.
        RunError: what came is not the file that this version of the toolkit knows.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise MissingDependency(
            f"Fetching {package} needs npm, which is not installed: install Node.js, which brings it."
        )
    options = ["--ignore-scripts", "--loglevel=error", f"--pack-destination={folder}"]
    try:
        done = subprocess.run(  # noqa: S603 - the arguments are constants of this project
            [npm, "pack", str(package), *options], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _out_of_reach(package, f"no answer in {_PATIENCE / 60:.0f} minutes") from error
    archive = folder / f"{package.name}-{package.version}.tgz"
    if done.returncode or not archive.is_file():
        code = _CODE.search(done.stderr)  # npm's own words may hold an address or a token
        raise _out_of_reach(package, code[1] if code else f"exit status {done.returncode}")
    check_archive(package, archive)
    return archive


def check_archive(package: Package, archive: Path) -> None:
    """Check that a file is the package's .tgz.

    Raises:
        RunError: it is another file.
    """
    found = sha256(archive)
    if found != package.sha256:
        raise RunError(
            f"What npm gave as {package} has the SHA-256 {found}, not {package.sha256}: nothing of it was used; see "
            "which index npm is set to."
        )


def read_members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name and content of the regular files of a .tgz that are `wanted` by name; nothing is written.

    Raises:
        RunError: it is no .tgz, it unpacks to more than a gigabyte, or a wanted member is a link, appears twice, or
            is larger than MAX_FILE.
    """
    seen: set[str] = set()
    unpacked = 0
    try:
        with tarfile.open(archive, "r:gz") as members:
            for count, member in enumerate(members, 1):
                unpacked += member.size
                if count > _MAX_MEMBERS or unpacked > _MAX_UNPACKED:
                    raise RunError(f"{archive.name} unpacks to more than a picture set does: fetch it anew.")
                if not wanted(member.name):
                    continue
                file = members.extractfile(member) if member.isreg() and member.size <= MAX_FILE else None
                if file is None or member.name in seen:
                    raise RunError(
                        f"{archive.name}: {member.name!r} is not one plain file of at most {MAX_FILE} bytes."
                    )
                seen.add(member.name)
                yield member.name, file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise RunError(f"{archive.name} is damaged: fetch it anew.") from error


def _out_of_reach(package: Package, reason: str) -> MissingDependency:
    return MissingDependency(
        f"npm cannot get {package} ({reason}): see that `npm pack {package}` works, with a network and npm's own "
        "settings; then run the same command again."
    )
