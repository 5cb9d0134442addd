"""The run's log: a confidential file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that the toolkit logs goes to the confidential file `path`, an error that ends the run included."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("pe")
    propagated, level = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(level or logging.INFO)  # the command line sets one; from Python there is none
    logger.addHandler(handler)
    try:
        yield
    except BaseException as error:
        logger.error("The run stopped.", exc_info=error)
        raise
    finally:
        logger.propagate = propagated
        logger.setLevel(level)
        logger.removeHandler(handler)
        handler.close()
