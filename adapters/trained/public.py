"""The public images that a model is trained on before it sees a private record."""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, model_validator
from scipy import ndimage

from adapters.glyphs import Fonts, Glyphs
from adapters.public_files import SUFFIXES, images_at, read_arrays, read_folder
from pe.data.decoding import Channels, Resize
from pe.data.samples import generator, item_seeds
from pe.data.tables import files_below, folder_labels
from pe.errors import RecipeError
from pe.plugins.protocols import RandomRequest
from pe.plugins.settings import Count, Settings

Shape = tuple[int, int, int]
Pixels = npt.NDArray[np.uint8]

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_DRAWN_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class PublicSet:
    """Public images in memory.

    Attributes:
        images: uint8 (m, h, w, c), of the private images' shape.
        labels: int64 (m,), numbers of `names`; all 0 where they are not labelled.
        names: of the labels, sorted or in the order in which they are drawn; none where they are not labelled.
    """

    images: Pixels
    labels: npt.NDArray[np.int64]
    names: tuple[str, ...]

    @classmethod
    def of_names(cls, images: Pixels, names: Sequence[str]) -> PublicSet:
        """Images and the name of each one's label; without names they are not labelled."""
        if not names:
            return cls(images, np.zeros(len(images), dtype=np.int64), ())
        unique, labels = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
        return cls(images, labels.astype(np.int64), tuple(map(str, unique)))

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


class Source(Settings, ABC):
    """Where public images come from. Each method but `read` decodes no image, and raises RecipeError as `read` does."""

    kind: str

    @property
    def paths(self) -> tuple[Path, ...]:
        """What it reads; empty where its images are made."""
        return ()

    @property
    def place(self) -> str:
        """Its path, or its kind where its images are made; for messages."""
        return str(self.paths[0]) if self.paths else self.kind

    def label_names(self) -> tuple[str, ...]:
        """The names of the public labels; none where they are not labelled."""
        return ()

    def check(self, shape: Shape) -> None:
        """Raise RecipeError if the images are missing, or cannot have `shape`."""
        self.label_names()

    @abstractmethod
    def number(self) -> int:
        """How many images there are."""

    @abstractmethod
    def read(self, shape: Shape, seed: int) -> PublicSet:
        """All public images, as height×width×channels of `shape` say; those that are made, by `seed`.

        Raises:
            RecipeError: there are none, or they cannot have that shape.
            BadImage: a file cannot be decoded.
        """


class Made(Source):
    """Images that are made by the recipe's seed.

    Attributes:
        count: how many; of each character as many.
    """

    count: Count = 12400

    def number(self) -> int:
        """As stated."""
        return self.count


class Characters(Made):
    """Drawn characters.

    Attributes:
        characters: which are drawn; each is a label.
        white_on_black: light text on a dark ground; else the reverse.
        fonts: a folder, or `matplotlib`; see `Glyphs`.
    """

    kind: Literal["glyphs"] = "glyphs"
    characters: Annotated[str, Field(min_length=1)] = CHARACTERS
    white_on_black: bool = True
    fonts: Fonts = "matplotlib"

    @model_validator(mode="after")
    def _every_one_is_drawn(self) -> Characters:
        if self.count < (most := len(self.label_names())):
            raise ValueError(f"count is {self.count}, and there are {most} characters to draw: take at least as many")
        return self

    def check(self, shape: Shape) -> None:
        """See `Source`."""
        self._glyphs(shape)

    def label_names(self) -> tuple[str, ...]:
        """The characters."""
        return tuple(dict.fromkeys(self.characters))

    def read(self, shape: Shape, seed: int) -> PublicSet:
        """See `Source`."""
        glyphs, names = self._glyphs(shape), self.label_names()
        places = np.arange(self.count, dtype=np.int64)
        seeds = item_seeds(seed, "public/glyphs", places, np.zeros_like(places))
        labels = places % len(names)
        parts = []
        for start in range(0, self.count, _DRAWN_AT_ONCE):
            some = slice(start, start + _DRAWN_AT_ONCE)
            request = RandomRequest(tuple(names[label] for label in labels[some]), seeds[some])
            parts.append(glyphs.random_api(request).samples.array)
        return PublicSet(np.concatenate(parts), labels, names)

    def _glyphs(self, shape: Shape) -> Glyphs:
        height, width, channels = shape
        if height != width:
            raise RecipeError(
                f"public.kind is glyphs, which are square, and the private images are {height}×{width}: "
                "make those square, or take another public set."
            )
        return Glyphs(size=height, channels=channels, white_on_black=self.white_on_black, fonts=self.fonts)


class Noise(Made):
    """Low-pass filtered noise, without labels.

    Attributes:
        smoothing: the Gaussian filter's standard deviation, in pixels.
    """

    kind: Literal["noise"] = "noise"
    smoothing: Annotated[float, Field(ge=0)] = 1.0

    def read(self, shape: Shape, seed: int) -> PublicSet:
        """Grey on average, three standard deviations wide."""
        rng = generator(seed, "public/noise")
        images = np.empty((self.count, *shape), dtype=np.uint8)
        for image in images:
            smooth = ndimage.gaussian_filter(rng.standard_normal(shape), (self.smoothing, self.smoothing, 0))
            image[:] = np.clip(127.5 + 127.5 / 3 * smooth / smooth.std(), 0, 255)
        return PublicSet.of_names(images, ())


class Files(Source):
    """Images on disk.

    Attributes:
        resize: how images get the size of the private ones.
    """

    path: Path = Field(description="where the folder or the .npz file of public images is")
    resize: Resize = "crop"

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folder or the file."""
        return (self.path,)

    def _check(self, there: bool, what: str) -> None:
        if not there:
            raise RecipeError(f"public.path: there is no {what} at '{self.path}': name the public images' place.")


class Folder(Files):
    """A folder of image files; `labels.csv`, or the subfolder that one lies in, names its label."""

    kind: Literal["folder"] = "folder"

    def label_names(self) -> tuple[str, ...]:
        """The labels of the images, sorted; none where an image has none."""
        found = folder_labels(self.path, self._files())
        names = {name for name in found if name is not None}
        return () if None in found else tuple(sorted(names))

    def number(self) -> int:
        """How many files there are."""
        return len(self._files())

    def read(self, shape: Shape, seed: int) -> PublicSet:
        """See `Source`."""
        labelled = bool(self.label_names())
        images, names = read_folder(self.path, shape[:2], self.resize, cast(Channels, shape[2]))
        return PublicSet.of_names(images, names if labelled else ())

    def _files(self) -> list[Path]:
        files = files_below(self.path, SUFFIXES) if self.path.is_dir() else []
        self._check(bool(files), "folder with images")
        return files


class Arrays(Files):
    """A file with `images` (m×h×w or m×h×w×c) and, where they are labelled, `labels` (m)."""

    kind: Literal["npz"] = "npz"

    def label_names(self) -> tuple[str, ...]:
        """The labels, sorted; none where it has none."""
        with self._opened() as archive:
            return tuple(map(str, np.unique(archive["labels"]))) if "labels" in archive else ()

    def number(self) -> int:
        """How many images it holds."""
        with self._opened() as archive:
            return len(archive["images"])

    def read(self, shape: Shape, seed: int) -> PublicSet:
        """See `Source`."""
        self._check(self.path.is_file(), ".npz file")
        return PublicSet.of_names(*read_arrays(self.path, shape[:2], self.resize, cast(Channels, shape[2])))

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        self._check(self.path.is_file(), ".npz file")
        file = self.path
        try:
            with np.load(file, allow_pickle=False) as archive:
                if "images" not in archive:
                    there = ", ".join(archive) or "none"
                    raise RecipeError(f"public.path: '{file}' has no array 'images', only {there}.")
                yield archive
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise RecipeError(f"public.path: '{file}' is no .npz file that can be read: make it anew.") from error


def _of_path(value: Any) -> Any:
    if isinstance(value, str | Path):
        return {"kind": "npz" if Path(value).suffix.lower() == ".npz" else "folder", "path": value}
    return value


_Kinds = Characters | Folder | Arrays | Noise
Public = Annotated[_Kinds, Field(discriminator="kind"), BeforeValidator(_of_path, json_schema_input_type=Path | _Kinds)]
"""A section of the recipe. A path alone says `folder` or `npz` by what it ends in."""


class ReadsPublic:
    """What makes a fitted generator with public images a `pe.plugins.protocols.ReadsPublicSamples`."""

    public: Source | None

    def public_paths(self) -> tuple[Path, ...]:
        """Where the public images are read from; empty where they are made, or where there are none."""
        return () if self.public is None else self.public.paths

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Pixels]]:
        """Those that are read, decoded at `shape`."""
        if isinstance(self.public, Files):
            yield from images_at(self.public.path, shape, rule or self.public.resize)
