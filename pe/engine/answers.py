"""Tell of texts that came with a chat template's markup."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from pe.data.markup import unwrap
from pe.data.samples import Readable, Samples
from pe.plugins.waits import TellsOfAnswers
from pe.progress import Progress

log = logging.getLogger(__name__)


@contextmanager
def telling_of_answers(api: object, progress: Progress) -> Iterator[None]:
    """Tell at the end, however it comes, what became of the answers that the generator did not take as they came."""
    try:
        yield
    finally:
        if isinstance(api, TellsOfAnswers) and (told := api.describe_answers()):
            log.warning("%s", told)
            progress.warn(told)


def warn_of_markup(samples: Samples, progress: Progress) -> None:
    """Warn of synthetic texts with markup: what a generator of the user's own, or a pool, gave is kept as it is."""
    texts = samples.strings if isinstance(samples, Readable) else []
    if marked := [text for text in texts if (found := unwrap(text)).taken or found.fault]:
        progress.warn(
            f"{len(marked):,} of {len(texts):,} texts hold a chat template's markup, as the one that begins "
            f"{marked[0][:60]!r}: take it off where they are made (pe.unwrap)."
        )
