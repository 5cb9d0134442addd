"""A run's pages on disk, and warnings about the answers of its generator."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pe.data.markup import unwrap
from pe.data.samples import Samples
from pe.plugins.protocols import Generator
from pe.progress import Progress
from pe.report.pages import INTERNAL_REPORT, REPORT, internal_report, shareable_report
from pe.store.certified import reissue
from pe.store.durable import level_confidential, write_durably
from pe.store.run import Run

log = logging.getLogger(__name__)


def write_report(folder: Path, *, confidential: bool = False) -> Path:
    """Write the report of the run in `folder`, or the confidential one.

    Return the path of the page.

    The certificate covers the shareable page and `pe export` copies it: it is post-processing of
    the run's releases.
    """
    run = Run.open(folder)
    if confidential:
        write_durably(folder / INTERNAL_REPORT, internal_report(run).encode())
        level_confidential(folder)
        return folder / INTERNAL_REPORT
    write_durably(folder / REPORT, shareable_report(run).encode())
    if run.is_finished:
        reissue(run.folder, [REPORT])
    return folder / REPORT


@contextmanager
def report_answers(api: Generator, progress: Progress) -> Iterator[None]:
    """Warn, when the block ends or fails, of answers that the generator changed or passed over."""
    try:
        yield
    finally:
        message = api.describe_answers()
        if message:
            log.warning("%s", message)
            progress.warn(message)


def warn_of_markup(samples: Samples, progress: Progress) -> None:
    """Warn of synthetic texts that hold a chat template's markup.

    Texts from a pool or from a user's object may hold some.
    """
    texts = samples.strings if samples.is_text else []
    with_markup = [text for text in texts if _has_markup(text)]
    if with_markup:
        progress.warn(
            f"{len(with_markup):,} of {len(texts):,} texts hold a chat template's markup, as the "
            f"one that begins {with_markup[0][:60]!r}: take it off where they are made (pe.unwrap)."
        )


def _has_markup(text: str) -> bool:
    result = unwrap(text)
    return bool(result.marks or result.fault)
