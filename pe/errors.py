"""Everything that can go wrong, as one tree.

    PEError                      one sentence: what, where, what to do; exit status 2
     ├── RecipeError             a key or a value of the recipe (or of a call's settings)
     ├── PrivateDataError        the private records cannot be read as declared
     ├── BadSample               one sample from outside, private or public, that cannot be decoded
     │    ├── BadImage           one image
     │    └── BadRow             one row of a table
     ├── BadTable                a table from outside, private or public, that cannot be read
     ├── PluginError             an adapter, embedding or command that is unknown or broken
     │    └── ContractError      a plug-in answered with the wrong number, shape or dtype
     ├── MissingDependency       an optional library that an extra would install
     ├── PrivacyError            what the ledger or the accountant refuses
     │    └── BudgetExceeded     a release that would cost more than the budget holds
     ├── RunError                a run directory that exists, is missing or held
     │    └── DamagedFile        a file of a run that is gone, or has changed since it was written
     ├── ClusterError            a Ray cluster whose workers are lost, or differ from each other
     └── APIError                a generator that gives no answer, so that the run stops
          ├── Unavailable        a server that was away for longer than the run waits
          ├── LimitReached       a limit of the recipe stops the run; exit status 3
          └── Interrupted        the user stops the run; exit status 130, after SIGTERM 143

A message of a run that goes on never holds an un-noised value, a private record or a key; a message
that refuses to start a run may name a private record to the owner. Invisible characters, such as
those that colour a terminal or begin a line, are written as escapes in every message, so that no
file name can forge a message.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from difflib import get_close_matches


class PEError(Exception):
    """The root of all errors that a user can cause or mend.

    The command line prints the message and the notes without a traceback, and ends with
    `exit_status`.
    """

    exit_status = 2

    def __str__(self) -> str:
        return printable(super().__str__())


class RecipeError(PEError):
    """A key or a value of the recipe is wrong."""


BAD_FILES = "{}.bad-files.txt"
"""Name of the file, beside private data named {}, that lists bad files where a message cannot show
them all."""


class PrivateDataError(PEError):
    """The private records cannot be read as declared.

    Attributes:
        faults: one sentence for each file at fault, if there are several; the first few are also
            the error's notes.
    """

    faults: tuple[str, ...] = ()


class BadSample(PEError):
    """One sample from outside, private or public, cannot be decoded."""


class BadImage(BadSample):
    """One image from outside cannot be decoded."""


class BadRow(BadSample):
    """One row of a table has cells that cannot be read.

    Attributes:
        cells: by column, why its cell cannot be read.
    """

    def __init__(self, message: str, cells: Mapping[str, str]) -> None:
        super().__init__(message)
        self.cells = cells


class BadTable(PEError):
    """A table of records from outside, private or public, cannot be read."""


class PluginError(PEError):
    """An adapter, embedding or command is unknown or cannot be loaded."""


class ContractError(PluginError):
    """A plug-in answered with the wrong number, shape or dtype."""


class MissingDependency(PEError):
    """An optional library is not installed. The message names the extra that brings it."""

    @classmethod
    def of(cls, library: str, extra: str, purpose: str) -> MissingDependency:
        """Return the error that says which extra installs the `library` that `purpose` needs."""
        return cls(f"{purpose} needs {library}, which is not installed: {pip_install(extra)}.")


def pip_install(extra: str) -> str:
    """Return the command that installs an extra.

    It installs from the folder that the toolkit was installed from, or else by the toolkit's name.
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    name = "private-evolution-toolkit"
    try:
        place = json.loads(distribution(name).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        place = {}
    folder = unquote(urlsplit(place["url"]).path) if "dir_info" in place else ""
    editable = "-e " if folder and place["dir_info"].get("editable") else ""
    return f"pip install {editable}{quoted(f'{folder or name}[{extra}]')}"


class PrivacyError(PEError):
    """The ledger or the accountant refuses what it is asked for."""


class BudgetExceeded(PrivacyError):
    """A release would cost more than the budget holds. It has not happened."""


class RunError(PEError):
    """A run directory exists already, is missing or is held by another process."""


class DamagedFile(RunError):
    """A file of a run is gone, or has changed since it was written. The message names the file."""


class ClusterError(PEError):
    """A Ray cluster cannot do private work.

    Its workers are lost, or they have different versions or compute different vectors.
    """


class APIError(PEError):
    """A generator gives no answer, so that the run stops. What it answered before is kept."""


class Unavailable(APIError):
    """A server was away for longer than the run waits. The run can go on where it stopped."""


class LimitReached(APIError):
    """A limit of the recipe stops the run. It can go on where it stopped."""

    exit_status = 3


class Interrupted(APIError):
    """The user stops the run at a chunk's boundary. It can go on where it stopped."""

    exit_status: int = 130


def printable(text: str) -> str:
    """Return `text` on one line, with an escape for each character that is not printable."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def quoted(path: object) -> str:
    """Return a path as a shell reads it, for a command that a message tells the user to type."""
    return shlex.quote(str(path))


_NAMED = 50


def check_list(name: str, value: object, error: type[PEError] = RecipeError) -> None:
    """Raise `error` if `value` is a single text where a list is wanted.

    A text would be read letter by letter.
    """
    if isinstance(value, str | bytes):
        raise error(f"{name} is {value!r}, a text: give a list of them, [{value!r}].")


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return `did you mean 'x'?` with the known name closest to `name`.

    If none is close, at most 50 known names.
    """
    names = sorted(names)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return "known are " + ", ".join(f"'{k}'" for k in names[:_NAMED]) + f"{more}."
