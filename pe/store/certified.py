"""A run's certificate and the files that it covers: read, written, and issued anew."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pe.data.bounded import read_bytes
from pe.data.population import Population
from pe.data.strict_json import json_object
from pe.errors import RunError, quoted
from pe.privacy.certificate_text import certificate_files
from pe.privacy.covered import SIGNED, sha256
from pe.store.durable import folder_lock, level_times, write_durably
from pe.store.places import CERTIFICATE, CONFIDENTIAL, PURGED, RECIPE, SYNTHETIC, extension_place

PAGE = CERTIFICATE.with_suffix(".md").name


def check_run(folder: Path) -> None:
    """Raise RunError if a folder holds no run."""
    if not (folder / RECIPE).is_file():
        lacks = f"it has no {RECIPE}" if folder.exists() else "there is nothing of that name"
        raise RunError(f"{folder} is not a run: {lacks}.")


def is_export(folder: Path) -> bool:
    """Return True if a finished run's folder is an export in which nobody has worked yet.

    A copy of an export counts too.
    """
    return (folder / CERTIFICATE).is_file() and not any(
        (folder / name).exists() for name in (CONFIDENTIAL, PURGED)
    )


def check_has_samples(folder: Path) -> None:
    """Raise RunError if a folder has no `synthetic.npz`.

    Such a folder is an unfinished run, or an export in another form.
    """
    if (folder / SYNTHETIC).is_file():
        return
    if (folder / CERTIFICATE).is_file():
        raise RunError(
            f"{folder} has no {SYNTHETIC}: it is an export in another form, or has lost the file "
            f"(`pe verify {quoted(folder)}` tells). Name the run that it was made from, or an "
            "export with `--format npz`."
        )
    raise RunError(f"{folder} is not finished: it has no {SYNTHETIC}.")


def read_certificate(folder: Path) -> dict[str, Any]:
    """Return the certificate in a run's folder, not verified.

    Raises:
        RunError: the run is not finished, or its certificate lists no files or makes no page.
    """
    certificate = read_json(read_finished(folder, CERTIFICATE.name), folder / CERTIFICATE)
    try:
        digests(certificate)
        certificate_files(certificate)
        if certificate["epsilon"] is not None:
            float(certificate["delta"])
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / CERTIFICATE} is damaged: restore it from a copy.") from error
    return certificate


def read_finished(folder: Path, name: str) -> str:
    """Return the text of a file of a finished run.

    Raises:
        RunError: the run is unfinished, or the file is not text.
    """
    if not (folder / name).is_file():
        raise RunError(f"{folder} is not finished: it has no {name}.")
    try:
        return read_bytes(folder / name).decode()
    except UnicodeDecodeError as error:
        raise RunError(f"{folder / name} is damaged: restore it from a copy.") from error


def write_certificate(
    folder: Path, certificate: Mapping[str, Any], files: Mapping[str, str]
) -> None:
    """Put a certificate for `files` (name → SHA-256) into `folder`, as JSON and as Markdown.

    A signature of the previous certificate is deleted.
    """
    (folder / SIGNED).unlink(missing_ok=True)
    entries = [{"file": name, "sha256": digest} for name, digest in sorted(files.items())]
    for name, content in certificate_files({**certificate, "covered": entries}).items():
        write_durably(folder / name, content)


def reissue(folder: Path, names: Collection[str]) -> None:
    """Issue a finished run's certificate anew for the files `names` that were added to it.

    Works in one process at a time. The files are post-processing of the releases. Any other covered
    file keeps its hash, so that a change to it is noticed.
    """
    with folder_lock(folder):
        certificate = read_certificate(folder)
        files = digests(certificate) | {name: sha256(folder / name) for name in names}
        write_certificate(folder, certificate, files)
        level_times(folder)


def digests(certificate: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each file that a certificate covers, by its name."""
    return {str(one["file"]): str(one["sha256"]) for one in certificate["covered"]}


def extensions(folder: Path) -> dict[str, Population]:
    """Load the extensions that a run's certificate covers, by place, in order, memory-mapped."""
    if not (folder / CERTIFICATE).is_file():
        return {}
    names = (name for name in digests(read_certificate(folder)) if name.startswith("extensions/"))
    return {
        place: Population.load(folder / place)
        for place in map(extension_place, extension_numbers(names))
    }


def extension_numbers(names: Iterable[str]) -> list[int]:
    """Return, ascending, the numbers of the extensions to which files or phases belong."""
    matches = (re.match(r"extensions?[-/](\d+)", name) for name in names)
    return sorted({int(one[1]) for one in matches if one})


def read_json_file(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run. Raises as `read_json` does."""
    return read_json(read_bytes(path).decode(errors="surrogateescape"), path)


def read_json(text: str, path: Path) -> dict[str, Any]:
    """Return the JSON object in `text`, read from `path`.

    Raises:
        RunError: there is no object, or it has a key twice or NaN.
    """
    try:
        return json_object(text)
    except ValueError as error:
        raise RunError(f"{path} is damaged: restore it from a copy.") from error
