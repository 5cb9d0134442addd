"""Signals, the log of a run, and the versions of the software that takes part in a run."""

from __future__ import annotations

import logging
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import NoReturn

from pe.errors import Interrupted
from pe.progress import Progress
from pe.version import __version__

STATUS = 128  # and the signal's number: the exit status that shells and supervisors expect
SIGNALS = (signal.SIGINT, signal.SIGTERM)

_DEFAULT: dict[signal.Signals, object] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
_SOFTWARE = (
    "numpy",
    "scipy",
    "dp-accounting",
    "pillow",
    "faiss-cpu",
    "faiss-gpu",
    "torch",
    "diffusers",
)


class Stop(threading.Event):
    """An event that a signal sets."""

    number: int | None = None  # the first signal's number; None if there was no signal


@contextmanager
def stop_on_signals(
    numbers: Sequence[signal.Signals],
    tell: Callable[[str], None],
    at_once: Callable[[int], NoReturn],
) -> Iterator[Stop]:
    """Yield an event that the first signal sets, so that work stops at the next chunk's end.

    At a second signal, work stops at once.

    `tell` is told that the work will stop; `at_once` is called with the second signal's number.
    """
    stop = Stop()

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            at_once(number)
        stop.number = number
        stop.set()
        tell("Stopping when the requests under way are answered; once more to stop at once.")

    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def stop_from_python(progress: Progress) -> Iterator[Stop]:
    """Yield an event that Ctrl-C and SIGTERM set in a program of the user's.

    The program's own handlers stay.

    After Ctrl-C the work ends with a KeyboardInterrupt whose one sentence says how to go on; after
    SIGTERM with that sentence on stderr and the exit status 143.
    """
    main = threading.current_thread() is threading.main_thread()
    numbers = [
        number for number in SIGNALS if main and signal.getsignal(number) == _DEFAULT[number]
    ]
    sentence = "Stopped as asked, when the last step was done already."
    at_once = partial(_end, sentence="Stopped at once; what was committed before is kept.")
    with stop_on_signals(numbers, progress.tell, at_once) as stop:
        try:
            yield stop
        except Interrupted as error:
            if stop.number is None:
                raise
            sentence = str(error)
    if stop.number is not None:
        _end(stop.number, sentence)


def _end(number: int, sentence: str) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt(sentence)
    print(sentence, file=sys.stderr, flush=True)
    sys.exit(STATUS + number)


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Send the toolkit's log, and an error that ends the run, to the confidential file `path`."""
    from pe.data.quiet import LOGGERS  # it imports Pillow, which `pe --help` need not wait for

    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.propagate = False
        # The command line sets a level; from Python there is none.
        logger.setLevel(logger.level or logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    except BaseException as error:
        loggers[0].error("The run stopped.", exc_info=error)
        raise
    finally:
        for logger, (propagate, level) in zip(loggers, before, strict=True):
            logger.propagate = propagate
            logger.setLevel(level)
            logger.removeHandler(handler)
        handler.close()


def software_versions() -> dict[str, str]:
    """Return distribution → version, of the toolkit, Python, and libraries that results rest on."""
    own = {"private-evolution-toolkit": __version__, "python": platform.python_version()}
    versions = {name: installed_version(name) for name in _SOFTWARE}
    return own | {name: number for name, number in versions.items() if number}


@cache
def installed_version(distribution: str) -> str:
    """Return the version of an installed distribution, or "" if it is not there."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
