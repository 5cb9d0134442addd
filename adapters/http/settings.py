"""What a recipe says of any endpoint: how it is reached, what is asked of it, what its images become."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from adapters.prompts import Ladder, Texts, TextsByLabel
from pe.data.decoding import Channels, Resize
from pe.plugins.validation import Count, Settings

Scalar = str | int | float | bool
Seconds = Annotated[float, Field(gt=0)]


def _check_sides(size: tuple[int, int]) -> tuple[int, int]:
    if not all(1 <= side <= 8192 for side in size):
        raise ValueError("each side has 1 to 8192 pixels")
    return size


Size = Annotated[
    tuple[int, int],
    BeforeValidator(lambda size: (size, size) if isinstance(size, int) else size, int | tuple[int, int]),
    AfterValidator(_check_sides),
]
"""(height, width) in pixels; a recipe may give one number for both."""


class Connection(Settings):
    """How an endpoint is reached; none of it changes what a run means.

    Attributes:
        key_env: the environment variable that holds the key; None: none is sent.
        timeout: seconds to connect, and between two bytes.
        tries: how often a request is made before its samples count as failed.
    """

    key_env: str | None = None
    timeout: Seconds = 180.0
    tries: Count = 6


class Concurrent(Connection):
    """The same, of one that takes several requests at once.

    Attributes:
        concurrency: most requests at once.
    """

    concurrency: Count = 1


class Pictures(Settings):
    """What samples are drawn from, and what they look like.

    Attributes:
        prompts: a text, a list to draw from, or either for each label; `{label}` is replaced.
        image_size: height and width of the samples, pixels, or one number for both; what comes is resized to it.
        resize: how an image gets to `image_size`.
        channels: 3, or 1 for grey samples.
    """

    prompts: TextsByLabel | None = None
    image_size: Size | None = None
    resize: Resize = "crop"
    channels: Channels = 3


class Prompted(Concurrent, Pictures):
    """An endpoint that draws from prompts."""

    prompts: TextsByLabel
    image_size: Size
    base_url: str | None = None

    @property
    def url(self) -> str:
        """Where samples are sent."""
        return self.base_url or ""

    @property
    @abstractmethod
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""

    @property
    def drawn(self) -> tuple[int, int] | None:
        """(height, width) that the endpoint is asked for, so that another is a fault; None: any."""
        return None


class Worded(Prompted):
    """An endpoint that takes a degree of variation in words, and perhaps in a field of its own.

    Attributes:
        wordings: degree → text; a degree is put in the text of the first entry at or above it. None: those shipped;
            with `degree_exact` none.
        degree_field: a field in which the degree is sent as a number, too (`strength`); many servers ignore it.
        degree_exact: the server is known to heed `degree_field`: the number tells the degree, without words.
    """

    wordings: dict[float, Texts] | None = None
    degree_field: str | None = None
    degree_exact: bool = False

    @property
    def ladder(self) -> Ladder:
        """How it is told a degree of variation."""
        return Ladder.of(self.wordings, self.degree_field, self.degree_exact)
