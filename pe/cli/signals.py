"""Ctrl-C and SIGTERM: the first stops at the next chunk's boundary, the second at once; no committed work is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

import click

from pe.errors import Interrupted

_STATUS = 128


@contextmanager
def stop_on_interrupt() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set; a second signal ends the process.

    Its exit status is the one that shells and supervisors expect, 128 and the signal's number: 130 after SIGINT, 143
    after SIGTERM.
    """
    stop = Event()
    first: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(_STATUS + number)
        first.append(number)
        stop.set()
        click.echo("Stopping when the requests under way are answered; once more to stop at once.", err=True)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except Interrupted as error:
        error.exit_status = _STATUS + first[0] if first else error.exit_status
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
