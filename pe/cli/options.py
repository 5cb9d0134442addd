"""Options that several commands share."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from pe.engine.process import SIGNALS, STATUS, Stop, stop_on_signals
from pe.errors import Interrupted

_LONGEST = 255
"""Bytes of a name on common file systems."""


class _NamedPath(click.Path):
    """A path that a disk takes and that is not empty: an empty one would be the folder that the user is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; name a file or a folder.", param, ctx)
        long = next((name for name in Path(value).parts if len(os.fsencode(name)) > _LONGEST), None)
        if long is not None:
            self.fail(f"the name {long[:20]}… is longer than {_LONGEST} bytes: choose a shorter one.", param, ctx)
        return super().convert(value, param, ctx)


PATH = _NamedPath(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout, nothing else.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress; warnings only.")


def _set_level(_context: click.Context, _option: click.Parameter, value: str) -> None:
    from pe.data.quiet import LOGGERS

    for name in LOGGERS:
        logging.getLogger(name).setLevel(value.upper())


log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    expose_value=False,
    callback=_set_level,
    help="How much the run's confidential/log.txt holds.",
)


# Questions at the terminal, for which options can stand in.


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


# Ctrl-C and SIGTERM on the command line: the first stops the work resumably, the second ends the process.


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """An event that SIGINT and SIGTERM set; a second signal ends the process.

    Its exit status is the one that shells and supervisors expect, 128 and the signal's number: 130 after SIGINT, 143
    after SIGTERM.
    """
    with stop_on_signals(SIGNALS, lambda sentence: click.echo(sentence, err=True), _end_at_once) as stop:
        try:
            yield stop
        except Interrupted as error:
            error.exit_status = error.exit_status if stop.number is None else STATUS + stop.number
            raise


def _end_at_once(number: int) -> NoReturn:
    os._exit(STATUS + number)
