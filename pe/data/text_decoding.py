"""Texts from outside: files, cells of tables and strings become UTF-8 by stated rules, executing nothing.

The rules, in the order in which they apply:

1. No more than MARGIN times the longest text is read, or normalised: a larger one is refused, or cut there.
2. Bytes are decoded as the declared encoding says; UTF-8 may begin with a byte order mark. Bytes that it does not know,
   and halves of surrogate pairs, are refused.
3. A NUL is refused: it is no text, or text of another encoding.
4. Normal form C; lines end by line feeds; other control characters but tabs are left out (`pe.data.texts.plain`), and
   white space at both ends is.
5. What is empty then is refused.
6. What is longer than the longest text is refused, or cut between two characters.
"""

from __future__ import annotations

import codecs
from pathlib import Path

from pe.data.texts import plain, shortened
from pe.errors import BadSample

UTF_8 = "utf-8"
MARGIN = 4
"""Bytes of a file for one byte of a text, at the most: so many of UTF-32, and about so many of Hangul in parts."""


def decode_text(source: bytes | str | Path, *, longest: int, cut: bool, encoding: str = UTF_8, name: str) -> bytes:
    """The UTF-8 of a text, by the rules above.

    Args:
        source: the encoded bytes, the file that holds them, or text that is decoded already, in which what could not
            be is a lone surrogate.
        longest: bytes of UTF-8 that a text may have, ≥ 1.
        cut: a longer one is cut; otherwise it is refused.
        encoding: of bytes, as Python names it (`check_encoding`).
        name: what messages call the text.

    Returns:
        1 to `longest` bytes.

    Raises:
        BadSample: it cannot be read, or a rule refuses it. No word of the text stands in the message.
    """
    most = MARGIN * longest
    if isinstance(source, Path):
        source = _read(source, most + 1, name)
    if len(source) > most and not cut:
        raise BadSample(_too_long(name, longest))
    whole, source = len(source) <= most, source[:most]
    text = source if isinstance(source, str) else _decode(source, encoding, whole, name)
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise BadSample(_not_text(name, encoding))
    if "\0" in text:
        raise BadSample(f"{name} holds a NUL: it is no text, or its encoding is another one, which you must declare.")
    utf8 = plain(text).strip().encode()
    if not utf8:
        raise BadSample(f"{name} is empty.")
    if len(utf8) > longest and not cut:
        raise BadSample(_too_long(name, longest))
    return shortened(utf8.decode(), longest).rstrip()


def check_encoding(name: str) -> str:
    """The encoding's name, if Python knows it and it is one of text.

    Raises:
        ValueError: it is not.
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
    """The encoding; of UTF-8, with which a byte order mark is left out."""
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
    """The text; of data that were cut off, without a character that the end cuts through."""
    try:
        return codecs.getincrementaldecoder(with_mark(encoding))().decode(data, whole)
    except UnicodeError as error:
        raise BadSample(_not_text(name, encoding)) from error


def _not_text(name: str, encoding: str) -> str:
    return f"{name} is not text in {encoding}: convert it, or declare its encoding."


def _too_long(name: str, longest: int) -> str:
    return f"{name} has more than {longest:,} bytes: raise longest, or set cut: true to keep their beginning."
