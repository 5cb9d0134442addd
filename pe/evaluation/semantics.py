"""SDS, the semantic similarity of two sets (PrivImage, Li et al. 2024), with word vectors from a file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pe.errors import RecipeError
from pe.evaluation.frechet import Reals

Words = Mapping[str, Reals]

_PARTS = re.compile(r"[\s_\-/,]+")


def sds(first: Mapping[str, float], second: Mapping[str, float], vectors: Words) -> float:
    """Σᵢ Σₖ w1ᵢ w2ₖ cos(V(s1ᵢ), V(s2ₖ)) over semantics s and their shares w, which are made to sum to 1.

    Args:
        first: semantics (a class name, say) → how often it comes; ≥ 0, not all 0.
        second: the same of the other set.
        vectors: `word_vectors` of all their names.

    Returns:
        In [−1, 1]; a zero vector is at a right angle to every vector.
    """
    one, other = (_direction(shares, vectors) for shares in (first, second))
    return float(one @ other)


def _direction(shares: Mapping[str, float], vectors: Words) -> Reals:
    """Σᵢ wᵢ V(sᵢ)/‖V(sᵢ)‖: the double sum is the inner product of two of these."""
    total = sum(shares.values())
    parts = []
    for name, share in shares.items():
        length = np.linalg.norm(vectors[name])
        parts.append(share / total * vectors[name] / (length or 1.0))
    total_direction: Reals = np.sum(parts, axis=0)
    return total_direction


def word_vectors(path: Path, names: list[str]) -> Words:
    """The vectors of `names` from a file; a name of several words that is not there as one is their mean.

    Args:
        path: .npz with the arrays `words` (n,) and `vectors` (n, d), or text with one word and its d numbers
            a line (GloVe's and word2vec's text form, the latter's first line included).
        names: the wanted ones; capitals do not matter where the file has none.

    Raises:
        RecipeError: the file cannot be read, or lacks a word.
    """
    wanted = {variant for name in names for part in (name, *_PARTS.split(name)) for variant in (part, part.lower())}
    try:
        found = _from_npz(path, wanted) if path.suffix == ".npz" else _from_text(path, wanted)
    except (OSError, ValueError, KeyError) as error:
        raise RecipeError(f"{path} cannot be read as word vectors: {error}.") from error
    return {name: _vector(name, found, path) for name in names}


def _vector(name: str, found: Words, path: Path) -> Reals:
    for whole in (name, name.lower()):
        if whole in found:
            return found[whole]
    parts = [part if part in found else part.lower() for part in _PARTS.split(name) if part]
    missing = next((part for part in parts if part not in found), None)
    if missing is not None or not parts:
        raise RecipeError(f"{path} has no vector for '{missing or name}': add it, or take another file.")
    mean: Reals = np.mean([found[part] for part in parts], axis=0)
    return mean


def _from_npz(path: Path, wanted: set[str]) -> Words:
    with np.load(path, allow_pickle=False) as file:
        words, vectors = file["words"], file["vectors"]
    if words.ndim != 1 or vectors.ndim != 2 or len(words) != len(vectors):
        raise ValueError("it needs the arrays words (n,) and vectors (n, d)")
    return {str(word): vectors[i].astype(np.float64) for i, word in enumerate(words) if str(word) in wanted}


def _from_text(path: Path, wanted: set[str]) -> Words:
    found: dict[str, Reals] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            word, *values = line.split()
            header = number == 0 and len(values) == 1  # word2vec's: how many words, and d
            if word in wanted and not header:
                found[word] = np.array(values, dtype=np.float64)
    if len({vector.shape for vector in found.values()}) > 1:
        raise ValueError("its vectors differ in length")
    return found
