"""Labels as names of folders, on any system."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

LABELS_CSV = "labels.csv"

_LONGEST = 200
_KEPT = 180  # with a hash behind it, a name that is cut is longer than any that is not
_AMBIGUOUS = re.compile(r"%(?=[0-9A-Fa-f]{2})")  # a per cent sign that would read as an escape
_NOWHERE = re.compile(r"\A[. ]|[. ]\Z|[/\\<>:\"|?*]")
_TAKEN = re.compile(r"(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³])(\..*)?|labels\.csv", re.IGNORECASE | re.DOTALL)
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # controls, format characters, halves of characters, ends of lines
_JOINERS = "\u200c\u200d"  # which words and emoji are written with


def file_names(labels: Sequence[str]) -> list[str]:
    r"""For each label the name of its folder: the label as it is, as far as every file system takes it.

    What one of them does not take becomes percent-escapes of its UTF-8: `/`, control characters and those that turn
    the direction of writing or are not seen, `<>:"\|?*`, a dot or
    space at an end, the first letter of a name that Windows gives to a device or that LABELS_CSV has, and a `%` that
    would read as such an escape. Of labels that differ only in upper and lower case, upper case is escaped. A name of
    more than 200 bytes is cut, and a hash of the label stands behind it.

    Different labels get different names, also where upper and lower case count as the same.
    """
    folded = Counter(label.casefold() for label in labels)
    return [_file_name(label, whole=folded[label.casefold()] > 1) for label in labels]


def _file_name(label: str, whole: bool) -> str:
    """The name of one label's folder; `whole`: another label differs from it in upper and lower case alone."""
    name = _NOWHERE.sub(_escape, _AMBIGUOUS.sub("%25", label))
    name = "".join(
        _escape(char) if unicodedata.category(char) in _UNSEEN and char not in _JOINERS else char for char in name
    )
    if whole:
        parts = re.split(r"(%[0-9A-F]{2})", name)
        parts[::2] = ["".join(c if c.casefold() == c else _escape(c) for c in part) for part in parts[::2]]
        name = "".join(parts)
    if _TAKEN.fullmatch(name):
        name = _escape(name[0]) + name[1:]
    data = name.encode()
    if len(data) <= _LONGEST:
        return name
    return f"{data[:_KEPT].decode(errors='ignore')}%{hashlib.sha256(label.encode()).hexdigest()[:32]}"


def _escape(found: str | re.Match[str]) -> str:
    """A character, or the match of one, as percent-escapes of its UTF-8."""
    char = found if isinstance(found, str) else found[0]
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
