"""The run's log: a confidential file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pe.data.quiet import LOGGERS


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that the toolkit logs goes to the confidential file `path`, an error that ends the run included."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.propagate = False
        logger.setLevel(logger.level or logging.INFO)  # the command line sets one; from Python there is none
        logger.addHandler(handler)
    try:
        yield
    except BaseException as error:
        loggers[0].error("The run stopped.", exc_info=error)
        raise
    finally:
        for logger, (propagated, level) in zip(loggers, before, strict=True):
            logger.propagate = propagated
            logger.setLevel(level)
            logger.removeHandler(handler)
        handler.close()
