"""WordLlama: a text as the mean of its word pieces' vectors, which tell what words mean.

The vectors, trained on the token vectors of Llama 2 and Phi 3, are a file of the package wordllama
(MIT); no code of it is run. Pieces are weighed by how rare they are among public texts, and the
public texts' mean is taken off (Arora et al. 2017). Each vector is a sum over the text's own
pieces, in a fixed order: so it is the same to the last bit whichever texts are beside it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from embeddings.tfidf import WordsEmbedding, to_length_1
from pe.data.arrays import Float32Array, Float64Array
from pe.data.text_vectors import Keys, Rarity, Weights, damp
from pe.plugins.devices import import_library
from pe.plugins.specs import plugin
from pe.plugins.weights import Packaged

_EXTRA = "words"
_PURPOSE = "The embedding 'wordllama'"
VECTORS = Packaged(
    package="wordllama",
    name="weights/l2_supercat_256.safetensors",
    sha256="64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    extra=_EXTRA,
)
TOKENIZER = Packaged(
    package="wordllama",
    name="tokenizers/l2_supercat_tokenizer_config.json",
    sha256="93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
    extra=_EXTRA,
)

# pieces before the first that is no byte; the others stand in the order in which they were merged
_BYTES = 258
_FREQUENT = 1000  # a piece of this rank weighs half as much as the rarest


@plugin
class WordLlama(WordsEmbedding):
    """For texts by their meaning, without a network. Its vectors come with the extra.

    Texts → 256 numbers, the weighted mean of WordLlama's vectors of the text's word pieces.

    Without `public`, a piece counts by its rank in the vocabulary, which tells roughly how rare it
    is.
    """

    kind = "wordllama"

    @classmethod
    def weights_here(cls) -> bool:
        """Return true if the package with the vectors is installed."""
        return VECTORS.is_installed()

    def _vector(self, text: str) -> Float64Array:
        pieces, counts = self._pieces(text)
        return self._mean(pieces, counts) - self._centre if len(pieces) else 0 * self._centre

    def _pieces(self, text: str) -> tuple[Keys, Weights]:
        """Return the text's word pieces, ascending numbers, and their counts."""
        pieces, counts = np.unique(
            self._tokenizer.encode(text, add_special_tokens=False).ids, return_counts=True
        )
        return pieces.astype(np.uint64), counts.astype(np.float64)

    def _mean(self, pieces: Keys, counts: Weights) -> Float64Array:
        """Return the pieces' weighted mean, brought to length 1."""
        weights = damp(counts) * (self._rarity.of(pieces) if self._texts else _worth(pieces))
        return to_length_1(
            (weights[:, None] * self._vectors[pieces]).sum(axis=0)
        )  # row by row, in float64

    @cached_property
    def _public_pieces(self) -> list[tuple[Keys, Weights]]:
        return [self._pieces(text) for text in self._texts]

    @cached_property
    def _rarity(self) -> Rarity:
        return Rarity.among(pieces for pieces, _ in self._public_pieces)

    @cached_property
    def _centre(self) -> Float64Array:
        """The public texts' mean vector, float64 (d,). 0 without public texts."""
        means = [
            self._mean(pieces, counts) for pieces, counts in self._public_pieces if len(pieces)
        ]
        return np.mean(means, axis=0) if means else np.zeros(self._vectors.shape[1])

    @cached_property
    def _vectors(self) -> Float32Array:
        """Each piece's vector, float32 (pieces, d)."""
        import_library("safetensors", _EXTRA, _PURPOSE)
        from safetensors.numpy import load_file

        vectors: npt.NDArray[np.float16] = load_file(VECTORS.find(_PURPOSE))["embedding.weight"]
        return vectors.astype(np.float32)

    @cached_property
    def _tokenizer(self) -> Any:
        return import_library("tokenizers", _EXTRA, _PURPOSE).Tokenizer.from_file(
            str(TOKENIZER.find(_PURPOSE))
        )


def _worth(pieces: Keys) -> Weights:
    """Return weights by rank: a/(a + share) (Arora et al.), with shares by Zipf's law."""
    ranks: Weights = np.maximum(pieces.astype(np.float64) - _BYTES, 1)
    return ranks / (ranks + _FREQUENT)
