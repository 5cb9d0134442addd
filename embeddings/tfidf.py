"""TF-IDF: a text as its words and runs of characters, weighted by how rare they are.

No model. The pieces are hashed with signs into a vector of fixed length (Weinberger et al. 2009),
or projected by a truncated SVD of public texts (latent semantic analysis). Each vector is a sum
over the text's own pieces, in a fixed order: so it is the same to the last bit whichever texts are
beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from pe.data.arrays import BoolArray, Float64Array
from pe.data.samples import Samples, Shape, mix
from pe.data.tables import TextFiles
from pe.data.text_vectors import Keys, Rarity, Weights, damp, runs_of, words_of
from pe.data.texts import UTF_8, Texts
from pe.errors import RecipeError
from pe.plugins.embed import expect
from pe.plugins.protocols import PluginInfo, Vectors
from pe.plugins.settings import Count
from pe.plugins.specs import plugin

DIMENSIONS = {"hash": 1024, "svd": 256}
SVD_TEXTS = 4000
"""Most public texts that an SVD is fitted on, evenly chosen: its time grows with their number."""
SVD_PIECES = 30_000
"""Most pieces that the SVD knows: those that occur in the most public texts."""

_LONGEST = 2**16  # bytes of a public text that count
_RUNS = {
    False: 0.25,
    True: 0.5,
}  # the weight of runs beside words, without public texts and with them
# weight of a piece that the SVD does not know, hashed so that texts without a known one differ
_UNKNOWN = 0.1
_SMALLEST = 1e-8  # smaller entries would make denormal numbers in products


@plugin
class WordsEmbedding:
    """An embedding of texts by their words, whose rarity public texts tell.

    Attributes:
        public: public texts, like the private ones, that tell how rare each word is: a .txt file (a
            text a line), a folder of .txt files, a table (CSV, TSV, JSON lines, Parquet), or a
            folder of tables.
        text_column: the column of the texts, in tables.
        encoding: of the public texts' files.
        batch_size: texts per call.

    Raises:
        RecipeError: a setting is out of range, or `public` names no file or folder of texts.
    """

    kind: ClassVar[str]
    info = PluginInfo(
        modality="texts", hosts=(), machine_settings=("public",)
    )  # a run knows the texts again

    public: Path | None = None
    text_column: str = "text"
    encoding: str = UTF_8
    batch_size: Count = 256

    def __post_init__(self) -> None:
        self._public = None
        if self.public is not None:
            self._public = TextFiles(self.public, self.text_column, None, self.encoding)
            self._public.check()

    def embed(self, samples: Samples) -> Vectors:
        """Return float32, n×d, finite: each row has length 1 and depends on its own text alone.

        The row of an empty text is 0.

        Raises:
            ContractError: the samples are not texts.
            MissingDependency: a library is not installed.
            PEError: the public texts cannot be read.
        """
        rows = [
            to_length_1(self._vector(text)) for text in expect(samples, Texts, self.kind).strings
        ]
        return np.array(rows, np.float32).reshape(len(rows), -1)

    def public_paths(self) -> tuple[Path, ...]:
        """Return the place of the public texts, if there are any."""
        return () if self._public is None else (self._public.path,)

    def public_samples(
        self, shape: Shape, rule: str | None
    ) -> Iterator[tuple[str, npt.NDArray[np.bytes_]]]:
        """Return the public texts, cut to `shape`: see `protocols.ReadsPublicSamples`."""
        if self._public is not None:
            for text in self._public.read(shape[0]):
                yield text.name, np.array(text.utf8)

    @cached_property
    def _texts(self) -> list[str]:
        return (
            []
            if self._public is None
            else [text.utf8.decode() for text in self._public.read(_LONGEST)]
        )

    def _vector(self, text: str) -> Float64Array:
        """Return the text's vector, float64 (d,), of any length."""
        raise NotImplementedError


def to_length_1(vector: Float64Array) -> Float64Array:
    """Return the vector, brought to length 1 unless it is 0, without tiny entries."""
    length = np.sqrt(np.square(vector).sum())
    vector = vector / length if length > 0 else vector
    return np.where(np.abs(vector) < _SMALLEST, 0, vector)


@plugin
class TfIdf(WordsEmbedding):
    """For texts by their words, without any model.

    Texts → hashed or projected TF-IDF vectors of length 1.

    Without `public`, a word counts by its length, which tells roughly how rare it is.

    Attributes:
        projection: `hash`, or `svd`, fitted on the public texts.
        dimensions: length of a vector; None: 1,024 for hash, 256 for svd. With svd, fewer than
            there are public texts.
    """

    kind = "tfidf"
    projection: Literal["hash", "svd"] = "hash"
    dimensions: Count | None = None

    def __post_init__(self) -> None:
        if self.projection == "svd" and self.public is None:
            raise RecipeError(
                "projection is 'svd', which is fitted on public texts: name them by public, or "
                "take hash."
            )
        super().__post_init__()

    @property
    def _dimensions(self) -> int:
        return self.dimensions or DIMENSIONS[self.projection]

    def _vector(self, text: str) -> Float64Array:
        keys, weights = self._weigh(text)
        if self.projection == "svd":
            return self._project(keys, weights)
        return _hash(keys, weights, self._dimensions)

    def _weigh(self, text: str) -> tuple[Keys, Weights]:
        """Return the text's pieces and their TF-IDF weights."""
        (words, counts, worth), (runs, run_counts) = words_of(text), runs_of(text)
        keys = np.concatenate([words, runs])
        weights = np.concatenate([damp(counts), _RUNS[self._public is not None] * damp(run_counts)])
        if self._public is None:
            return keys, weights * np.concatenate([worth, np.ones(len(runs))])
        return keys, weights * self._rarity.of(keys)

    @cached_property
    def _rarity(self) -> Rarity:
        return Rarity.among(
            np.concatenate([words_of(text)[0], runs_of(text)[0]]) for text in self._texts
        )

    def _project(self, keys: Keys, weights: Weights) -> Float64Array:
        pieces, directions = self._directions
        places, hit = _look_up(pieces, keys)
        vector = (weights[hit, None] * directions[places[hit]]).sum(
            axis=0
        )  # row by row, whatever the memory's layout
        rest: Float64Array = _hash(keys[~hit], weights[~hit], directions.shape[1])
        return np.asarray(vector + _UNKNOWN * rest / np.sqrt(directions.shape[1]))

    @cached_property
    def _directions(self) -> tuple[Keys, Float64Array]:
        """Return the SVD's pieces, ascending, and their projection.

        The projection holds each piece's entries in the right singular vectors, over the singular
        values.
        """
        from scipy.sparse import csr_array
        from scipy.sparse.linalg import svds

        texts = self._texts
        rarity = self._rarity
        pieces = np.sort(rarity.keys[np.argsort(-rarity.documents, kind="stable")[:SVD_PIECES]])
        columns = []
        entries = []
        starts = [0]
        for i in np.unique(np.linspace(0, len(texts) - 1, min(len(texts), SVD_TEXTS)).astype(int)):
            keys, weights = self._weigh(texts[i])
            places, hit = _look_up(pieces, keys)
            columns.append(places[hit])
            entries.append(weights[hit] / max(float(np.linalg.norm(weights[hit])), _SMALLEST))
            starts.append(starts[-1] + int(hit.sum()))
        shape = (len(starts) - 1, len(pieces))
        rank = min(self._dimensions, min(shape) - 1)
        if rank < 1:
            raise RecipeError(
                f"{self.public_paths()[0]} holds too few public texts for an SVD: take projection: "
                "hash."
            )
        table = csr_array(
            (np.concatenate(entries), np.concatenate(columns), np.array(starts)), shape=shape
        )
        _, values, rows = svds(table, k=rank, v0=np.ones(min(shape)), solver="arpack")
        rows = rows[values > _SMALLEST * values.max()]
        values = values[values > _SMALLEST * values.max()]
        largest = np.abs(rows).argmax(axis=1)
        signs = np.sign(
            rows[np.arange(len(rows)), largest]
        )  # either sign is right: the same on every machine
        return pieces, np.ascontiguousarray((rows * (signs / values)[:, None]).T)


def _look_up(pieces: Keys, keys: Keys) -> tuple[npt.NDArray[np.intp], BoolArray]:
    """Return each key's place among the pieces, and true if it is one of them."""
    places = np.minimum(np.searchsorted(pieces, keys), len(pieces) - 1)
    return places, pieces[places] == keys


def _hash(keys: Keys, weights: Weights, dimensions: int) -> Float64Array:
    """Sum the weights, with signs, at places that follow from the keys: float64 (dimensions,)."""
    hashes = mix(keys)
    signs = np.where(hashes >> np.uint64(63), 1.0, -1.0)
    places = (hashes % np.uint64(dimensions)).astype(np.int64)
    return np.bincount(places, weights * signs, minlength=dimensions).astype(np.float64)
