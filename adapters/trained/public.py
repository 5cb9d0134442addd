"""The public images that a model is trained on before it sees a private record."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator
from scipy import ndimage

from adapters.glyphs import Glyphs
from adapters.public_files import SUFFIXES, image_files, images_at, read_arrays, read_folder
from pe.data.images import Resize
from pe.data.seeds import generator, item_seeds
from pe.errors import RecipeError
from pe.plugins.protocols import RandomRequest
from pe.plugins.validation import Count, Settings

Shape = tuple[int, int, int]
Kind = Literal["glyphs", "folder", "npz", "noise"]

_MADE = ("glyphs", "noise")
"""Kinds that are made by the recipe's seed."""

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_DRAWN_AT_ONCE = 1024


class Public(Settings):
    """Where public images come from. A path alone says `folder` or `npz` by what it ends in.

    Attributes:
        kind: `glyphs`: drawn characters; `folder`: of image files, a label's in the subfolder of its name;
            `npz`: a file with `images` (m×h×w or m×h×w×c) and, where they are labelled, `labels` (m);
            `noise`: low-pass filtered noise, without labels.
        path: of the folder or the file.
        resize: how its images get the size of the private ones.
        characters: that are drawn; each is a label.
        count: how many are drawn, of all characters alike, or made of noise.
        smoothing: of noise: the Gaussian filter's standard deviation, in pixels.
        white_on_black: light text on a dark ground; else the reverse.
        fonts: a folder, or `matplotlib`; see `Glyphs`.
    """

    kind: Kind
    path: Path | None = None
    resize: Resize = "crop"
    characters: str = CHARACTERS
    count: Count = 12400
    white_on_black: bool = True
    fonts: str = "matplotlib"
    smoothing: Annotated[float, Field(ge=0)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _of_path(cls, value: Any) -> Any:
        if isinstance(value, str | Path):
            return {"kind": "npz" if Path(value).suffix.lower() == ".npz" else "folder", "path": value}
        return value

    @model_validator(mode="after")
    def _whole(self) -> Public:
        if self.path is None and self.kind not in _MADE:
            raise ValueError(f"path is missing: say where the {self.kind} of public images is")
        if self.path is not None and self.kind in _MADE:
            raise ValueError(f"path is given, and {self.kind} images are made, not read: leave it out")
        if not self.characters:
            raise ValueError("characters is empty: name at least one to draw")
        if self.kind == "glyphs" and self.count < (most := len(set(self.characters))):
            raise ValueError(f"count is {self.count}, and there are {most} characters to draw: take at least as many")
        return self


@dataclass(frozen=True, eq=False)
class PublicSet:
    """Public images in memory.

    Attributes:
        images: uint8 (m, h, w, c), of the private images' shape.
        labels: int64 (m,), numbers of `names`; all 0 where they are not labelled.
        names: of the labels, sorted or in the order in which they are drawn; none where they are not labelled.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    names: tuple[str, ...]

    @property
    def classes(self) -> int:
        """How many labels a model has to tell apart: 1 where there are none."""
        return max(1, len(self.names))

    def selected(self, semantics: npt.NDArray[np.int64]) -> PublicSet:
        """The images of the public labels in row i of `semantics`, labelled i; no label stands in two rows."""
        new = np.full(self.classes, -1, dtype=np.int64)
        for label, row in enumerate(semantics):
            new[row] = label
        kept = np.flatnonzero(new[self.labels] >= 0)
        return PublicSet(self.images[kept], new[self.labels[kept]], tuple(map(str, range(len(semantics)))))


class ReadsPublic:
    """What makes a fitted generator with public images, `_public`, a `pe.plugins.protocols.ReadsPublicImages`."""

    _public: Public | None = None

    def public_paths(self) -> tuple[Path, ...]:
        """Where the public images are read from; empty where they are made, or where there are none."""
        return () if self._public is None or self._public.path is None else (self._public.path,)

    def public_images(self, shape: Shape, resize: Resize | None) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
        """Those that are read, decoded at `shape`."""
        for path in self.public_paths():
            assert self._public is not None
            yield from images_at(path, shape, resize or self._public.resize)


def read(public: Public, shape: Shape, seed: int) -> PublicSet:
    """All public images, as height×width×channels of `shape` say; drawn ones by `seed`.

    Raises:
        RecipeError: there are none, or they cannot have that shape.
        BadImage: a file cannot be decoded.
    """
    if public.kind == "glyphs":
        return _drawn(public, shape, seed)
    if public.kind == "noise":
        return _noise(public, shape, seed)
    assert public.path is not None
    height, width, channels = shape
    reader = read_folder if public.kind == "folder" else read_arrays
    _check_there(public)
    images, names = reader(public.path, (height, width), public.resize, cast(Literal[1, 3], channels))
    return _labelled(images, names if public.kind == "npz" else _subfolders(public.path, names))


def check(public: Public, shape: Shape) -> None:
    """Nothing, where public images are to be found, and may have `shape`; they are not read.

    Raises:
        RecipeError: see `read`.
    """
    if public.kind == "glyphs":
        _glyphs(public, shape)
    label_names(public)


def label_names(public: Public) -> tuple[str, ...]:
    """The names of the public labels, without reading an image; none where they are not labelled.

    Raises:
        RecipeError: see `read`.
    """
    if public.kind == "glyphs":
        return tuple(dict.fromkeys(public.characters))
    if public.kind == "noise":
        return ()
    _check_there(public)
    assert public.path is not None
    return _labelled_subfolders(public.path) if public.kind == "folder" else _labels_in(public.path)


def number(public: Public) -> int:
    """How many images there are; none is decoded.

    Raises:
        RecipeError: see `read`.
    """
    if public.kind in ("glyphs", "noise"):
        return public.count
    _check_there(public)
    assert public.path is not None
    if public.kind == "folder":
        return len(image_files(public.path))
    with _archive(public.path) as archive:
        return len(archive["images"])


def _check_there(public: Public) -> None:
    assert public.path is not None
    if not (_images_below(public.path) if public.kind == "folder" else public.path.is_file()):
        what = "folder with images" if public.kind == "folder" else ".npz file"
        raise RecipeError(f"public.path: there is no {what} at '{public.path}': name the public images' place.")


def _drawn(public: Public, shape: Shape, seed: int) -> PublicSet:
    glyphs, names = _glyphs(public, shape), tuple(dict.fromkeys(public.characters))
    places = np.arange(public.count, dtype=np.int64)
    seeds = item_seeds(seed, "public/glyphs", places, np.zeros_like(places))
    labels = places % len(names)
    parts = []
    for start in range(0, public.count, _DRAWN_AT_ONCE):
        some = slice(start, start + _DRAWN_AT_ONCE)
        request = RandomRequest(tuple(names[label] for label in labels[some]), seeds[some])
        parts.append(glyphs.random_api(request).samples.array)
    return PublicSet(np.concatenate(parts), labels, names)


def _noise(public: Public, shape: Shape, seed: int) -> PublicSet:
    """Grey on average, three standard deviations wide."""
    rng = generator(seed, "public/noise")
    images = np.empty((public.count, *shape), dtype=np.uint8)
    for image in images:
        smooth = ndimage.gaussian_filter(rng.standard_normal(shape), (public.smoothing, public.smoothing, 0))
        image[:] = np.clip(127.5 + 127.5 / 3 * smooth / smooth.std(), 0, 255)
    return PublicSet(images, np.zeros(public.count, dtype=np.int64), ())


def _glyphs(public: Public, shape: Shape) -> Glyphs:
    height, width, channels = shape
    if height != width:
        raise RecipeError(
            f"public.kind is glyphs, which are square, and the private images are {height}×{width}: "
            "make those square, or take another public set."
        )
    return Glyphs(size=height, channels=channels, white_on_black=public.white_on_black, fonts=public.fonts)


def _subfolders(folder: Path, names: Sequence[str]) -> list[str]:
    """The subfolder of each image; none at all, where one lies in no subfolder."""
    return [] if any((folder / name).is_file() for name in set(names)) else list(names)


@contextmanager
def _archive(file: Path) -> Iterator[Any]:
    """An .npz file with images, open."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            if "images" not in archive:
                raise RecipeError(f"public.path: '{file}' has no array 'images', only {', '.join(archive) or 'none'}.")
            yield archive
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise RecipeError(f"public.path: '{file}' is no .npz file that can be read: make it anew.") from error


def _labels_in(file: Path) -> tuple[str, ...]:
    """The labels of an .npz file, sorted; none where it has none."""
    with _archive(file) as archive:
        return tuple(map(str, np.unique(archive["labels"]))) if "labels" in archive else ()


def _labelled_subfolders(folder: Path) -> tuple[str, ...]:
    """The subfolders that hold images, sorted; none where an image lies in no subfolder."""
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if any(path.suffix.lower() in SUFFIXES for path in inside if path.is_file()):
        return ()
    return tuple(sorted(path.name for path in inside if _images_below(path)))


def _images_below(folder: Path) -> bool:
    return bool(image_files(folder)) if folder.is_dir() else False


def _labelled(images: npt.NDArray[np.uint8], names: Sequence[str]) -> PublicSet:
    if not names:
        return PublicSet(images, np.zeros(len(images), dtype=np.int64), ())
    unique, labels = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
    return PublicSet(images, labels.astype(np.int64), tuple(map(str, unique)))
