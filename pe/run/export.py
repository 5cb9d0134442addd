"""Handing a run over: what its certificate covers, in a folder of its own; and checking such a folder."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args
from urllib.parse import quote
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from PIL import Image

from pe.data.conditions import SOFT_LABEL
from pe.data.samples import Array, Images
from pe.errors import ContractError, MissingDependency, RecipeError, RunError
from pe.privacy.covered import hash_files, sha256
from pe.privacy.markdown import certificate_files
from pe.privacy.verify import verify
from pe.run.directory import CERTIFICATE, CONFIDENTIAL, SYNTHETIC, Run, check_absent, extension_place
from pe.run.durable import TEMPORARY, publish_folder, write_durably
from pe.run.lock import folder_lock
from pe.run.writer import level_times

Format = Literal["folder", "npz", "parquet"]
Row = tuple[str, str, bytes, list[float]]
"""An image's file name, its label, its PNG file, and its soft label: a probability for each label, or none at all."""

Part = tuple[Array, Array, Array | None]
"""Labels, images and soft labels, if any."""

_SOFT = "soft_labels"
_PAGE = CERTIFICATE.with_suffix(".md").name
_ROWS_TOGETHER = 500
_LONGEST = 120
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)  # names that Windows gives to devices


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
            _convert(temporary, form)
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


def _convert(folder: Path, form: Format) -> None:
    """Replace `synthetic.npz`, and the extensions' .npz files, by the same images in another form."""
    names, first = _read_samples(folder / SYNTHETIC, form)
    parts, soft = [first, *_extensions(folder, names)], first[2]
    labelled = chain.from_iterable(
        zip(labels, images, np.zeros((len(labels), 0)) if soft is None else soft, strict=True)
        for labels, images, soft in parts
    )
    rows = (
        (f"{file_name(names[label])}/{index:06d}.png", names[label], _png(pixels), [float(share) for share in shares])
        for index, (label, pixels, shares) in enumerate(labelled)
    )
    columns = names if soft is not None else []
    if form == "folder":
        _write_folder(folder / "synthetic", rows, columns)
    else:
        _write_parquet(folder / "synthetic.parquet", rows, columns)
    for path in (folder / SYNTHETIC, *folder.glob("extension-*.npz")):
        path.unlink()


def _read_samples(path: Path, form: Format) -> tuple[list[str], Part]:
    """Label names, and all else, of a run's .npz file: no more than its own size in memory.

    Raises:
        RunError: it holds no images, or is not as this software writes it.
    """
    try:
        with ZipFile(path) as members:
            if any(member.compress_type != ZIP_STORED for member in members.infolist()):
                raise RunError(f"{path.name} is compressed, which this software does not do: unpack and store it.")
        with np.load(path, allow_pickle=False) as archive:
            if Images.kind not in archive.files:
                raise RunError(f"Only images can be exported as {form}: use npz.")
            names, labels, images = archive["label_names"].tolist(), archive["labels"], archive[Images.kind]
            return names, _checked(path.name, names, labels, images, archive.get(_SOFT))
    except (BadZipFile, ValueError, KeyError, TypeError, EOFError, MemoryError) as error:
        raise RunError(f"{path.name} is damaged: restore it from a copy.") from error


def _extensions(folder: Path, names: list[str]) -> Iterator[Part]:
    """What `pe extend` added, checked."""
    try:
        more = Run(folder).extensions()
    except (ContractError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise RunError(f"{folder.name}: an extension is damaged: restore it from a copy.") from error
    for index, one in enumerate(more, start=1):
        yield _checked(extension_place(index), names, one.labels, one.samples.array, one.conditions.get(SOFT_LABEL))


def _checked(name: str, names: list[str], labels: Array, images: Array, soft: Array | None) -> Part:
    """Labels, images and soft labels, as they can be written.

    Raises:
        RunError: they are not as this software writes them.
    """
    count = len(images) if images.ndim == 4 else -1
    fits = (
        all(isinstance(each, str) for each in names)
        and images.dtype == np.uint8
        and images.size > 0
        and images.shape[-1] in (1, 3)
        and labels.shape == (count,)
        and labels.dtype.kind in "iu"
        and 0 <= labels.min() <= labels.max() < len(names)
        and (soft is None or (soft.shape == (count, len(names)) and soft.dtype.kind == "f"))
    )
    if not fits:
        raise RunError(f"{name} is damaged: restore it from a copy.")
    return labels, images, soft


def file_name(label: str) -> str:
    """A label as the name of a folder on any system: percent-escapes, also of every dot; long ones are cut.

    Different labels get different names.
    """
    name = quote(label, safe=" ").replace(".", "%2E")
    if _RESERVED.fullmatch(name):
        return f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) > _LONGEST:
        return f"{name[:_LONGEST]}%{hashlib.sha256(label.encode()).hexdigest()[:32]}"
    return name


def _write_folder(folder: Path, rows: Iterator[Row], soft: Sequence[str]) -> None:
    folder.mkdir()
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "label", *(f"p({label})" for label in soft)))
        for name, label, data, shares in rows:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            writer.writerow((name, label, *shares))


def _write_parquet(path: Path, rows: Iterator[Row], soft: Sequence[str]) -> None:
    """Columns image, label and, where there are some, soft_label, in the order of the label names.

    In groups of rows, with the metadata by which Hugging Face decodes the images.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency.of("pyarrow", "parquet", "Exporting Parquet") from error
    features = {"image": {"_type": "Image"}, "label": {"dtype": "string", "_type": "Value"}}
    columns = {"image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]), "label": pa.string()}
    if soft:
        columns["soft_label"] = pa.list_(pa.float32())
    schema = pa.schema(
        columns,
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    with pq.ParquetWriter(path, schema) as writer:
        while group := list(islice(rows, _ROWS_TOGETHER)):
            entries = [
                {"image": {"bytes": data, "path": name}, "label": label} | ({"soft_label": shares} if soft else {})
                for name, label, data, shares in group
            ]
            writer.write_table(pa.Table.from_pylist(entries, schema))


def _png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG")
    return buffer.getvalue()
