"""Real samples for an evaluation: the test set, a reference set, the private records. All of it confidential."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pe.data.samples import Samples
from pe.errors import PrivateDataError, RecipeError
from pe.evaluation.labelled import Labelled
from pe.evaluation.memorisation import are_among
from pe.evaluation.methods import methods_of
from pe.private.dataset import PrivateDataset, sample_digest
from pe.private.source import PrivateSource

_TOGETHER = 256
LEAST_LEFT = 0.1
"""Share of a test set that must be held out; of one with less, the rest is no test set either."""
_WORDS = (
    ("the private records", "its records"),
    ("The private records", "its records"),
    (
        "set private.resize to crop, fit or stretch, or private.size to what all images have",
        "bring the set to the run's size",
    ),
)


@dataclass(frozen=True, eq=False)
class RealSet:
    """Real samples with their classes. Confidential, if they are private.

    Attributes:
        kind: of the source.
        path: where it is; the source's kind, if it has no place.
        content: the samples that can be read.
        sha256: of all samples as the run reads them, with their classes, in whatever order, hexadecimal.
        left_out: samples that were taken out of it because they are not held out.
    """

    kind: str
    path: str
    content: Labelled
    sha256: str
    left_out: int = 0


def read_real(source: PrivateSource, what: str, classes: tuple[str, ...]) -> RealSet:
    """All samples of a source, in memory. Confidential, if they are private.

    Args:
        source: where they are.
        what: how messages call the set: 'test set'.
        classes: the run's public class list; of one class, labels do not matter.

    Raises:
        RecipeError: the set does not fit the run: other classes, sizes, channels, no labels; or it has fewer
            than two samples.
    """
    place = str(getattr(source, "path", source.kind))
    try:
        dataset = source.open()
        dataset.check()
        content = _content(dataset)
    except PrivateDataError as error:
        raise RecipeError(
            f"The {what} {place} does not fit the run: {_of_this_set(str(error), source.modality.noun)}"
        ) from error
    if len(content) < 2:
        raise RecipeError(
            f"The {what} {place} has fewer than two {source.modality.noun}: an evaluation needs two or more."
        )
    if len(classes) == 1:
        content = Labelled(content.samples, np.zeros_like(content.labels))
    return RealSet(source.kind, place, content, _digest(content))


def leave_out(test: RealSet, known: Mapping[str, Samples]) -> tuple[RealSet, str]:
    """The test set without samples that equal a known one, and a sentence on how many they were.

    Args:
        test: the test set; what shows nothing of a record, as an image of one colour, stays in it.
        known: samples that are not held out, by what they are, in the plural.

    Returns:
        The test set, and the sentence; `test` itself and "" if all of its samples are held out.

    Raises:
        RecipeError: fewer than two samples, or LEAST_LEFT of them, are left.
    """
    among = {what: are_among(test.content.samples, samples) for what, samples in known.items()}
    left = np.flatnonzero(~np.logical_or.reduce([*among.values()]))
    noun, equality = test.content.samples.noun, methods_of(test.content.samples).equality
    size, gone = len(test.content), len(test.content) - len(left)
    if not gone:
        return test, ""
    which = ", ".join(f"{what} ({mask.sum():,})" for what, mask in among.items() if mask.any())
    if len(left) < max(2, LEAST_LEFT * size):
        raise RecipeError(
            f"The test set {test.path} tests nothing: {gone:,} of its {size:,} {noun} are, {equality}, among the "
            f"{which}; name {noun} that no run has seen."
        )
    sentence = (
        f"{gone:,} of the {size:,} test {noun} are left out, because they are, {equality}, among the {which}: "
        f"{len(left):,} are left."
    )
    return replace(test, content=test.content.take(left), left_out=test.left_out + gone), sentence


def _content(dataset: PrivateDataset) -> Labelled:
    """The samples that can be read, in order."""
    blank, _ = dataset.padding(1)
    parts, valid = [blank.array[:0]], [np.zeros(0, bool)]
    for samples, ok in dataset.blocks(_TOGETHER):
        parts.append(samples.array[ok])
        valid.append(ok)
    kept = np.concatenate(valid)[: len(dataset)]
    return Labelled(dataset.modality(np.concatenate(parts)), dataset.labels[kept])


def _digest(content: Labelled) -> str:
    pairs = zip(content.samples.array, content.labels, strict=True)
    return hashlib.sha256(
        b"".join(sorted(sample_digest(sample) + label.tobytes() for sample, label in pairs))
    ).hexdigest()


def _of_this_set(message: str, noun: str) -> str:
    """A source's message, which speaks of private records, as one about the set that it reads here."""
    one = noun.removesuffix("s")
    own = ((f"A private {one}", f"The {one}"), (f"private {one}", one), ("private record", one))
    for theirs, ours in (*_WORDS, *own):
        message = message.replace(theirs, ours)
    return message
