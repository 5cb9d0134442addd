"""A pool of public texts as the generator: RANDOM deals it out, VARIATION takes a neighbour.

Nearness is the cosine of TF-IDF vectors of words, rare as the pool has them, on a grid of whole numbers: sums of their
products are exact, so neither the chunk nor the order of a sum can change who is whose neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from adapters.pools import FromPool, Indices, Pool
from pe.data import public_texts
from pe.data.public_texts import PublicText
from pe.data.samples import Shape
from pe.data.text_decoding import UTF_8
from pe.data.text_vectors import Rarity, damped, words_of
from pe.data.texts import LONGEST, Texts, shortened
from pe.errors import RecipeError
from pe.plugins.protocols import PluginInfo

GRID = 2**12
"""Length of a text's vector in whole numbers: products of two stay below 2²⁵."""


class PublicTexts(FromPool):
    """RANDOM_API and VARIATION_API over a pool of public texts, whole or in windows of so many words.

    RANDOM_API deals the pool out in random order, and anew once all of it is dealt, so that no text is twice among
    new samples of a label before every other was there. VARIATION_API draws, uniformly, from the parent and its
    ⌈degree·(m−1)⌉ nearest neighbours, where m is the size of the pool: degree 0 gives the parent itself, degree 1 a
    random draw. An answer depends on each item's seed and condition alone.

    Conditions: `pool`, int64 (n,): the text's place in the pool.

    Args:
        path: a .txt file (a text a line), a folder of .txt files, a table (CSV, TSV, JSON lines, Parquet), or a folder
            of tables.
        text_column: of tables.
        label_column: of tables, where `by_label`.
        encoding: of the files.
        longest: bytes of the longest text; longer ones are cut.
        words: cut each text into windows of so many words, each of them a text of the pool; a last one of less than
            half as many is left out, unless it is the only one. A .txt file counts as a whole then. None: whole texts.
        by_label: draw for each label only from its own texts: those that `label_column`, or a folder's `labels.csv` or
            subfolder, give its name.

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

    def __init__(
        self,
        *,
        path: Path,
        text_column: str = "text",
        label_column: str | None = None,
        encoding: str = UTF_8,
        longest: int = LONGEST,
        words: int | None = None,
        by_label: bool = False,
    ) -> None:
        for name, number in (("longest", longest), ("words", words)):
            if number is not None and number < 1:
                raise RecipeError(f"{name} is {number}: it must be at least 1.")
        self._public = public_texts.PublicTexts(Path(path), text_column, label_column, encoding)
        self._longest, self._words = longest, words
        found = list(self._pieces())
        self._texts = Texts(np.array([text.utf8 for text in found], dtype=f"S{longest}"))
        names = [text.label or "" for text in found] if by_label else None
        self._pool = Pool(len(found), names, "public_texts", Texts.noun)
        self.info = replace(self.info, by_label=by_label, distinct=self._pool.distinct)

    def public_paths(self) -> tuple[Path, ...]:
        """The pool's place."""
        return (self._public.path,)

    def public_samples(self, shape: Shape, rule: str | None) -> Iterator[tuple[str, npt.NDArray[np.bytes_]]]:
        """The texts as they lie there, and their windows: see `pe.plugins.protocols.ReadsPublicSamples`."""
        for text in self._public.read(shape[0]):
            yield text.name, np.array(text.utf8)
        if self._words is not None:
            for text in self._pieces():
                yield text.name, np.array(shortened(text.utf8.decode(), shape[0]).rstrip())

    def _pieces(self) -> Iterator[PublicText]:
        """The texts of the pool, in order."""
        if self._words is None:
            yield from self._public.read(self._longest)
            return
        for text in self._public.read(public_texts.WHOLE, whole=True):
            for i, window in enumerate(_windows(text.utf8.decode(), self._words), 1):
                yield PublicText(f"window {i:,} of {text.name}", text.label, shortened(window, self._longest).rstrip())

    def _distances(self, parents: Indices, others: Indices) -> npt.NDArray[np.integer]:
        products = (self._vectors[parents] @ self._vectors[others].T).toarray()
        found: npt.NDArray[np.int64] = 2 * GRID * GRID - products
        return found

    @cached_property
    def _vectors(self) -> csr_array:
        """int64 m×words: each text's TF-IDF weights as whole numbers, of length about GRID."""
        found = [words_of(text) for text in self._texts.strings]
        rarity = Rarity.among(keys for keys, _, _ in found)
        entries, columns = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for keys, counts, _ in found:
            weights = damped(counts) * rarity.of(keys)
            length = np.sqrt(np.square(weights).sum())
            entries.append(np.rint(weights * (GRID / length)).astype(np.int64) if len(keys) else entries[0])
            columns.append(np.searchsorted(rarity.keys, keys))
        starts = np.cumsum([len(each) for each in entries])
        shape = (len(found), max(len(rarity.keys), 1))
        return csr_array((np.concatenate(entries), np.concatenate(columns), starts), shape=shape)

    def _samples(self, places: Indices) -> Texts:
        return self._texts.take(places)


def _windows(text: str, words: int) -> Iterator[str]:
    """Runs of so many words, one after another; a last one of less than half as many only where it is the first."""
    found = text.split()
    for start in range(0, len(found), words):
        part = found[start : start + words]
        if start == 0 or 2 * len(part) >= words:
            yield " ".join(part)
