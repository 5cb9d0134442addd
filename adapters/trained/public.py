"""The public images that a method reads, and their sources."""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast
from zipfile import BadZipFile

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from scipy import ndimage

from adapters.diffusion.items import tensors
from adapters.public_files import SUFFIXES, images_at, read_arrays, read_folder
from pe.data.arrays import ImageShape, Int64Array, UInt8Array
from pe.data.decoding import Channels, Resize
from pe.data.images import Images
from pe.data.samples import Samples, Shape, generator, item_seeds, slices
from pe.data.tables import files_below, folder_labels
from pe.errors import RecipeError
from pe.plugins.protocols import GenerationAPI, RandomRequest
from pe.plugins.registry import load
from pe.plugins.settings import Count, Settings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Pixels = UInt8Array

# Number of images where a recipe names none.
COUNT = 12400

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class PublicSet:
    """Public images in memory."""

    images: Pixels  # uint8 (m, h, w, c), of the private images' shape
    labels: Int64Array  # int64 (m,), places in `names`; all 0 if the images are not labelled
    # of the labels, sorted or in the order in which they are drawn; () if the images are not
    # labelled
    names: tuple[str, ...]

    @classmethod
    def of_names(cls, images: Pixels, names: Sequence[str]) -> PublicSet:
        """Return a set of `images`, with the label name of each in `names`.

        `names` is empty if they have no labels.
        """
        if not names:
            return cls(images, np.zeros(len(images), dtype=np.int64), ())
        unique, labels = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
        return cls(images, labels.astype(np.int64), tuple(map(str, unique)))

    @classmethod
    def of_generator(
        cls,
        api: GenerationAPI,
        names: tuple[str, ...],
        count: int,
        seed: int,
        purpose: str,
    ) -> PublicSet:
        """Return `count` images made by a generator.

        The numbers of images per label differ by at most one.
        """
        places = np.arange(count, dtype=np.int64)
        seeds = item_seeds(seed, purpose, places, np.zeros_like(places))
        labels = places % len(names)
        parts = []
        for chunk in slices(count, _CHUNK):
            request = RandomRequest(tuple(names[label] for label in labels[chunk]), seeds[chunk])
            parts.append(api.random_api(request).samples.array)
        return cls(np.concatenate(parts), labels, names)

    def draw(
        self, rng: np.random.Generator, size: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return `size` images drawn by `rng`, and their labels, int64 (n,).

        The images are float32 n×c×h×w in [−1, 1].
        """
        import torch

        rows = rng.integers(len(self.images), size=size)
        return tensors(self.images[rows], device), torch.from_numpy(self.labels[rows]).to(device)

    @property
    def classes(self) -> int:
        """Number of labels a model has to tell apart: 1 if the images are not labelled."""
        return max(1, len(self.names))

    def select(self, semantics: Int64Array) -> PublicSet:
        """Return the images whose label is in a row of `semantics`, relabelled by row number.

        Rows are disjoint.
        """
        new = np.full(self.classes, -1, dtype=np.int64)
        for label, row in enumerate(semantics):
            new[row] = label
        rows = np.flatnonzero(new[self.labels] >= 0)
        return PublicSet(
            self.images[rows],
            new[self.labels[rows]],
            tuple(map(str, range(len(semantics)))),
        )


class Source(Settings, ABC):
    """Source of public images.

    Only `read` decodes images. The other methods raise RecipeError as `read` does.
    """

    kind: str

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files or folders it reads, none if its images are made."""
        return ()

    @property
    def place(self) -> str:
        """Its path, or its kind if its images are made, for messages."""
        return str(self.paths[0]) if self.paths else self.kind

    def label_names(self) -> tuple[str, ...]:
        """Return the names of the public labels, none if the images are not labelled."""
        return ()

    def check(self, shape: ImageShape) -> None:
        """Raise RecipeError if the images are missing, or cannot have `shape`."""
        self.label_names()

    @abstractmethod
    def read(self, shape: ImageShape, seed: int) -> PublicSet:
        """Return all public images, height×width×channels as in `shape`.

        Images that are made are drawn by `seed`.

        Raises:
            RecipeError: there are none, or they cannot have that shape.
            BadImage: a file cannot be decoded.
        """


class Characters(Source):
    """Drawn characters.

    Attributes:
        count: number of images; characters get equally many, to within one.
        characters: which are drawn; each is a label.
        white_on_black: true: light text on a dark ground; false: dark on light.
        fonts: a folder of .ttf and .otf files, or `matplotlib` for the fonts that it installs.
    """

    kind: Literal["glyphs"] = "glyphs"
    count: Count = COUNT
    characters: Annotated[str, Field(min_length=1)] = CHARACTERS
    white_on_black: bool = True
    fonts: Literal["matplotlib"] | Path = "matplotlib"

    @model_validator(mode="after")
    def _every_one_is_drawn(self) -> Characters:
        most = len(self.label_names())
        if self.count < most:
            raise ValueError(
                f"`count` is {self.count}, but there are {most} characters to draw: set it to "
                f"{most} or more"
            )
        return self

    def check(self, shape: ImageShape) -> None:
        """See `Source`."""
        self._glyphs(shape)

    def label_names(self) -> tuple[str, ...]:
        """See `Source`."""
        return tuple(dict.fromkeys(self.characters))

    def read(self, shape: ImageShape, seed: int) -> PublicSet:
        """See `Source`."""
        return PublicSet.of_generator(
            self._glyphs(shape), self.label_names(), self.count, seed, "public/glyphs"
        )

    def _glyphs(self, shape: ImageShape) -> GenerationAPI:
        height, width, channels = shape
        if height != width:
            raise RecipeError(
                "`public.kind` is glyphs, which are square, but the private images are "
                f"{height}×{width}. Make those square, or use another public set."
            )
        api: GenerationAPI = load("pe.adapters", "glyphs")(
            size=height,
            channels=channels,
            white_on_black=self.white_on_black,
            fonts=self.fonts,
        )
        return api


class NoiseImages(Source):
    """Low-pass filtered noise, without labels.

    Attributes:
        count: number of images.
        smoothing: the Gaussian filter's standard deviation, in pixels.
    """

    kind: Literal["noise"] = "noise"
    count: Count = COUNT
    smoothing: Annotated[float, Field(ge=0)] = 1.0

    def read(self, shape: ImageShape, seed: int) -> PublicSet:
        """See `Source`.

        Images are grey on average, with black and white three standard deviations away.
        """
        rng = generator(seed, "public/noise")
        images = np.empty((self.count, *shape), dtype=np.uint8)
        for image in images:
            smooth = ndimage.gaussian_filter(
                rng.standard_normal(shape), (self.smoothing, self.smoothing, 0)
            )
            image[:] = np.clip(127.5 + 127.5 / 3 * smooth / smooth.std(), 0, 255)
        return PublicSet.of_names(images, ())


class Placed(Source):
    """Images on disk.

    Attributes:
        resize: how images get the size of the private ones.
    """

    path: Path = Field(description="where the folder or the .npz file of public images is")
    resize: Resize = "crop"

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folder or file."""
        return (self.path,)

    def read(self, shape: ImageShape, seed: int) -> PublicSet:
        """See `Source`."""
        has_labels = bool(self.label_names())
        images_in = read_folder if self.path.is_dir() else read_arrays
        images, names = images_in(self.path, shape[:2], self.resize, cast(Channels, shape[2]))
        return PublicSet.of_names(images, names if has_labels else ())

    def _missing(self, what: str) -> RecipeError:
        return RecipeError(
            f"`public.path`: there is no {what} at '{self.path}'. Name the place of the public "
            "images."
        )


class Folder(Placed):
    """A folder of image files, labelled by `labels.csv` or by their subfolders."""

    kind: Literal["folder"] = "folder"

    def label_names(self) -> tuple[str, ...]:
        """See `Source`. There are none if any image has no label."""
        files = files_below(self.path, SUFFIXES) if self.path.is_dir() else []
        if not files:
            raise self._missing("folder with images")
        labels = folder_labels(self.path, files)
        names = {name for name in labels if name is not None}
        return () if None in labels else tuple(sorted(names))


class Arrays(Placed):
    """An .npz file with `images` (m×h×w or m×h×w×c) and, where these are labelled, `labels` (m)."""

    kind: Literal["npz"] = "npz"

    def label_names(self) -> tuple[str, ...]:
        """See `Source`."""
        if not self.path.is_file():
            raise self._missing(".npz file")
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                if "images" not in archive:
                    names = ", ".join(archive) or "none"
                    raise RecipeError(
                        f"`public.path`: '{self.path}' has no array 'images', only {names}. Rename "
                        "the array of images."
                    )
                return tuple(map(str, np.unique(archive["labels"]))) if "labels" in archive else ()
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise RecipeError(
                f"`public.path`: '{self.path}' cannot be read as an .npz file. Write it again."
            ) from error


def _of_path(value: Any) -> Any:
    if isinstance(value, str | Path):
        return {"kind": "npz" if Path(value).suffix.lower() == ".npz" else "folder", "path": value}
    return value


_Kinds = Characters | Folder | Arrays | NoiseImages

# A section of the recipe. A path in its place stands for kind `npz` if it ends in .npz, otherwise
# for `folder`.
Public = Annotated[
    _Kinds,
    Field(discriminator="kind"),
    BeforeValidator(_of_path, json_schema_input_type=Path | _Kinds),
]


class ReadsPublic:
    """A fitted generator with public images: a `pe.plugins.protocols.ReadsPublicSamples`."""

    public: Source | None

    def public_paths(self) -> tuple[Path, ...]:
        """See `ReadsPublicSamples`."""
        return () if self.public is None else self.public.paths

    def public_samples(
        self,
        shape: Shape,
        rule: str | None,
    ) -> Iterator[tuple[str, Pixels]]:
        """See `ReadsPublicSamples`."""
        if isinstance(self.public, Placed):
            yield from images_at(self.public.path, shape, rule or self.public.resize)

    def labelled_public(self, shape: Shape, seed: int) -> tuple[Samples, Sequence[str]] | None:
        """See `Generator`."""
        if self.public is None or not self.public.label_names():
            return None
        found = self.public.read(cast(ImageShape, shape), seed)
        return Images(found.images), [found.names[label] for label in found.labels]
