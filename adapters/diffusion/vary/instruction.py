"""Vary by instruction: an editing pipeline is told in words how far to go from the parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.diffusion.description import inputs_of
from adapters.diffusion.items import Item, Job
from adapters.diffusion.vary.way import pictures_of
from adapters.prompts import Ladder


class Instruction:
    """Editing, one parent a call.

    A degree is put in words, so nobody knows beforehand how far it leads; `pe probe --ladder` measures it.

    Args:
        pipeline: whose call takes `image` and `prompt`.
        ladder: the words for each degree.
    """

    alone = True

    def __init__(self, pipeline: Any, ladder: Ladder) -> None:
        self.pipeline, self._ladder = pipeline, ladder
        self._inputs = inputs_of(type(pipeline))

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """The parent, the wording of the degree, and where it would be enlarged before it is seen, that it is not."""
        assert job.degree is not None
        own_size = {"_auto_resize": False} if job.size is not None and "_auto_resize" in self._inputs else {}
        return {
            "image": pictures_of(items)[0],
            "prompt": [self._ladder.word(job.degree, item.prompt, item.seed) for item in items],
            **own_size,
        }

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """Nothing."""
        return {}
