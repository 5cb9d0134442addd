"""Options that several commands share, questions at the terminal, and the two stages of Ctrl-C."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click

from pe.engine.process import SIGNALS, STATUS, Stop, stop_on_signals
from pe.errors import Interrupted

_LONGEST = 255
"""Most bytes of a file's name on common file systems."""


class _NamedPath(click.Path):
    """A path whose names are short enough for a disk.

    An empty path, which would mean this folder, is refused.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; name a file or a folder.", param, ctx)
        long = next((name for name in Path(value).parts if len(os.fsencode(name)) > _LONGEST), None)
        if long is not None:
            self.fail(
                f"the name {long[:20]}… is longer than {_LONGEST} bytes: choose a shorter one.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


def _set_level(_context: click.Context, _option: click.Parameter, value: str) -> None:
    from pe.data.quiet import LOGGERS

    for name in LOGGERS:
        logging.getLogger(name).setLevel(value.upper())


PATH = _NamedPath(path_type=Path)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print only the result, as JSON."
)
quiet_option = click.option("--quiet", is_flag=True, help="No progress; warnings only.")
_set = partial(click.option, "--set", "changes", multiple=True, metavar="A.B=VALUE")
recipe_option = _set(help="Change a value of the recipe.")
machine_option = _set(help="Change a limit or another machine setting.")
log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    expose_value=False,
    callback=_set_level,
    help="Level of detail of confidential/log.txt.",
)


def tell_next(*commands: Sequence[object]) -> None:
    """Print the commands, each given by its words, that a user would type next."""
    for i, words in enumerate(commands):
        click.echo(f"{'      ' if i else 'next: '}pe {shlex.join(map(str, words))}")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table whose first column is flush left and the others flush right."""
    head, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join([first.ljust(head), *padded]))
    return lines


@contextmanager
def asking(options: str) -> Iterator[None]:
    """Ask questions inside.

    If nobody is there to answer, raise a UsageError that names `options` instead.
    """
    try:
        yield
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError(f"Nobody is there to answer. Give {options}.") from None


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """Yield an event that SIGINT and SIGTERM set, so that a run stops and can go on.

    A second signal ends the process. Its exit status is what shells and supervisors expect, 128
    plus the signal's number: 130 after SIGINT, 143 after SIGTERM.
    """

    def end_at_once(number: int) -> NoReturn:
        os._exit(STATUS + number)

    with stop_on_signals(
        SIGNALS, lambda sentence: click.echo(sentence, err=True), end_at_once
    ) as stop:
        try:
            yield stop
        except Interrupted as error:
            error.exit_status = error.exit_status if stop.number is None else STATUS + stop.number
            raise
