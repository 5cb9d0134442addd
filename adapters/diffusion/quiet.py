"""What diffusers and transformers print that is of no use to whoever waits for a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bars over the files of a model, which would break the run's own; one thread at a time.

    What the safety checker finds is an outcome of its own, so its warnings stay away, too, and for good.
    """
    from diffusers.utils import logging as diffusers_bars
    from transformers.utils import logging as transformers_bars

    logging.getLogger("diffusers.models.modeling_utils").addFilter(_names_none)
    logging.getLogger("diffusers.pipelines.stable_diffusion.safety_checker").setLevel(logging.ERROR)
    bars = [library for library in (diffusers_bars, transformers_bars) if library.is_progress_bar_enabled()]
    for library in bars:
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library in bars:
            library.enable_progress_bar()


def _names_none(record: logging.LogRecord) -> bool:
    """Drops the warning of modules to be kept in float32 where it names none; Stable Diffusion XL repeats it."""
    return "should be kept in float32: []" not in record.getMessage()
