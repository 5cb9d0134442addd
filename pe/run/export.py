"""Handing a run over: its shareable side in a folder of its own, with the certificate."""

from __future__ import annotations

import csv
import io
import secrets
import shutil
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import quote

import numpy as np
from PIL import Image

from pe.data.samples import Images
from pe.errors import MissingDependency, RecipeError, RunError
from pe.privacy.covered import hash_files
from pe.privacy.markdown import certificate_files
from pe.run.directory import CONFIDENTIAL, SYNTHETIC, Run, check_absent
from pe.run.durable import TEMPORARY, publish_folder, write_durably

Format = Literal["folder", "npz", "parquet"]


def export(run: Run, to: Path, form: Format = "npz") -> Path:
    """Copy the shareable side of a finished run to the new folder `to`; it appears whole or not at all.

    The certificate is issued anew for the files that the folder holds: all of them are post-processing
    of the same releases.

    Args:
        run: a finished run; its confidential side may have been purged.
        to: must not exist.
        form: `npz` leaves the synthetic data as `synthetic.npz`; `folder` writes them as
            `synthetic/<label>/<index>.png` and `synthetic/labels.csv` instead; `parquet` as
            `synthetic.parquet`, with the columns image (bytes, path) and label, instead.

    Raises:
        RunError: `to` exists, or the run is not finished.
        RecipeError: an unknown format.
        MissingDependency: Parquet without pyarrow.
    """
    if form not in get_args(Format):
        raise RecipeError(f"format: '{form}' is unknown; known are {', '.join(get_args(Format))}.")
    certificate = run.guarantee
    check_absent(to)
    temporary = to.with_name(f"{to.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        shutil.copytree(run.folder, temporary, ignore=_without_confidential(run.folder))
        if form != "npz":
            _convert(temporary, form)
        write_certificate(temporary, certificate | {"covered": _covered(temporary)})
        publish_folder(temporary, to)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return to


def write_certificate(folder: Path, certificate: dict[str, Any]) -> None:
    """Put a certificate into `folder`, as JSON and as Markdown."""
    for name, content in certificate_files(certificate).items():
        write_durably(folder / name, content)


def reissue(run: Run) -> None:
    """Issue a run's certificate anew for the files that it holds now."""
    write_certificate(run.folder, run.guarantee | {"covered": _covered(run.folder)})


def _covered(folder: Path) -> list[dict[str, str]]:
    return [{"file": name, "sha256": digest} for name, digest in sorted(hash_files(folder).items())]


def _without_confidential(folder: Path) -> Any:
    def ignored(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if name.endswith(TEMPORARY) or (name, Path(directory)) == (CONFIDENTIAL, folder)]

    return ignored


def _convert(folder: Path, form: Format) -> None:
    """Replace `synthetic.npz` by the same images in another form."""
    with np.load(folder / SYNTHETIC, allow_pickle=False) as archive:
        if Images.kind not in archive.files:
            raise RunError(f"Only images can be exported as {form}: use npz.")
        images, labels = archive[Images.kind], archive["label_names"][archive["labels"]].tolist()
    rows = [
        (f"{quote(label, safe=' ')}/{index:06d}.png", label, _png(pixels))
        for index, (label, pixels) in enumerate(zip(labels, images, strict=True))
    ]
    if form == "folder":
        _write_folder(folder / "synthetic", rows)
    else:
        _write_parquet(folder / "synthetic.parquet", rows)
    (folder / SYNTHETIC).unlink()


def _write_folder(folder: Path, rows: list[tuple[str, str, bytes]]) -> None:
    for name, _, data in rows:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "label"))
        writer.writerows((name, label) for name, label, _ in rows)


def _write_parquet(path: Path, rows: list[tuple[str, str, bytes]]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependency.of("pyarrow", "parquet", "Exporting Parquet") from error
    images = [{"bytes": data, "path": name} for name, _, data in rows]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, kind), "label": pa.array([label for _, label, _ in rows], pa.string())})
    pq.write_table(table, path)


def _png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, format="PNG")
    return buffer.getvalue()
