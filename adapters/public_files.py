"""Public images on disk, and the public samples of plug-ins within another.

Images come from a folder of files, or from an .npz file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from pe.data.arrays import UInt8Array
from pe.data.decoding import Channels, Resize, Size, decode_image, dimness
from pe.data.samples import Array, Shape
from pe.data.tables import files_below, folder_labels
from pe.errors import RecipeError
from pe.plugins.protocols import ReadsPublicSamples

Pixels = UInt8Array

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def paths_of(plugins: Iterable[object]) -> tuple[Path, ...]:
    """Return the paths of the public samples of those plug-ins that read some.

    See `ReadsPublicSamples`.
    """
    reading = [one for one in plugins if isinstance(one, ReadsPublicSamples)]
    return tuple(path for one in reading for path in one.public_paths())


def samples_of(
    plugins: Iterable[object], shape: Shape, rule: str | None
) -> Iterator[tuple[str, Array]]:
    """Yield the public samples of those plug-ins that read some: see `ReadsPublicSamples`."""
    for one in plugins:
        if isinstance(one, ReadsPublicSamples) and one.public_paths():
            yield from one.public_samples(shape, rule)


def read_folder(
    folder: Path, size: Size | None, resize: Resize, channels: Channels
) -> tuple[Pixels, list[str]]:
    """Return the images of a folder, and the label of each.

    An image without a label (see `folder_labels`) has its file name in place of it.

    Args:
        folder: the folder, which is searched at any depth.
        size: (height, width) in pixels; None: all images must have one size, which stays.
        resize: how images of another size are brought to `size`.
        channels: 1 (grey) or 3.

    Raises:
        RecipeError: no images, images that differ in size while `size` is None, too dark ones, or a
            broken labels.csv.
        BadImage: a file cannot be decoded.
    """
    files = files_below(folder, SUFFIXES)
    if not files:
        raise RecipeError(f"path: the folder '{folder}' holds no images ({', '.join(SUFFIXES)}).")
    images = _decode(folder, files, size, resize, channels)
    for path, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            raise RecipeError(
                f"The public images differ in size ({path.name} and {files[0].name}). Set `size`."
            )
    labels = folder_labels(folder, files)
    return np.stack(images), [label or path.name for label, path in zip(labels, files, strict=True)]


def read_arrays(
    file: Path, size: Size | None, resize: Resize, channels: Channels
) -> tuple[Pixels, list[str]]:
    """Return the images of an .npz file, and their labels: see `read_folder`.

    The list of labels is empty if the file has none.

    Args:
        file: with `images`, m×h×w or m×h×w×c, and perhaps `labels` (m).
        size: (height, width) in pixels; None: images keep the size that they have in the file.
        resize: how images of another size are brought to `size`.
        channels: 1 (grey) or 3.

    Raises:
        RecipeError: `images` is missing, `labels` has another length, or the 16-bit images are all
            too dark.
        BadImage: an image has pixels of another type, or is not shaped as an image.
    """
    images, labels = _arrays_in(file)
    if labels and len(labels) != len(images):
        raise RecipeError(f"path: '{file}' has {len(images)} images and {len(labels)} labels.")
    return np.stack(_decode(file, images, size, resize, channels)), labels


def _decode(
    place: Path, sources: Iterable[Any], size: Size | None, resize: Resize, channels: Channels
) -> list[Pixels]:
    """Return the decoded images of a folder or file, which must not all be too dark."""
    rule = None if size is None else resize
    deep: set[bool] = set()
    images = [
        decode_image(
            source,
            size=size,
            resize=rule,
            channels=channels,
            name=str(source if isinstance(source, Path) else place),
            deep=deep,
        )
        for source in sources
    ]
    why = dimness(deep)
    if why:
        raise RecipeError(f"path: '{place}': {why}")
    return images


def images_at(path: Path, shape: Shape, rule: str) -> Iterator[tuple[str, Pixels]]:
    """Yield every image at `path`, with its name for messages.

    These are the images that `read_folder` or `read_arrays` reads there.

    Args:
        path: a folder, or an .npz file.
        shape: (height, width, channels) of the images that are yielded.
        rule: how images of another size are brought to `shape`, as `Resize` names it.

    Raises:
        RecipeError: there is neither a folder nor such a file.
        BadImage: an image cannot be decoded; no such image is skipped.
    """
    height, width, channels = shape
    sources: Iterable[tuple[str, Any]]
    if path.is_dir():
        sources = ((str(file), file) for file in files_below(path, SUFFIXES))
    else:
        images = _arrays_in(path)[0]
        sources = ((f"image {i} of {path}", image) for i, image in enumerate(images, 1))
    for name, source in sources:
        image = decode_image(
            source,
            size=(height, width),
            resize=cast(Resize, rule),
            channels=cast(Channels, channels),
            name=name,
        )
        yield name, image


def _arrays_in(file: Path) -> tuple[npt.NDArray[Any], list[str]]:
    """Return the array `images` of an .npz file, and the entries of `labels`.

    The labels are empty without such an array.
    """
    try:
        with np.load(file, allow_pickle=False) as archive:
            images: npt.NDArray[Any] = archive["images"]
            labels = archive["labels"] if "labels" in archive else np.empty(0)
            if labels.size == len(labels):  # of shape n×1, too
                labels = labels.reshape(-1)
    except (OSError, ValueError, KeyError, BadZipFile, EOFError) as error:
        raise RecipeError(f"path: '{file}' is no .npz file with an array 'images'.") from error
    if images.ndim not in (3, 4) or not len(images):
        raise RecipeError(
            f"path: 'images' of '{file}' has the shape {images.shape}, not m×h×w or m×h×w×c."
        )
    return images, list(map(str, labels))
