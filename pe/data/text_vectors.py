"""Pieces of texts: words, and runs of three characters, each with a weight.

A text's pieces depend on that text alone, come in one order, and are the same on every machine.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from pe.data.arrays import Float64Array, Int64Array, UInt64Array

Keys = UInt64Array
Weights = Float64Array

_WORD = re.compile(r"\w+")
# letters of words that count least, and in full
_SHORT = 2
_FULL = 6
_LEAST = 0.05
_IS_RUN = np.uint64(2**63)


def words_of(text: str) -> tuple[Keys, Weights, Weights]:
    """Return a text's words: ascending keys, their counts, and the worth of each.

    The worth follows from a word's length: 0.05 for one or two letters, 1 from six on. Frequent
    words of a language are short (Zipf's law of abbreviation), so length stands in for rarity where
    no public texts tell it.
    """
    counts: dict[str, int] = {}
    for word in _WORD.findall(text.lower()):
        counts[word] = counts.get(word, 0) + 1
    keys = np.array([zlib.crc32(word.encode()) for word in counts], np.uint64)
    lengths = np.array([len(word) for word in counts], np.float64)
    order = np.argsort(keys, kind="stable")
    worth = np.clip((lengths - _SHORT) / (_FULL - _SHORT), _LEAST, 1)
    return keys[order], np.array([*counts.values()], np.float64)[order], worth[order]


def runs_of(text: str) -> tuple[Keys, Weights]:
    """Return a text's runs of three characters: ascending keys, and their counts.

    White space counts as one space. Runs serve languages that put no space between words, words in
    several forms, and texts without a word.
    """
    letters = np.frombuffer(" ".join(text.lower().split()).encode("utf-32-le"), np.uint32).astype(
        np.uint64
    )
    ends = np.pad(letters, 1, constant_values=ord(" "))
    runs = ends[:-2] << np.uint64(42) | ends[1:-1] << np.uint64(21) | ends[2:] | _IS_RUN
    keys, counts = np.unique(runs, return_counts=True)
    return keys, counts.astype(np.float64)


def damp(counts: Weights) -> Weights:
    """Return 1 + ln(count): a word that is there ten times does not tell ten times as much."""
    return 1 + np.log(counts)


@dataclass(frozen=True)
class Rarity:
    """Rarity of pieces among public texts."""

    keys: Keys  # of the pieces, ascending
    documents: Int64Array  # number of texts with each piece
    total: int  # number of texts

    @classmethod
    def among(cls, texts: Iterable[Keys]) -> Rarity:
        """Return the rarity of pieces among `texts`, each given by its pieces, once each."""
        pieces = list(texts)
        keys, documents = np.unique(
            np.concatenate([np.zeros(0, np.uint64), *pieces]),
            return_counts=True,
        )
        return cls(keys, documents.astype(np.int64), len(pieces))

    def of(self, keys: Keys) -> Weights:
        """Return ln((1 + texts) / (1 + texts with the piece)) + 1, float64 (n,).

        A piece that no public text has is rarest.
        """
        if not len(self.keys):
            return np.ones(len(keys))
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        documents = np.where(self.keys[places] == keys, self.documents[places], 0)
        return np.log((1 + self.total) / (1 + documents)) + 1
