"""Ctrl-C and SIGTERM on the command line: the first stops the work resumably, the second ends the process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from pe.engine.signals import SIGNALS, STATUS, Stop, stop_on_signals
from pe.errors import Interrupted


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
