"""Cells of tables: how they are read, and why some cannot be read.

A cell is text from CSV, or whatever value JSON, Parquet, Arrow or a data frame holds. It is read
exactly or it is refused; nothing is guessed. No message contains a cell.
"""

from __future__ import annotations

import math
import re
import unicodedata
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from pe.errors import BadSample

Number = int | float

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character: it stands for bytes that are no text."""

_NULLS = ("NAType", "NaTType")  # of pandas, which is not imported here
LONGEST = 2**13
"""Characters of a cell, or of a name: the time of Unicode's normal form C may grow with the square
of their number."""
_MOST_DIGITS = 300
_MOST_WORDS = 8  # of a column's name
_LIKE_MISSING = {
    "?",
    "-",
    "--",
    ".",
    "na",
    "n/a",
    "n.a.",
    "nan",
    "nat",
    "none",
    "null",
    "<na>",
    "#n/a",
    "missing",
}
_SPACES = " \u00a0\u2009\u202f"
_APOSTROPHES = "'\u2019"
_TRUTH = {
    word: i // 5
    for i, word in enumerate(["false", "f", "no", "n", "0", "true", "t", "yes", "y", "1"])
}
_GROUPED = re.compile(rf"[+-]?\d{{1,3}}([.,{_APOSTROPHES}{_SPACES}]\d{{3}})+([.,]\d+)?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+", re.ASCII)
_WITH_SIGN = re.compile(r"[^\w\s]\s*[\d.,]+|[\d.,]+\s*[^\w\s.,]|[\d.,]+\s*\w{1,3}")
_LIKE_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}(\D.*)?|\d{8}", re.ASCII)


class _Unreadable:
    """A cell that Python or a library cannot hold."""


UNREADABLE = _Unreadable()
"""Stands for a cell that is there, and that nobody can read: it is neither text nor a number, nor
missing."""


class BadCell(BadSample):
    """A cell cannot be read as its column is declared. The message goes on after "column 'age'"."""


def python_scalar(value: Any) -> Any:
    """Return a scalar of numpy or torch as Python's own type, and a missing value as None.

    A time of numpy becomes its date. A float of fewer than 64 bits becomes the shortest number that
    rounds to it: 0.1 where 0.1 was written. A number of many hundred digits becomes UNREADABLE,
    because arithmetic with it could take all time and memory.
    """
    if value is None or value is np.ma.masked or type(value).__name__ in _NULLS:
        return None
    if isinstance(value, np.datetime64):
        return value.astype("datetime64[D]").item()
    if isinstance(value, np.floating):
        value = float(str(value))
    try:
        value = value.item() if getattr(value, "ndim", None) == 0 else value
    except Exception:  # of whatever library
        return UNREADABLE
    if isinstance(value, Decimal):
        is_nan = value.is_nan()
        is_huge = value.is_finite() and abs(value.adjusted()) > _MOST_DIGITS
    else:
        is_nan = isinstance(value, float) and math.isnan(value)
        is_huge = isinstance(value, int) and value.bit_length() > 3 * _MOST_DIGITS
    if is_nan:
        return None
    return UNREADABLE if is_huge else value


def text_of_cell(cell: object) -> str:
    """Return the text of a scalar, in Unicode's normal form C and without white space at its ends.

    Whole numbers have no point. Truth values become `true` and `false`.

    Raises:
        BadCell: the cell is no scalar, too long, or not text in its encoding.
    """
    if isinstance(cell, bytes):
        cell = cell.decode(errors="surrogateescape")
    if isinstance(cell, float | Decimal) and math.isfinite(cell) and cell == int(cell):
        cell = int(cell)
    if isinstance(cell, bool):
        cell = str(cell).lower()
    if not isinstance(cell, str | int | float | Decimal | date):
        raise BadCell(f"holds a value of type {type(cell).__name__}, which cannot be read.")
    text = str(cell)
    if len(text) > LONGEST:
        raise BadCell(f"has more than {LONGEST:,} characters.")
    if SURROGATE.search(text):
        raise BadCell(
            "holds bytes that are not text in the file's encoding. Declare `encoding` (cp1252, "
            "say)."
        )
    return unicodedata.normalize("NFC", text).strip()


@lru_cache(64)
def _pattern(decimal: str, thousands: str) -> re.Pattern[str]:
    marks = {" ": f"[{_SPACES}]", "'": f"[{_APOSTROPHES}]"}
    mark = marks.get(thousands, re.escape(thousands))
    digits = rf"(?:\d{{1,3}}(?:{mark}\d{{3}})+|\d+)" if thousands else r"\d+"
    point = re.escape(decimal)
    return re.compile(
        rf"([+-]?(?:{digits}|(?={point}\d)))(?:{point}(\d*))?(e[+-]?\d+)?",
        re.ASCII | re.IGNORECASE,
    )


def read_number(cell: object, decimal: str = ".", thousands: str = "") -> Number:
    """Return the finite number that a cell holds, a whole one exactly.

    Args:
        cell: a number, or its text.
        decimal: the mark before the fraction, in text.
        thousands: the mark between groups of three digits, in text. Empty: there is none.

    Raises:
        BadCell: the cell is no finite number.
    """
    if isinstance(cell, str):
        text = text_of_cell(cell)
        match = _pattern(decimal, thousands).fullmatch(text)
        if match is None:
            raise BadCell(_why_no_number(text))
        whole, fraction, exponent = match.groups()
        if len(text) > _MOST_DIGITS:
            raise BadCell(f"holds a number of more than {_MOST_DIGITS} characters.")
        whole = re.sub(r"[^\d+-]", "", whole)
        if not fraction and not exponent:
            return int(whole)
        cell = float(f"{whole}.{fraction or 0}{exponent or ''}")
    if isinstance(cell, bool) or not isinstance(cell, int | float | Decimal):
        raise BadCell(f"holds a value of type {type(cell).__name__}, which is no number.")
    if isinstance(cell, int):
        return cell
    if not math.isfinite(cell):
        raise BadCell("is infinite.")
    return int(cell) if cell == int(cell) else float(cell)


def _why_no_number(text: str) -> str:
    """Say why a text is no number, and what to declare."""
    refuse_missing_word(text)
    if "inf" in text.lower():
        return "is infinite."
    if _DECIMAL_COMMA.fullmatch(text) and not _GROUPED.fullmatch(text):
        return "looks like a decimal comma: set `decimal: ','`."
    if _GROUPED.fullmatch(text):
        return (
            "looks like digits in groups of three: set `thousands` to the mark between them, or "
            "`decimal: ','`."
        )
    if _LIKE_DATE.fullmatch(text):
        return "looks like a date."
    if _WITH_SIGN.fullmatch(text):
        return "looks like a number with a sign or a unit beside it: keep the number alone."
    return "is no number."


def is_like_missing(text: str) -> bool:
    """Return True for words that many programs write where a value is missing."""
    return text.lower() in _LIKE_MISSING


def refuse_missing_word(text: str) -> None:
    """Raise BadCell if a text is a word that many programs write where a value is missing."""
    if is_like_missing(text):
        raise BadCell("looks like a word for a missing value: list that word in `missing_values`.")


def read_truth(cell: object) -> int:
    """Return 1 for a cell that says yes, and 0 for one that says no.

    Raises:
        BadCell: the cell is none of the words and numbers for yes and no.
    """
    text = text_of_cell(cell).lower()
    refuse_missing_word(text)
    if text not in _TRUTH:
        with suppress(BadCell):  # 1.0 is 1
            text = str(read_number(text))
    if text not in _TRUTH:
        raise BadCell(
            f"is none of {', '.join(_TRUTH)}. Declare a category, which lists its own values."
        )
    return _TRUTH[text]


def read_day(cell: object, form: str | None) -> date:
    """Return the day of a date, of a time, or of a text.

    Args:
        cell: the date, or its text.
        form: how the text is written, as for strptime; None: as ISO 8601.

    Raises:
        BadCell: the cell holds no such day.
    """
    if isinstance(cell, datetime):
        return cell.date()
    if isinstance(cell, date):
        return cell
    text = text_of_cell(cell)
    try:
        return (datetime.strptime(text, form) if form else datetime.fromisoformat(text)).date()
    except ValueError:
        pass
    refuse_missing_word(text)
    if _LIKE_DATE.fullmatch(text):
        raise BadCell("looks like a date of another form: set `format` ('%d.%m.%Y', say).")
    if text.replace(".", "", 1).isdecimal():
        raise BadCell(
            "looks like the day number of a spreadsheet: convert the column to dates first."
        )
    raise BadCell("is no date, or one of another form: set `format` ('%d.%m.%Y', say).")


def looks_like_value(name: str) -> bool:
    """Return True if the name of a column looks like a cell.

    Numbers, dates, truth values, addresses of mail and sentences do.
    """
    text = name.strip()
    is_word = "@" in text or is_like_missing(text) or text.lower() in ("yes", "no", "true", "false")
    return is_word or len(text.split()) > _MOST_WORDS or re.sub(r"[\W_]", "", text).isdecimal()
