"""A pool of public samples.

RANDOM_API deals it out, VARIATION_API takes a neighbour of the parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import ndimage
from scipy.sparse import csr_array

from adapters.public_files import images_at, read_arrays, read_folder
from pe.data import tables as public_texts
from pe.data.arrays import Float32Array, Float64Array, Int64Array, UInt8Array
from pe.data.columns import Column, Columns
from pe.data.constraints import Constraints, Declared
from pe.data.decoding import Resize
from pe.data.images import Images
from pe.data.rows import Rows
from pe.data.samples import Conditions, Samples, Shape, uniforms
from pe.data.tables import PublicText
from pe.data.text_vectors import Rarity, damp, words_of
from pe.data.texts import LONGEST, UTF_8, Texts, shorten
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import (
    Answer,
    Capabilities,
    Generator,
    PluginInfo,
    RandomRequest,
    Seeds,
    VariationRequest,
)
from pe.plugins.settings import Count
from pe.plugins.specs import plugin

Indices = Int64Array
Pixels = UInt8Array
Vectors = Float32Array

BLOCK = 64  # parents compared with the pool at once


class FromPool(Generator):
    """RANDOM_API and VARIATION_API over a pool of samples.

    Vectors of whole numbers tell which samples are near.

    An answer depends on each item's seed and condition alone.

    Conditions: `pool`, int64 (n,): the sample's place in the pool.
    """

    capabilities = Capabilities(max_chunk=1024)
    path: Path
    _vectors: Any
    """The samples as whole numbers, m×d: an array, or a sparse one. Sums of their products are
    exact, so neither the chunk nor the order of a sum can change who is whose neighbour."""

    def _fill(self, samples: Samples, names: Sequence[str] | None) -> None:
        """Set up the pool.

        `names` holds each sample's label. If it is None, all samples serve every label.
        """
        self._samples = samples
        self._everyone = np.arange(len(samples))
        self._by_label = None if names is None else dict(_group(names))
        pools = [self._everyone] if self._by_label is None else list(self._by_label.values())
        distinct = max(map(len, pools))
        self.info = replace(self.info, by_label=names is not None, distinct=distinct)

    def __len__(self) -> int:
        """The number of samples in the pool."""
        return len(self._everyone)

    def public_paths(self) -> tuple[Path, ...]:
        """Path of the pool."""
        return (self.path,)

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise RecipeError if the pool has no samples of a label."""
        for label in labels:
            self._of_label(label)

    def draw_conditions(self, labels: tuple[str, ...], seeds: Seeds) -> Conditions:
        """Deal places in the pool to new samples, in random order for each label.

        Once all are dealt, start again.
        """
        places = np.empty(len(labels), dtype=np.int64)
        for label, items in _group(labels):
            pool = self._of_label(label)
            rng = np.random.Generator(np.random.Philox(key=int(seeds[items[0]])))
            rounds = [rng.permutation(pool) for _ in range(-(-len(items) // len(pool)))]
            places[items] = np.concatenate(rounds)[: len(items)]
        return Conditions({"pool": places})

    def random_api(self, request: RandomRequest) -> Answer:
        """Return the samples whose places `draw_conditions` dealt.

        Raise APIError if it dealt none in this pool.
        """
        return self._answer(self._places(request.conditions))

    def variation_api(self, request: VariationRequest) -> Answer:
        """Draw for each parent, uniformly, from itself and its nearest neighbours.

        Of the m samples that serve a label, ⌈degree·(m−1)⌉ are neighbours.

        Raises:
            APIError: the parents carry no places in this pool.
            RecipeError: the pool has no samples of a label.
        """
        parents = self._places(request.conditions)
        if request.degree == 0:
            return self._answer(parents)
        choice = np.empty(len(request), dtype=np.int64)
        numbers = uniforms(request.seeds, "neighbour")
        for label, items in _group(request.labels):
            pool = self._of_label(label)
            near = 1 + int(np.ceil(request.degree * (len(pool) - 1)))
            ranks = np.floor(numbers[items] * near).astype(np.int64)
            for start in range(0, len(items), BLOCK):
                block = slice(start, start + BLOCK)
                choice[items[block]] = self._rank(
                    pool,
                    parents[items[block]],
                    ranks[block],
                )
        return self._answer(choice)

    @cached_property
    def _squares(self) -> npt.NDArray[Any]:
        """The squared length of each vector, (m,)."""
        squares: npt.NDArray[Any] = np.square(self._vectors).sum(axis=1)
        return squares

    def _answer(self, places: Indices) -> Answer:
        return Answer(self._samples.take(places), Conditions({"pool": places}))

    def _of_label(self, label: str) -> Indices:
        """Return the places of the samples that serve a label.

        Raise RecipeError if there are none.
        """
        if self._by_label is None:
            return self._everyone
        if label not in self._by_label:
            names = ", ".join(f"'{name}'" for name in sorted(self._by_label)) or "none"
            raise RecipeError(
                f"The public pool has no {self._samples.noun} of label '{label}'; its labels are "
                f"{names}."
            )
        return self._by_label[label]

    def _places(self, conditions: Conditions) -> Indices:
        """Return the places that samples carry.

        Raise APIError if they carry none, or a place outside the pool.
        """
        if "pool" not in conditions:
            raise APIError("The samples carry no 'pool'. A pool varies only what it drew itself.")
        places = conditions["pool"].astype(np.int64)
        if places.size and not 0 <= places.min() <= places.max() < len(self):
            raise APIError(
                f"A sample's place lies outside the pool of {len(self)}. Give the pool it was "
                "drawn from."
            )
        return places

    def _rank(self, pool: Indices, parents: Indices, ranks: Indices) -> Indices:
        """Return for each parent the place in `pool` at its rank of nearness (0: the parent).

        Ties go to the first.
        """
        products = self._vectors[parents] @ self._vectors[pool].T
        if isinstance(products, csr_array):
            products = products.toarray()
        # Squared, but for the parent's own length, which is the same for the whole pool.
        distances = (self._squares[pool] - 2 * products).astype(np.int64)
        keys = distances * len(pool) + np.arange(len(pool))
        keys[parents[:, None] == pool[None, :]] = np.iinfo(np.int64).min
        places = [np.argpartition(key, rank)[rank] for key, rank in zip(keys, ranks, strict=True)]
        return pool[places]


def _group(labels: Sequence[str]) -> list[tuple[str, Indices]]:
    """Return each label, with the ascending indices at which it stands in `labels`."""
    unique, inverse = np.unique(np.array(labels, dtype=np.str_), return_inverse=True)
    return [(str(label), np.flatnonzero(inverse == k)) for k, label in enumerate(unique)]


# Images: nearness is the L2 distance of shrunken, blurred pixels on a grid of LEVELS steps. On that
# grid float32 arithmetic is exact, so neither the chunk nor the order of a sum can change who is
# whose neighbour.

SIDE = 16  # pixels to which images are shrunk for comparison
LEVELS = 64  # 16·16·3 squares of differences below 64 stay below 2²⁴, where float32 is exact


@plugin
class PublicImages(FromPool):
    """The first to try if you have public images like yours: votes choose among them, unchanged.

    RANDOM_API deals the pool out in random order, and anew once all of it is dealt, so that no
    image is twice among new samples of a label before every other has come once. VARIATION_API
    draws, uniformly, from the parent and its ⌈degree·(m−1)⌉ nearest neighbours of the m images that
    serve its label: degree 0 gives the parent itself, degree 1 a random draw. The condition `pool`
    counts files in the order of their paths.

    Attributes:
        path: a folder of images (searched through), or an .npz file with `images` (m×h×w or
            m×h×w×c) and, where `by_label`, `labels` (m).
        size: height and width in pixels; None: all images must have one size, which stays.
        resize: how images of another size are brought to `size`.
        channels: 1 (grey) or 3.
        by_label: draw for each label only from the images to which `labels.csv`, the subfolder, or
            the entries of `labels` give this label; false: from all.
        blur: standard deviation, in pixels, of the blur of the 16×16 images that are compared, ≥ 0.

    Raises:
        RecipeError: an argument is out of range, or the pool is missing, empty or not as declared.
        BadImage: a file of the pool cannot be decoded.
    """

    info = PluginInfo(
        hosts=(),
        machine_settings=("path",),  # a run knows the images themselves again
        degrees=(0.0,),  # votes choose among its images; neighbours by pixels gave no more
    )

    path: Path
    size: Count | None = None
    resize: Resize = "crop"
    channels: Literal[1, 3] = 3
    by_label: bool = False
    blur: Annotated[float, Field(ge=0, lt=SIDE)] = 1.0

    def __post_init__(self) -> None:
        square = None if self.size is None else (self.size, self.size)
        if self.path.is_dir():
            pixels, names = read_folder(
                self.path,
                square,
                self.resize,
                self.channels,
            )
        elif self.path.suffix.lower() == ".npz":
            pixels, names = read_arrays(
                self.path,
                square,
                self.resize,
                self.channels,
            )
        else:
            raise RecipeError(
                f"`path`: '{self.path}' is neither a folder nor an .npz file of public images."
            )
        self._pixels = pixels
        self._fill(Images(pixels), names if self.by_label else None)
        height, width = pixels.shape[1:3]
        self.info = replace(self.info, shape=(height, width, self.channels))

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, Pixels]]:
        """Yield the pool's images, decoded anew at `shape`: see `ReadsPublicSamples`."""
        return images_at(self.path, shape, rule or self.resize)

    @cached_property
    def _vectors(self) -> Vectors:
        return _comparable(self._pixels, self.blur)


def _comparable(pixels: Pixels, blur: float) -> Vectors:
    """Return small blurred images, as float32 m×d of whole numbers below LEVELS.

    They are shrunk to SIDE×SIDE pixels.
    """
    vectors = []
    for start in range(0, len(pixels), BLOCK):
        images = pixels[start : start + BLOCK].astype(np.float32)
        for axis in (1, 2):
            images = _shrink(images, axis)
        smooth = ndimage.gaussian_filter(images, (0, blur, blur, 0)) if blur else images
        vectors.append(np.rint(smooth * ((LEVELS - 1) / 255)).reshape(len(images), -1))
    return np.concatenate(vectors).astype(np.float32)


def _shrink(images: Vectors, axis: int) -> Vectors:
    """Return images with this axis brought to SIDE pixels.

    These are means of runs of pixels, or repeats if the axis is shorter.
    """
    length = images.shape[axis]
    if length <= SIDE:
        repeats: Vectors = images.take(np.arange(SIDE) * length // SIDE, axis=axis)
        return repeats
    starts = np.arange(SIDE + 1) * length // SIDE
    sums: Vectors = np.add.reduceat(images, starts[:-1], axis=axis)
    counts = np.diff(starts).astype(np.float32)
    sums /= np.expand_dims(counts, [k for k in range(images.ndim) if k != axis])
    return sums


# Texts: nearness is the cosine of TF-IDF vectors, with the words' rarity in the pool, on a grid of
# whole numbers: sums of their products are exact, so neither the chunk nor the order of a sum can
# change who is whose neighbour.

GRID = 2**12
"""Euclidean length, about, of a text's vector of whole numbers: products of two vectors stay below
2²⁵."""


@plugin
class PublicTexts(FromPool):
    """The first to try if you have public texts like yours, whole or in windows of `words` words.

    RANDOM_API deals the pool out in random order, and anew once all of it is dealt. VARIATION_API
    draws, uniformly, from the parent and its ⌈degree·(m−1)⌉ nearest neighbours among the m texts
    that serve its label: degree 0 gives the parent itself, degree 1 a random draw.

    Attributes:
        path: a .txt file (one text per line), a folder of .txt files, a table (CSV, TSV, JSON
            lines, Parquet), or a folder of tables.
        text_column: the column of tables that holds the texts.
        label_column: the column of tables that holds the labels, if `by_label`.
        encoding: encoding of the files.
        longest: most bytes of a text; longer texts are cut.
        words: cut each text into windows of this many words, each a text of the pool; a last window
            of less than half this length is left out, unless it is the only one. A .txt file is
            then one text. None: whole texts.
        by_label: draw for each label only from the texts to which `label_column`, or a folder's
            `labels.csv` or subfolder, gives this label; false: from all.

    Raises:
        RecipeError: an argument is out of range, or the pool is missing, empty or not as declared.
        BadSample: a text of the pool is not in its encoding.
        BadTable: a table of the pool cannot be read.
    """

    info = PluginInfo(
        modality="texts",
        hosts=(),
        machine_settings=("path",),  # a run knows the texts themselves again
        degrees=(0.0,),
    )

    path: Path
    text_column: str = "text"
    label_column: str | None = None
    encoding: str = UTF_8
    longest: Count = LONGEST
    words: Count | None = None
    by_label: bool = False

    def __post_init__(self) -> None:
        self._public = public_texts.TextFiles(
            self.path, self.text_column, self.label_column, self.encoding
        )
        texts = list(self._pieces())
        self._texts = Texts(np.array([text.utf8 for text in texts], dtype=f"S{self.longest}"))
        self._fill(self._texts, [text.label or "" for text in texts] if self.by_label else None)

    def public_samples(
        self, shape: Shape, rule: str | None
    ) -> Iterator[tuple[str, npt.NDArray[np.bytes_]]]:
        """Yield the texts of the files, and their windows: see `ReadsPublicSamples`."""
        for text in self._public.read(shape[0]):
            yield text.name, np.array(text.utf8)
        if self.words is not None:
            for text in self._pieces():
                yield text.name, np.array(shorten(text.utf8.decode(), shape[0]).rstrip())

    def _pieces(self) -> Iterator[PublicText]:
        """Yield the texts of the pool in order: whole texts, or windows of them."""
        if self.words is None:
            yield from self._public.read(self.longest)
            return
        for text in self._public.read(public_texts.WHOLE, whole=True):
            for i, window in enumerate(_windows(text.utf8.decode(), self.words), 1):
                yield PublicText(
                    f"window {i:,} of {text.name}",
                    text.label,
                    shorten(window, self.longest).rstrip(),
                )

    @cached_property
    def _squares(self) -> Int64Array:
        """Zeros: nearness is the cosine, for which all vectors have one length."""
        return np.zeros(len(self), np.int64)

    @cached_property
    def _vectors(self) -> csr_array:
        """Each text's TF-IDF weights as whole numbers, int64 m×words.

        The Euclidean length of a row is about GRID.
        """
        texts = [words_of(text) for text in self._texts.strings]
        rarity = Rarity.among(keys for keys, _, _ in texts)
        entries = [np.zeros(0, np.int64)]
        columns = [np.zeros(0, np.int64)]
        for keys, counts, _ in texts:
            weights = damp(counts) * rarity.of(keys)
            length = np.sqrt(np.square(weights).sum())
            if len(keys):  # else the length is 0
                weights *= GRID / length
            entries.append(np.rint(weights).astype(np.int64))
            columns.append(np.searchsorted(rarity.keys, keys))
        starts = np.cumsum([len(each) for each in entries])
        shape = (len(texts), max(len(rarity.keys), 1))
        return csr_array((np.concatenate(entries), np.concatenate(columns), starts), shape=shape)


def _windows(text: str, words: int) -> Iterator[str]:
    """Yield runs of `words` words, one after another.

    A last run under half that length is left out, unless it is the only one.
    """
    runs = text.split()
    for start in range(0, len(runs), words):
        part = runs[start : start + words]
        if start == 0 or 2 * len(part) >= words:
            yield " ".join(part)


# Rows of tables: nearness is that of the embedding `mixed`, in whole numbers.


@plugin
class PublicTable(FromPool):
    """If you have a public table with columns like yours: votes choose among its rows, unchanged.

    RANDOM_API deals the pool out in random order, and anew once all of it is dealt. VARIATION_API
    draws, uniformly, from the parent and its ⌈degree·(m−1)⌉ nearest neighbours among the m rows
    that serve its label: degree 0 gives the parent itself, degree 1 a random draw. A value that its
    column does not declare counts as for private rows. Rows that break a constraint are left out.

    Attributes:
        path: a table (CSV, TSV, JSON lines, Parquet, Arrow), or a folder of tables.
        columns: each column's kind and values; by default the private table's. The pool has all of
            them.
        constraints: what all rows obey; by default the private table's.
        label_column: the column that holds the labels, if `by_label`.
        encoding: encoding of text files.
        by_label: draw for each label only from the rows to which `label_column` gives this label;
            false: from all.

    Raises:
        RecipeError: `by_label` without `label_column`, or a pool without rows.
        BadSample: a row has no value in a column without missing values.
        BadTable: a table of the pool cannot be read.
    """

    info = PluginInfo(
        modality="table",
        hosts=(),
        machine_settings=("path",),  # a run knows the rows themselves again
        degrees=(0.0,),
    )

    path: Path
    columns: dict[str, Column]
    constraints: tuple[Declared, ...] = ()
    label_column: str | None = None
    encoding: str = UTF_8
    by_label: bool = False

    def __post_init__(self) -> None:
        if self.by_label and self.label_column is None:
            raise RecipeError(
                "`by_label` needs `label_column`. Name the column of the pool's labels."
            )
        self._columns = Columns(self.columns)
        self._label = [] if self.label_column is None else [self.label_column]
        read = list(self._read())
        whole = Rows(np.array([row for _, _, row in read], dtype=f"S{self._columns.width}"))
        breaks = Constraints(self._columns, self.constraints).breaks(self._columns.codes(whole))
        places = np.flatnonzero(~breaks.any(axis=1))
        if not len(places):
            raise RecipeError(
                f"path: '{self.path}' holds no rows that obey all constraints. Name a table of "
                "public rows."
            )
        self._rows = whole.take(places)
        self._fill(self._rows, [read[place][1] for place in places] if self.by_label else None)

    def public_samples(
        self, shape: Shape, rule: str | None
    ) -> Iterator[tuple[str, npt.NDArray[np.bytes_]]]:
        """Yield the pool's rows, read anew: see `ReadsPublicSamples`."""
        for place, _, row in self._read():
            yield place, np.array(row)

    def _read(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield each row's place, for messages, its label, and the row as private ones are read."""
        for file in public_texts.table_files(self.path):
            rows = public_texts.read_rows(
                file,
                [*self._columns, *self._label],
                self.encoding,
            )
            for number, row in enumerate(rows, 1):
                place = f"Row {number:,} of {file}"
                label = "".join(map(str, row[len(self._columns) :])).strip()
                yield place, label, self._columns.read(row[: len(self._columns)], place)

    @cached_property
    def _vectors(self) -> Float64Array:
        """Each row as whole numbers, m×D."""
        return self._columns.whole_vectors(self._columns.codes(self._rows))
