"""What every way to vary offers to the model that calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from PIL import Image

from adapters.diffusion.items import Item, Job


class Vary(Protocol):
    """A way to vary images by one pipeline.

    Attributes:
        pipeline: what is called.
        alone: whether it takes one parent a call, since several would be references of one image.
    """

    pipeline: Any
    alone: bool

    def arguments(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """What the call takes besides what every call does: the parents, how far to go from them, other words.

        Raises:
            APIError: the degree cannot be obeyed.
        """
        ...

    def arguments_of_new(self, job: Job, items: Sequence[Item]) -> Mapping[str, Any]:
        """What new images need, where this way changed the pipeline that draws them."""
        ...


def pictures_of(items: Sequence[Item]) -> list[Image.Image]:
    """The parents, as every pipeline takes them."""
    return [Image.fromarray(item.image) for item in items if item.image is not None]
