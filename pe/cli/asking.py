"""Questions at the terminal, for which options can stand in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def asking(options: str) -> Iterator[None]:
    """Questions inside that nobody is there to answer end in a sentence that names `options` instead.

    Raises:
        UsageError: the input has ended, and is no terminal.
    """
    try:
        yield
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError(f"There is no answer to read: give {options}.") from None
