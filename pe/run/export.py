"""Handing a run over: what its certificate covers, in a folder of its own; and checking such a folder."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from pe.errors import RecipeError, RunError
from pe.privacy.covered import hash_files, sha256
from pe.privacy.markdown import certificate_files
from pe.privacy.verify import verify
from pe.run.directory import CERTIFICATE, CONFIDENTIAL, Run, check_absent
from pe.run.durable import TEMPORARY, publish_folder, write_durably
from pe.run.formats import Format, convert
from pe.run.lock import folder_lock
from pe.run.publish import level_times

_PAGE = CERTIFICATE.with_suffix(".md").name


def export(run: Run, to: Path, form: Format = "npz") -> Path:
    """Copy the shareable side of a finished run to the new folder `to`; it appears whole or not at all.

    What the run's certificate covers is copied and verified, and nothing else: no stray file, no link and no
    time stamp. The certificate is issued anew where the form changes: that is post-processing of the same releases.

    Args:
        run: a finished run; its confidential side may have been purged.
        to: must not exist, nor lie inside the run.
        form: `npz` leaves the synthetic data as `synthetic.npz`, and what `pe extend` added as
            `extension-<k>.npz`; `folder` writes all of them, in this order, as `synthetic/<label>/<index>.png` and
            `synthetic/labels.csv` instead; `parquet` as `synthetic.parquet`, with the columns image (bytes, path)
            and label, instead. Soft labels, where there are some, are further columns: `p(<label>)`, or `soft_label`.

    Raises:
        RunError: `to` exists or cannot be written, the run is not finished, or a file of it is not as certified.
        RecipeError: an unknown format.
        MissingDependency: Parquet without pyarrow.
    """
    if form not in get_args(Format):
        raise RecipeError(f"format: '{form}' is unknown; known are {', '.join(get_args(Format))}.")
    certificate, target = read_certificate(run), to.absolute()
    check_absent(to)
    if target.resolve().is_relative_to(run.folder.resolve()):
        raise RunError(f"{to} lies inside {run.folder}: export to another place.")
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        _copy(run.folder, temporary, certificate)
        if form != "npz":
            convert(temporary, form)
            write_certificate(temporary, certificate | {"covered": _covered(hash_files(temporary))})
        publish_folder(temporary, target)
    except OSError as error:
        raise RunError(f"{to} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return to


def examine(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The certificate in a run's or an exported folder, and what is wrong with it and its files.

    Returns:
        The certificate ({} if it cannot be read), and one sentence for each problem.

    Raises:
        RunError: the folder is no run, or not finished.
    """
    if not (folder / CERTIFICATE).is_file():
        return Run.open(folder).guarantee, []  # raises: nothing is certified
    try:
        certificate = read_certificate(Run(folder))
    except RunError as error:
        return {}, [str(error)]
    problems = verify(certificate, folder)
    if not _page_agrees(folder, certificate):
        problems.append(f"'{_PAGE}' is missing, or does not say what {CERTIFICATE} says.")
    return certificate, problems


def read_certificate(run: Run) -> dict[str, Any]:
    """The certificate of a run, of which it is only known that it lists files.

    Raises:
        RunError: the run is not finished, or its certificate is damaged.
    """
    certificate = run.guarantee
    try:
        _digests(certificate)
    except (TypeError, KeyError) as error:
        raise RunError(f"{run.folder / CERTIFICATE} is damaged: restore it from a copy.") from error
    return certificate


def write_certificate(folder: Path, certificate: Mapping[str, Any]) -> None:
    """Put a certificate into `folder`, as JSON and as Markdown."""
    for name, content in certificate_files(certificate).items():
        write_durably(folder / name, content)


def reissue(run: Run, added: Collection[str] | None = None) -> None:
    """Issue a run's certificate anew for files that were added to it; one process at a time, so that none is lost.

    A file that is covered already keeps its hash, so that one which was changed is still found out; unless it is
    named in `added`, because it was written anew.

    Args:
        run: a finished run.
        added: names of files that are post-processing of its releases; None: every file that is not covered yet.
    """
    with folder_lock(run.folder):
        certificate = read_certificate(run)
        covered = _digests(certificate)
        if added is None:
            covered = hash_files(run.folder) | covered
        else:
            covered |= {name: sha256(run.folder / name) for name in added}
        write_certificate(run.folder, certificate | {"covered": _covered(covered)})
        level_times(run.folder)


def _digests(certificate: Mapping[str, Any]) -> dict[str, str]:
    return {str(one["file"]): str(one["sha256"]) for one in certificate["covered"]}


def _covered(digests: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"file": name, "sha256": digest} for name, digest in sorted(digests.items())]


def _page_agrees(folder: Path, certificate: Mapping[str, Any]) -> bool:
    """Whether the page for people is the one that the certificate makes."""
    try:
        return (folder / _PAGE).read_bytes() == certificate_files(certificate)[_PAGE]
    except (OSError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return False


def _copy(folder: Path, target: Path, certificate: Mapping[str, Any]) -> None:
    """Copy all covered files, without their time stamps, and check the copies.

    Raises:
        RunError: a copy is not what was certified, or the certificate itself is not valid.
    """
    target.mkdir(parents=True)
    for name in _digests(certificate):
        path, parts = folder / name, PurePosixPath(name).parts
        inside = not path.is_symlink() and path.resolve().is_relative_to(folder.resolve())
        if inside and ".." not in parts and parts[:1] != (CONFIDENTIAL,) and path.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)
    problems = verify(certificate, target)
    if problems:
        raise RunError(f"{folder} is not as it was certified and cannot be exported: {problems[0]}")
    write_certificate(target, certificate)
