"""Texts, a modality: UTF-8 of limited length. Also the rules for reading texts from outside.

Nothing in a text is executed. The rules, in the order in which they apply:

1. No more than MARGIN times the longest text is read, or normalised: a larger text is refused, or
   cut there.
2. Bytes are decoded as the declared encoding says; UTF-8 may begin with a byte order mark. Bytes
   that the encoding does not know, and halves of surrogate pairs, are refused.
3. A NUL is refused: the bytes are no text, or text of another encoding. So are more than MOST_MARKS
   combining characters in a row, over which rule 4 would take very long.
4. The text is brought to normal form C, and its lines end by line feeds. Other control characters
   but tabs are left out (`plain`), and so is white space at both ends.
5. A text that is empty then is refused.
6. A text of more bytes than the longest may have is refused, or cut between two characters.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import wrap
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from pe.data.arrays import Float64Array
from pe.data.cells import SURROGATE
from pe.data.fonts import font_for
from pe.data.samples import Array, Samples, Shape, generator
from pe.errors import BadSample, ContractError, check_list

RUN = 8
"""Words in a row by which texts are compared."""
LONGEST = 2000
"""Bytes of the longest text, where nothing else is declared: some 300 English words."""

_CARD = (384, 216)
_COLUMNS = 48
_LINES = 11
_LINE = 18
_SIZE = 14


@dataclass(frozen=True, eq=False)
class Texts(Samples):
    """A batch of n texts in Unicode's normal form C, without controls but line feeds and tabs.

    Attributes:
        utf8: n texts as UTF-8, dtype S, its width the most bytes that a text of this batch may
            have.

    Raises:
        ContractError: the array has another dtype or rank.
    """

    utf8: npt.NDArray[np.bytes_]

    kind = "texts"
    noun = "texts"
    axes = "bytes at most"
    suffix = ".txt"
    feature: ClassVar[Mapping[str, str]] = {"dtype": "string", "_type": "Value"}
    embedding = "tfidf"
    is_text = True
    unit = "share of the pieces of three characters that are not in both, 0 to 1"

    def __post_init__(self) -> None:
        array = self.utf8
        if not isinstance(array, np.ndarray) or array.dtype.kind != "S" or array.ndim != 1:
            kind = type(array).__name__
            if isinstance(array, np.ndarray):
                kind = f"{array.dtype} of shape {array.shape}"
            raise ContractError(
                f"Texts are a one-dimensional array of bytes, not {kind}: make them by Texts.of."
            )

    @classmethod
    def of(cls, texts: Iterable[str], longest: int = LONGEST) -> Self:
        """Return a batch of `texts`, made plain (`plain`) and cut to `longest` bytes.

        No character is cut in two.

        Args:
            texts: any texts; a single string is a ContractError.
            longest: bytes, at least 1, that a text may have.
        """
        check_list("Texts.of", texts, ContractError)
        return cls(np.array([shorten(plain(text), longest) for text in texts], dtype=f"S{longest}"))

    @property
    def strings(self) -> list[str]:
        """The texts."""
        return [text.decode() for text in self.utf8.tolist()]

    @classmethod
    def stack(cls, rows: Sequence[Array | None], shape: Shape) -> Self:
        """Put the texts `rows`, each of bytes, into one batch. None becomes an empty one."""
        return cls(
            np.array([b"" if row is None else bytes(row) for row in rows], dtype=f"S{shape[0]}")
        )

    @classmethod
    def examples(cls, count: int, shape: Shape) -> Self:
        """Make up texts of all lengths.

        Some are one letter, some the same word many times, and some random letters.
        """
        texts = []
        for i in range(count):
            rng = generator(i, "examples")
            length = max(1, shape[0] // (1, 2, 10, 100)[i % 4])
            letters = rng.choice(list("etaoinshrdlu "), (1, 6, length)[i % 3])
            texts.append("".join(np.resize(letters, length)))
        return cls.of(texts, shape[0])

    @classmethod
    def costliest(cls, count: int, shape: Shape) -> Self:
        """Make up texts of as many different words as there is room for.

        Each word is a Chinese character.
        """
        points = generator(0, "costliest").integers(0x4E00, 0xA000, (count, *shape), np.uint32)
        points[:, 1::2] = ord(" ")
        return cls.of([text.tobytes().decode("utf-32-le") for text in points], *shape)

    @classmethod
    def misfit(cls, row: Array, shape: Shape) -> str:
        """Return how a text differs from the declared shape, to end a sentence, or ''."""
        if len(bytes(row)) <= shape[0]:
            return ""
        return (
            f"has more than {shape[0]:,} bytes: raise private.longest, or cut longer ones by "
            "private.cut: true"
        )

    @classmethod
    def check(cls, array: Array) -> bool:
        """Return True if an array that was read from a file holds texts."""
        try:
            return super().check(array) and all(map(cls._is_sound, array.tolist()))
        except ValueError:
            return False

    @staticmethod
    def _is_sound(utf8: bytes) -> bool:
        text = utf8.decode()
        return text == plain(text)

    @classmethod
    def pack(cls, array: Array) -> dict[str, Array]:
        """Return the texts, joined by NULs, which no text holds, and compressed."""
        content = zlib.compress(b"\0".join(array.tolist()), 1)
        return {"deflated": np.frombuffer(content, np.uint8), "width": np.array(array.itemsize)}

    @classmethod
    def unpack(cls, parts: Mapping[str, Array]) -> Array:
        """Return the array that `pack` was given, to the bit."""
        return np.array(
            zlib.decompress(parts["deflated"].tobytes()).split(b"\0"),
            dtype=f"S{int(parts['width'])}",
        )

    @property
    def array(self) -> Array:
        """The texts as bytes."""
        return self.utf8

    @property
    def shape(self) -> Shape:
        """The most bytes that a text may have."""
        return (self.utf8.itemsize,)

    def distances(self, others: Self) -> Float64Array:
        """Return the share of pieces that only one of each text and its counterpart has, 0 to 1.

        A piece is a run of three characters.
        """
        pairs = list(zip(map(_pieces, self.strings), map(_pieces, others.strings), strict=True))
        common = np.array([len(one & other) for one, other in pairs], np.float64)
        return 1 - common / ([len(one) + len(other) for one, other in pairs] - common)

    def pictures(self) -> list[Image.Image]:
        """Draw the beginning of each text, as a card."""
        return [card(text) for text in self.strings]

    def files(self) -> Iterator[bytes]:
        """Yield each text as UTF-8."""
        return iter(self.utf8.tolist())


def plain(text: str) -> str:
    """Return a text in normal form C whose lines end by line feeds.

    Other control characters and lone surrogates are left out.
    """
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    if text.isprintable():
        return text
    return "".join(
        each for each in text if each in "\n\t" or unicodedata.category(each) not in ("Cc", "Cs")
    )


def runs_of_words(text: str) -> set[tuple[str, ...]]:
    """Return the runs of RUN words in a text, in small letters.

    A shorter text is one run of all its words.
    """
    words = re.findall(r"\w+", text.lower())
    return (
        {tuple(words[i : i + RUN]) for i in range(max(len(words) - RUN, 0) + 1)} if words else set()
    )


def shorten(text: str, longest: int) -> bytes:
    """Return a text as UTF-8, cut to as many whole characters as `longest` bytes hold."""
    return text.encode()[:longest].decode(errors="ignore").encode()


@lru_cache(maxsize=512)  # whoever compares all pairs asks for each text again and again
def _pieces(text: str) -> frozenset[str]:
    """Return a text's runs of three characters.

    Its ends are marked, so that even an empty text has one.
    """
    text_with_ends = f"\0{text}\0\0"
    return frozenset(text_with_ends[i : i + 3] for i in range(len(text_with_ends) - 2))


def card(text: str) -> Image.Image:
    """Return a picture of the beginning of a text."""
    lines = [row for line in text.splitlines() for row in wrap(line, _COLUMNS)]
    lines = lines[:_LINES] + (["…"] if len(lines) > _LINES else [])
    card = Image.new("RGB", _CARD, "white")
    pen = ImageDraw.Draw(card)
    font = font_for(" ".join(lines), _SIZE) or ImageFont.load_default(_SIZE)
    for i, line in enumerate(lines):
        pen.text((8, 6 + i * _LINE), line, fill="black", font=font)
    return card


# Texts from outside, by the rules above.

UTF_8 = "utf-8"
MARGIN = 4
"""Most bytes read for each byte of UTF-8: UTF-32 has up to 4 for 1, and Hangul in separate letters
about as many."""
MOST_MARKS = 128
"""Most combining characters in a row: the time of normal form C grows with the square of their
number."""


def decode_text(
    source: bytes | str | Path,
    *,
    longest: int,
    cut: bool,
    encoding: str = UTF_8,
    name: str,
) -> bytes:
    """Return the UTF-8 of a text, 1 to `longest` bytes, by the rules above.

    Args:
        source: the encoded bytes, the file that holds them, or decoded text, in which a lone
            surrogate is refused.
        longest: bytes of UTF-8 that a text may have, ≥ 1.
        cut: True cuts a longer text, False refuses it.
        encoding: the encoding of bytes, as Python names it (`check_encoding`).
        name: the name of the text in messages.

    Raises:
        BadSample: the text cannot be read, or a rule refuses it. No word of the text stands in the
            message.
    """
    most = MARGIN * longest
    if isinstance(source, Path):
        source = _read(source, most + 1, name)
    if len(source) > most and not cut:
        raise BadSample(_too_long(name, longest))
    # The bound comes before decoding and normalising, whose time grows with what they get.
    whole = len(source) <= most
    source = source[:most]
    text = source if isinstance(source, str) else _decode(source, encoding, whole, name)
    if SURROGATE.search(text):
        raise BadSample(_not_text(name, encoding))
    if "\0" in text:
        raise BadSample(
            f"{name} holds a NUL: it is no text, or its encoding is another one, which you must "
            "declare."
        )
    if (
        not text.isascii()
        and max(map(len, bytes(map(unicodedata.combining, text)).split(b"\0"))) > MOST_MARKS
    ):
        raise BadSample(
            f"{name} has more than {MOST_MARKS} combining characters in a row: it is no text."
        )
    utf8 = plain(text).strip().encode()
    if not utf8:
        raise BadSample(f"{name} is empty.")
    if len(utf8) > longest and not cut:
        raise BadSample(_too_long(name, longest))
    return shorten(utf8.decode(), longest).rstrip()


def check_encoding(name: str) -> str:
    """Return the name of an encoding.

    Raises:
        ValueError: Python knows no text encoding of that name.
    """
    try:
        b"text".decode(name)
    except UnicodeError:
        pass  # of two or four bytes a character
    except (LookupError, TypeError):
        raise ValueError(
            f"'{name}' is no encoding of text that is known here: name one such as utf-8 or cp1252"
        ) from None
    return name


def with_mark(encoding: str) -> str:
    """Return the encoding, for UTF-8 the variant that drops a byte order mark at the beginning."""
    return "utf-8-sig" if codecs.lookup(encoding).name == UTF_8 else encoding


def _read(path: Path, most: int, name: str) -> bytes:
    if not path.is_file():
        raise BadSample(f"{name} is not a readable file.")
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise BadSample(f"{name} cannot be read: {error.strerror}.") from error


def _decode(data: bytes, encoding: str, whole: bool, name: str) -> str:
    """Return the decoded text.

    If the text is not `whole`, a character that its end cuts through is dropped.
    """
    try:
        return codecs.getincrementaldecoder(with_mark(encoding))().decode(data, whole)
    except UnicodeError as error:
        raise BadSample(_not_text(name, encoding)) from error


def _not_text(name: str, encoding: str) -> str:
    return f"{name} is not text in {encoding}: convert it, or declare its encoding."


def _too_long(name: str, longest: int) -> str:
    return (
        f"{name} has more than {longest:,} bytes: raise longest, or set cut: true to keep their "
        "beginning."
    )
