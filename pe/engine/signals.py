"""Ctrl-C and SIGTERM: the first stops at the next chunk's boundary, the second at once; no committed work is lost."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from pe.errors import Interrupted
from pe.progress import Progress

STATUS = 128  # and the signal's number: the exit status that shells and supervisors expect
SIGNALS = (signal.SIGINT, signal.SIGTERM)

_DEFAULT: dict[signal.Signals, object] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


class Stop(threading.Event):
    """An event that a signal sets.

    Attributes:
        number: of the first signal; None: there was none.
    """

    number: int | None = None


@contextmanager
def stop_on_signals(
    numbers: Sequence[signal.Signals], tell: Callable[[str], None], at_once: Callable[[int], NoReturn]
) -> Iterator[Stop]:
    """An event that the first of the signals sets.

    Args:
        numbers: the signals; their handlers are put back at the end. None off the main thread.
        tell: told that the work will stop.
        at_once: called with the second signal's number.
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
    """An event that Ctrl-C and SIGTERM set in a program of the user's, where it has no handlers of its own.

    What they stop ends as Python has it: with a KeyboardInterrupt whose one sentence says what goes on; after SIGTERM
    with that sentence on stderr and the exit status 143.
    """
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number in SIGNALS if main and signal.getsignal(number) == _DEFAULT[number]]
    sentence = "Stopped as asked, when the last step was done already."
    with stop_on_signals(ours, progress.tell, _end_at_once) as stop:
        try:
            yield stop
        except Interrupted as error:
            if stop.number is None:
                raise
            sentence = str(error)
    if stop.number is not None:
        _end(stop.number, sentence)


def _end_at_once(number: int) -> NoReturn:
    _end(number, "Stopped at once; what was committed before is kept.")


def _end(number: int, sentence: str) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt(sentence)
    print(sentence, file=sys.stderr, flush=True)
    sys.exit(STATUS + number)
