"""Settings that all sources of one modality share: of images, of texts, and of rows of tables."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from PIL import Image, ImageCms
from pydantic import AfterValidator, Field

from pe.data.arrays import UInt8Array
from pe.data.columns import Column, Columns
from pe.data.constraints import Constraints, Declared
from pe.data.decoding import Channels, Resize, decode_image, dimness
from pe.data.images import Images
from pe.data.rows import Rows
from pe.data.samples import Array, Shape
from pe.data.structure import Structure
from pe.data.texts import LONGEST, MARGIN, MOST_MARKS, UTF_8, Texts, check_encoding, decode_text
from pe.errors import BadSample, PrivateDataError
from pe.private.dataset import Remark, outcome_of
from pe.private.source import PrivateSource, source

_TOO_LARGE = 2**14  # pixels of a side, for WebP
Side = Annotated[int, Field(strict=True, ge=1, le=8192)]


@source
class ImageSource(PrivateSource):
    """Private images, all brought to one size.

    Attributes:
        size: the images' height and width: one number for square images, or (height, width).
        resize: how images of other sizes get this size: crop, fit or stretch; if None, such images
            are an error.
        channels: 3 (colour) or 1 (grey).
        largest_side: the largest height or width that an image has on disk, in pixels, if that is
            not `size`; the public clock leaves time to decode so large an image.
    """

    _: KW_ONLY
    size: Side | tuple[Side, Side]
    resize: Resize | None = None
    channels: Channels = 3
    largest_side: Annotated[int, Field(strict=True, ge=1, le=2**15)] | None = None

    modality = Images
    in_files: ClassVar[bool] = True
    """True if each image is an encoded file, False if it is an array."""

    @property
    def height_width(self) -> tuple[int, int]:
        """The size as (height, width)."""
        return self.size if isinstance(self.size, tuple) else (self.size, self.size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        return *self.height_width, self.channels

    @property
    def rule(self) -> str | None:
        """The setting `resize`."""
        return self.resize

    def read(self, value: Any, name: str) -> UInt8Array:
        """Return an image as declared. Raise as `decode_image`.

        The value is an array, an encoded file or its bytes, or an image of Pillow.
        """
        size = self.height_width if self.resize else None
        return decode_image(
            value,
            size=size,
            resize=self.resize,
            channels=self.channels,
            name=name,
            deep=self._deep,
        )

    @cached_property
    def _deep(self) -> set[bool]:
        """Notes for `dimness`: which 16-bit images go beyond a sixteenth of the range.

        Such an image adds True, and any other 16-bit image False.
        """
        return set()

    def remarks(self) -> list[Remark]:
        """Return an error if the images read since the last call look like a mistake.

        `dimness` says when they do.
        """
        why = dimness(self._deep)
        self._deep.clear()
        return [PrivateDataError(why)] if why else []

    def decoding(self) -> Callable[[], object]:
        """Return a function that decodes an image of noise with opacity.

        It has `largest_side`, if that is given. For images in files it also has a colour profile
        and is compressed as WebP, because these take the longest.
        """
        height, width = (
            self.height_width
            if self.largest_side is None
            else (self.largest_side, self.largest_side)
        )
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, 4), dtype=np.uint8)
        image = Image.fromarray(pixels)
        file = io.BytesIO()
        if self.in_files:
            form = "WEBP" if max(height, width) < _TOO_LARGE else "PNG"
            profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
            image.save(file, form, quality=100, method=0, compress_level=1, icc_profile=profile)
        source = file.getvalue() or image
        return partial(
            decode_image,
            source,
            size=self.height_width,
            resize="crop",
            channels=self.channels,
        )


@source
class TextSource(PrivateSource):
    """Private texts, by the rules of `pe.data.texts`.

    Attributes:
        longest: the most bytes of UTF-8 that a text may have.
        cut: whether a longer text is cut; if not, it is a bad record.
        encoding: the encoding of the files, as Python names it; UTF-8 may begin with a byte order
            mark.
        structure: the form that all synthetic texts have: JSON objects of declared `fields`, or
            lines (docs/text.md).
    """

    _: KW_ONLY
    longest: Annotated[int, Field(strict=True, ge=1, le=100_000)] = LONGEST
    cut: Annotated[bool, Field(strict=True)] = False
    encoding: Annotated[str, AfterValidator(check_encoding)] = UTF_8
    structure: Structure | None = None

    modality = Texts
    shared = ("structure",)
    binding = ("structure",)

    @property
    def shape(self) -> Shape:
        """(longest,)."""
        return (self.longest,)

    def read(self, value: Any, name: str) -> Array:
        """Return the text of a file or a cell, as UTF-8 in an array. Raise as `decode_text`."""
        if value is None:
            raise BadSample(f"{name} is missing.")
        if not isinstance(value, str | Path):
            raise BadSample(f"{name} is of type {type(value).__name__}, which is not text.")
        text = decode_text(
            value,
            longest=self.longest,
            cut=self.cut,
            encoding=self.encoding,
            name=name,
        )
        return np.array(text, np.bytes_)

    def decoding(self) -> Callable[[], object]:
        """Return a function that decodes the longest text ever read.

        It has as many accents as may be, and lines.
        """
        text = ("e" + MOST_MARKS // 2 * "\u0301\u0323" + "\n") * self.longest
        return partial(
            decode_text,
            text[: MARGIN * self.longest],
            longest=self.longest,
            cut=True,
            name="A text",
        )


@source
class RowSource(PrivateSource):
    """Private rows, whose columns are declared in public: a record can hold nothing else.

    Attributes:
        columns: each column's kind and values, by name (docs/tables.md); `!include columns.yaml`
            reads a file.
        constraints: what all synthetic rows obey: `admitted <= discharged`, or the `allowed`
            combinations of `columns`.
    """

    _: KW_ONLY
    columns: Annotated[Mapping[str, Column], Field(min_length=1)]
    constraints: tuple[Declared, ...] = ()

    modality = Rows
    shared = ("columns", "constraints")
    binding = ("constraints",)

    def __post_init__(self) -> None:
        """Raise RecipeError if a constraint cannot be met."""
        Constraints(self.declared, self.constraints)

    @cached_property
    def declared(self) -> Columns:
        """The columns."""
        return Columns(self.columns)

    @property
    def shape(self) -> Shape:
        """The shape of a row: the number of bytes of the longest row that the columns allow."""
        return (self.declared.width,)

    def read(self, value: Sequence[object], name: str) -> Array:
        """Return a record, its values in the order of the columns, as a row.

        Raise as `Columns.read`.
        """
        return np.array(self.declared.read(value, name), np.bytes_)

    @property
    def public_facts(self) -> list[str]:
        """The columns' values and ranges."""
        columns = "; ".join(f"{name} {one}" for name, one in self.columns.items())
        return [
            "The owner of the records has declared these columns in public, and no noise protects "
            f"them: {columns}."
        ]

    def remarks(self) -> list[Remark]:
        """Return how many cells of each column were out of range since the last call.

        Such cells were changed.
        """
        sentences: list[Remark] = [
            f"Column '{name}': {count:,} cells were out of range and became the nearest value in "
            "it."
            for name, count in self.declared.clipped.items()
        ]
        self.declared.clipped.clear()
        return sentences

    def decoding(self) -> Callable[[], object]:
        """Return a function that reads the last values, and then their codes in the row.

        Dates are in their own format.
        """
        cells = [
            f"{column.cell(column.size - 1):{column.format or ''}}"
            for column in self.declared.values()
        ]
        row = self.declared.rows(self.declared.sizes[None] - 1)
        return lambda: (outcome_of(self.read, cells, "A row"), self.declared.codes(row))
