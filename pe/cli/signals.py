"""Ctrl-C: the first stops at the next chunk's boundary, the second at once; neither loses committed work."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

import click


@contextmanager
def stop_on_interrupt() -> Iterator[Event]:
    """An event that SIGINT and SIGTERM set; a second signal ends the process with status 130."""
    stop = Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()
        click.echo("Stopping when the requests under way are answered; once more to stop at once.", err=True)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
