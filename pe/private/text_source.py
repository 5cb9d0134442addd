"""What every source of private texts declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from pe.data.samples import Array, Samples, Shape
from pe.data.text_decoding import MARGIN, UTF_8, check_encoding, decode_text
from pe.data.texts import LONGEST, Texts
from pe.private.source import PrivateSource, source


@source
class TextSource(PrivateSource):
    """Private texts, by the rules of `pe.data.text_decoding`.

    Attributes:
        longest: bytes of UTF-8 that a text may have.
        cut: a longer text is cut; otherwise it is a bad record.
        encoding: of the files, as Python names it; UTF-8 may begin with a byte order mark.
    """

    _: KW_ONLY
    longest: Annotated[int, Field(strict=True, ge=1, le=100_000)] = LONGEST
    cut: Annotated[bool, Field(strict=True)] = False
    encoding: Annotated[str, AfterValidator(check_encoding)] = UTF_8

    modality: ClassVar[type[Samples]] = Texts

    @property
    def shape(self) -> Shape:
        """(longest,)."""
        return (self.longest,)

    def read(self, record: bytes | str | Path, name: str) -> Array:
        """The text of a record.

        Raises:
            BadSample: it is none.
        """
        return np.array(
            decode_text(record, longest=self.longest, cut=self.cut, encoding=self.encoding, name=name), np.bytes_
        )

    def decoding(self) -> Callable[[], object]:
        """What decodes the largest text that is read: letters in parts, which the normal form joins."""
        text = "e\u0301" * self.longest
        decode = partial(decode_text, longest=self.longest, cut=True, name="A text")
        return partial(decode, text.encode()[: MARGIN * self.longest])
