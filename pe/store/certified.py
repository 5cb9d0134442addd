"""What a run's certificate covers: read, written, and issued anew for what was added."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pe.data.population import Population
from pe.data.strict_json import json_object
from pe.errors import RunError
from pe.privacy.covered import SIGNED, hash_files, sha256
from pe.privacy.words import certificate_files
from pe.store.durable import folder_lock, level_times, write_durably
from pe.store.places import CERTIFICATE, CONFIDENTIAL, PURGED, RECIPE, SYNTHETIC, extension_place

PAGE = CERTIFICATE.with_suffix(".md").name


def check_run(folder: Path) -> None:
    """Refuse a folder that holds no run.

    Raises:
        RunError: it holds none.
    """
    if not (folder / RECIPE).is_file():
        lacks = f"it has no {RECIPE}" if folder.exists() else "there is nothing of that name"
        raise RunError(f"{folder} is not a run: {lacks}.")


def is_export(folder: Path) -> bool:
    """Whether a finished run's folder is what `pe export` wrote, or a copy like it, and nobody has worked in it yet."""
    return (folder / CERTIFICATE).is_file() and not any((folder / name).exists() for name in (CONFIDENTIAL, PURGED))


def check_no_export(folder: Path, what: str) -> None:
    """Refuse an export: it is to be handed over as it is.

    Raises:
        RunError: `folder` is one, into which `what`, a command, would write.
    """
    if is_export(folder):
        raise RunError(
            f"{folder} is an export (it has no {CONFIDENTIAL}/), and `{what}` would write into it: name the run that "
            f"it was made from, or, if you received it, `mkdir -m 700 {folder / CONFIDENTIAL}` before you go on; "
            f"`pe privacy {folder}` checks an export."
        )


def check_has_samples(folder: Path) -> None:
    """Refuse a folder without `synthetic.npz`.

    Raises:
        RunError: the run is not finished, or `folder` is an export in another form.
    """
    if (folder / SYNTHETIC).is_file():
        return
    if (folder / CERTIFICATE).is_file():
        raise RunError(
            f"{folder} is an export in another form than npz, or has lost {SYNTHETIC}: name the run that it was made "
            f"from, or an export with `--format npz`; `pe privacy {folder}` checks it."
        )
    raise RunError(f"{folder} is not finished: it has no {SYNTHETIC}.")


def read_certificate(folder: Path) -> dict[str, Any]:
    """The certificate in a run's folder, of which it is only known that it lists files and can be shown as a page.

    Raises:
        RunError: the run is not finished, or its certificate is damaged.
    """
    certificate = read_json(read_finished(folder, CERTIFICATE.name), folder / CERTIFICATE)
    try:
        digests(certificate)
        certificate_files(certificate)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{folder / CERTIFICATE} is damaged: restore it from a copy.") from error
    return certificate


def read_finished(folder: Path, name: str) -> str:
    """The text of a file that a run has once it is finished.

    Raises:
        RunError: it has none, or one that is no text.
    """
    if not (folder / name).is_file():
        raise RunError(f"{folder} is not finished: it has no {name}.")
    try:
        return (folder / name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{folder / name} is damaged: restore it from a copy.") from error


def write_certificate(folder: Path, certificate: Mapping[str, Any], covered: Mapping[str, str]) -> None:
    """Put a certificate into `folder`, as JSON and as Markdown; it covers the files `covered`, name → SHA-256.

    A signature under the one before goes: it would be of another certificate.
    """
    (folder / SIGNED).unlink(missing_ok=True)
    files = [{"file": name, "sha256": digest} for name, digest in sorted(covered.items())]
    for name, content in certificate_files({**certificate, "covered": files}).items():
        write_durably(folder / name, content)


def reissue(folder: Path, added: Collection[str] | None = None) -> None:
    """Issue a run's certificate anew for files that were added to it; one process at a time, so that none is lost.

    A file that is covered already keeps its hash, so that one which was changed is still found out; unless it is
    named in `added`, because it was written anew.

    Args:
        folder: a finished run's.
        added: names of files that are post-processing of its releases; None: every file that is not covered yet.
    """
    with folder_lock(folder):
        certificate = read_certificate(folder)
        covered = digests(certificate)
        if added is None:
            covered = hash_files(folder) | covered
        else:
            covered |= {name: sha256(folder / name) for name in added}
        write_certificate(folder, certificate, covered)
        level_times(folder)


def digests(certificate: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of each file that a certificate covers, by its name."""
    return {str(one["file"]): str(one["sha256"]) for one in certificate["covered"]}


def extensions(folder: Path) -> dict[str, Population]:
    """Extensions of a run, by place, in order, memory-mapped; as far as the certificate covers them."""
    if not (folder / CERTIFICATE).is_file():
        return {}
    covered = digests(read_certificate(folder))
    places = map(extension_place, extension_numbers(name for name in covered if name.startswith("extensions/")))
    return {place: Population.load(folder / place) for place in places}


def extension_numbers(names: Iterable[str]) -> list[int]:
    """The numbers of the extensions that names of files or phases are of, ascending."""
    matches = (re.match(r"extensions?[-/](\d+)", name) for name in names)
    return sorted({int(one[1]) for one in matches if one})


def read_json_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run; see `read_json`.

    Raises:
        RunError: it holds none.
    """
    return read_json(path.read_text(encoding="utf-8", errors="surrogateescape"), path)


def read_json(text: str, path: Path) -> dict[str, Any]:
    """The JSON object that the file `path` holds, all of whose numbers are finite and whose keys differ.

    Raises:
        RunError: it holds none: whoever wrote it, its reader neither crashes nor computes with infinity.
    """
    try:
        return json_object(text)
    except ValueError as error:
        raise RunError(f"{path} is damaged: restore it from a copy.") from error
