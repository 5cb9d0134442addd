"""Silence for libraries while they read something from outside, or a private record."""

from __future__ import annotations

import ctypes
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import PIL

LOGGERS = ("pe", "adapters", "embeddings")
"""The toolkit's loggers, by name. A third party's package has loggers of its own."""

_lock = threading.Lock()
_inside = 0
_silenced = ExitStack()


@contextmanager
def quiet() -> Iterator[None]:
    """Show no Python warning inside the block.

    A library's logger without a handler writes nothing to the console, either. Such words might
    tell of a private record. The silence holds for all threads, from the first that enters until
    the last has left.
    """
    global _inside
    with _lock:
        if _inside == 0:
            _silenced.enter_context(warnings.catch_warnings())
            _silenced.callback(setattr, logging, "lastResort", logging.lastResort)
            logging.lastResort = cast(
                Any,
                logging.NullHandler(),
            )  # Python writes to stderr what no handler wants
            warnings.simplefilter("ignore")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _silenced.close()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Let the library transformers show no progress bar and no report inside the block."""
    from transformers import logging as library

    shows_bars = library.is_progress_bar_enabled()
    verbosity = library.get_verbosity()
    library.disable_progress_bar()
    library.set_verbosity(library.CRITICAL)
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        if shows_bars:
            library.enable_progress_bar()


@cache
def silence_libtiff() -> None:
    """Keep Pillow's libtiff from writing errors to the process's stderr.

    Nothing is done if its file is not found.
    """
    maps = Path("/proc/self/maps")
    if maps.is_file():
        files = {
            Path(line.split(maxsplit=5)[-1])
            for line in maps.read_text().splitlines()
            if "/" in line
        }
    else:  # macOS
        files = set((Path(PIL.__file__).parent / ".dylibs").glob("*"))
    for path in files:
        if path.name.startswith("libtiff"):
            library = ctypes.CDLL(str(path))  # the one that is loaded already
            library.TIFFSetErrorHandler(None)
            library.TIFFSetWarningHandler(None)
