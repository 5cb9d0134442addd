"""How texts are evaluated: their words, their lengths, and what of private records stands in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pe.data.samples import Samples, distinct
from pe.data.texts import Texts, plain
from pe.errors import RecipeError
from pe.evaluation.chance import beyond_chance
from pe.evaluation.classifiers import LINEAR_PROBE, ON_WORDS
from pe.evaluation.frechet import Reals
from pe.evaluation.methods import Mask, Methods, Values, declarations
from pe.evaluation.words import Hashes, runs, words
from pe.private.look import text_kind_at
from pe.private.source import PrivateSource, read_source
from pe.private.text_source import TextSource
from pe.private.text_table import TextTable

LEAST_WORDS = 3
"""A text of fewer words shows nothing of a record: many say the same."""
RUN = 8
"""Words of a run that a generated text and a record may have in common."""
_LABEL_COLUMN = "label"  # of tables, where the run has no column of its own to name
LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def text_source_at(place: str, private: PrivateSource, labelled: bool = True) -> PrivateSource:
    """The source of real texts at `place`, to be read as the run reads its private records.

    Length, cut, encoding and classes are the run's, and so is what else a source of the same kind declares; a table for
    a run over a folder has the columns text and label.

    Args:
        place: a folder of .txt files, a table, or a folder of tables.
        private: the run's own source.
        labelled: whether its labels are read, if the run has any.

    Raises:
        RecipeError: nothing is there.
    """
    assert isinstance(private, TextSource)
    path, classes = Path(place), (private.class_names or ()) if labelled else ()
    if not path.exists():
        raise RecipeError(f"{place} does not exist: name a folder of .txt files, a table, or a folder of tables.")
    kind = text_kind_at(path)
    if kind == private.kind:
        declared = declarations(private)
    else:
        declared = {"longest": private.longest, "cut": private.cut, "encoding": private.encoding}
        if kind == TextTable.kind:
            declared["label_column"] = _LABEL_COLUMN
    if kind == TextTable.kind and not classes:
        declared["label_column"] = None
    return read_source(declared | {"kind": kind, "path": path, "classes": classes}, place)


def contents(sets: Mapping[str, Samples], reference: Samples) -> Values:
    """Lengths and words of each set, and of the reference set beside them.

    Guarantee: none. The result is confidential.

    Returns:
        set → words (their number: quantiles at LEVELS), bytes (likewise), vocabulary (different words), covered (share
        of the reference's words, each as often as it is there, that the set has), divergence (Jensen and Shannon's, of
        the words' shares from the reference's, in bits, 0 to 1).
    """
    real = _counts(reference)
    found = {name: _content(samples, real) for name, samples in (*sets.items(), ("reference", reference))}
    return {"texts": {"levels": list(LEVELS), "sets": found}}


def traces(generated: Samples, private: Samples, heldout: Samples, canaries: Sequence[str]) -> Values:
    """Runs of RUN words that generated texts have in common with private records; and what became of canaries.

    Guarantee: none. The result is confidential.
    """
    first, _ = distinct(generated)
    made, unseen = (_shared(each, private) for each in (generated.take(first), heldout))
    beyond = beyond_chance(int((made > 0).sum()), len(made), int((unseen > 0).sum()), len(unseen))
    overlap: Values = {
        "run": RUN,
        "generated": len(made),
        "with_a_run": int((made > 0).sum()),
        "share_of_runs": float(made.mean()),
        "heldout": len(unseen),
        "heldout_with_a_run": int((unseen > 0).sum()),
        "heldout_share_of_runs": float(unseen.mean()),
        "beyond_chance": beyond,
    }
    told = []
    if beyond:
        told.append(
            f"{overlap['with_a_run']:,} of {len(made):,} different generated texts share {RUN} words in a row with a "
            f"private record, more than chance brings ({overlap['heldout_with_a_run']:,} of {len(unseen):,} held-out "
            "texts do): look at the nearest pairs before you share them."
        )
    values: Values = {"overlap": overlap}
    if canaries:
        values["canaries"] = found = [_canary(each, generated, private) for each in canaries]
        leaked = sum(one["generated"] > 0 for one in found)
        if leaked:
            told.append(f"{leaked:,} of {len(canaries):,} canaries stand in generated texts: do not share this run.")
    return values | {"warnings": told}


def _content(samples: Samples, real: Counter[str]) -> Values:
    counts = _counts(samples)
    lengths = [len(words(text)) for text in _strings(samples)]
    total, own = sum(real.values()), sum(counts.values())
    covered = sum(count for word, count in real.items() if word in counts)
    return {
        "samples": len(samples),
        "words": np.quantile(lengths, LEVELS).tolist(),
        "bytes": np.quantile(np.strings.str_len(samples.array), LEVELS).tolist(),
        "vocabulary": len(counts),
        "covered": covered / total if total else None,
        "divergence": _divergence(counts, real) if total and own else None,
    }


def _divergence(one: Counter[str], other: Counter[str]) -> float:
    """Jensen and Shannon's divergence of two distributions of words, in bits."""
    names = [*one.keys() | other.keys()]
    p, q = (np.array([counts[name] for name in names]) / sum(counts.values()) for counts in (one, other))
    middle = (p + q) / 2
    parts = [float((each[each > 0] * np.log2(each[each > 0] / middle[each > 0])).sum()) for each in (p, q)]
    return sum(parts) / 2


def _counts(samples: Samples) -> Counter[str]:
    return Counter(word for text in _strings(samples) for word in words(text))


def _shared(samples: Samples, private: Samples) -> Reals:
    """For each text the share of its runs of RUN words that stand in a private record, float64 (n,)."""
    known = np.unique(np.concatenate([*_runs(private), np.zeros(0, np.uint64)]))
    return np.array([float(np.isin(each, known).mean()) if len(each) else 0.0 for each in _runs(samples)])


def _runs(samples: Samples) -> list[Hashes]:
    return runs([words(text) for text in _strings(samples)], RUN)


def _canary(canary: str, generated: Samples, private: Samples) -> Values:
    """In how many texts it stands, whatever case and spaces are; the longest part of it that a generated one has."""
    wanted = words(plain(canary))
    made = [_joined(words(text)) for text in _strings(generated)]
    longest = 0
    for start in range(len(wanted)):
        while start + longest < len(wanted):
            part = _joined(wanted[start : start + longest + 1])
            if not any(part in text for text in made):
                break
            longest += 1
    whole = _joined(wanted)
    return {
        "canary": canary,
        "private": sum(whole in _joined(words(text)) for text in _strings(private)),
        "generated": sum(whole in text for text in made),
        "longest_part": longest / len(wanted) if wanted else None,
    }


def _joined(tokens: Sequence[str]) -> str:
    return f" {' '.join(tokens)} "


def _shows(samples: Samples) -> Mask:
    """Which texts have LEAST_WORDS words or more."""
    return np.array([len(words(text)) >= LEAST_WORDS for text in _strings(samples)], bool)


def _pairs(generated: Samples, private: Samples, distances: Reals) -> tuple[str, bytes]:
    """JSON: a list of pairs, each with the generated text, the private one and their distance."""
    texts = zip(_strings(generated), _strings(private), distances.tolist(), strict=True)
    pairs = [{"generated": made, "private": record, "distance": apart} for made, record, apart in texts]
    return "json", json.dumps(pairs, ensure_ascii=False, indent=1).encode()


def _strings(samples: Samples) -> list[str]:
    assert isinstance(samples, Texts)
    return samples.strings


TEXTS = Methods(
    classifiers=(LINEAR_PROBE, *ON_WORDS),
    equality="character by character",
    shows=_shows,
    comparable=lambda ours, theirs: True,
    pairs=_pairs,
    source_at=text_source_at,
    contents=contents,
    traces=traces,
)
