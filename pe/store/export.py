"""Export the files that a run's certificate covers, and check such an export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pe.data.bounded import read_bytes
from pe.errors import RecipeError, RunError
from pe.privacy.certificate import verify
from pe.privacy.certificate_text import certificate_files
from pe.privacy.covered import coverable, hash_files, sha256
from pe.store.certified import (
    PAGE,
    check_has_samples,
    check_run,
    digests,
    read_certificate,
    read_json,
    write_certificate,
)
from pe.store.durable import folder_beside, publish_folder
from pe.store.formats import Format, convert
from pe.store.places import (
    CERTIFICATE,
    FITTED,
    PURGED,
    RECIPE,
    check_absent,
    without_folders,
    without_paths,
)


def export(folder: Path, to: Path, form: Format = "npz") -> Path:
    """Copy the shareable side of a finished run to the new folder `to`.

    It appears whole or not at all.

    What the run's certificate covers is copied and verified, and nothing else: no stray file, no
    link and no time stamp. In the copy, paths that the recipe names are cut to their last parts.
    The certificate is issued anew for the files of the copy: that is post-processing of the same
    releases.

    Args:
        folder: the folder of a finished run, whose confidential side may have been purged.
        to: a folder that does not exist yet and does not lie inside the run.
        form: `npz` leaves the synthetic data as `synthetic.npz`, and what `pe extend` added as
            `extension-<k>.npz`; any other format writes these samples, in this order, in other
            files (formats.py).

    Raises:
        RunError: `to` exists or cannot be written, the run is not finished or is itself an export
            in another form, or a file of it is not as certified.
        RecipeError: an unknown format, or one that does not hold such samples.
        MissingDependency: Parquet without pyarrow.
    """
    if form not in get_args(Format):
        raise RecipeError(
            f"The format '{form}' is unknown. Choose one of {', '.join(get_args(Format))}."
        )
    certificate = read_certificate(folder)
    target = to.absolute()
    # all refusals come before the first file is copied
    check_has_samples(folder)
    check_absent(to)
    if target.resolve().is_relative_to(folder.resolve()):
        raise RunError(f"{to} lies inside {folder}. Export to another place.")
    try:
        with folder_beside(target) as temporary:
            _copy(folder, temporary, certificate)
            if form != "npz":
                convert(temporary, form, certificate)
                write_certificate(temporary, certificate, hash_files(temporary))
            publish_folder(temporary, target)
    except OSError as error:
        raise RunError(f"{to} cannot be written: {error.strerror or error}.") from error
    return to


def examine(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Check the certificate in a run's or an exported folder, and the folder's files.

    Returns:
        The certificate ({} if it cannot be read), and one sentence for each problem.

    Raises:
        RunError: the folder is no run, or not finished.
    """
    if not (folder / CERTIFICATE).is_file():
        check_run(folder)
        read_certificate(folder)  # raises: it is not finished
    try:
        certificate = read_certificate(folder)
    except RunError as error:
        return {}, [str(error)]
    problems = verify(certificate, folder)
    page = folder / PAGE
    text = read_bytes(page) if page.is_file() else b""
    # the command's former name, on the pages of earlier versions
    text = text.replace(b"`pe privacy`", b"`pe verify`")
    if text != certificate_files(certificate)[PAGE]:
        problems.append(f"'{PAGE}' is missing, or does not say what {CERTIFICATE} says.")
    return certificate, problems


def _copy(folder: Path, target: Path, certificate: Mapping[str, Any]) -> None:
    """Copy all covered files, without their time stamps, and check the copies."""
    files = digests(certificate)
    for name, path in coverable(folder).items():
        if name in files:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)
    # a file that was not found is missing here
    problems = verify(certificate, target)
    if problems:
        raise RunError(
            f"{folder} cannot be exported, because its files no longer match its "
            f"certificate: {problems[0]}"
        )
    for name, shorten in ((RECIPE, without_folders), (FITTED, _without_paths)):
        if name in files:
            path = target / name
            path.write_text(shorten(path.read_text(encoding="utf-8")), encoding="utf-8")
            files[name] = sha256(path)
    # with it, this machine would take whatever comes back for a run of its own
    if files.pop(PURGED, None):
        (target / PURGED).unlink()
    write_certificate(target, certificate, files)


def _without_paths(text: str) -> str:
    record = read_json(text, Path(FITTED))
    record["settings"] = without_paths(record.get("settings"))
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"
