"""What a recipe says of any endpoint: how it is reached, what is asked of it, what its images become."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from adapters.http.profiles import Profile
from adapters.prompts import Ladder, Texts, TextsByLabel
from pe.data.decoding import Channels, Resize
from pe.errors import RecipeError
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
        key_file: a file that holds the key, read again when it changes or the key is refused.
        key_command: a program and its arguments, whose output is the key; run again when the key is refused.
        basic_auth_env: the environment variable that holds user:password, for HTTP Basic authentication.
        headers_env: further headers, each with the environment variable that holds its value.
        client_cert: a file with this client's certificate (PEM).
        client_key: a file with its private key (PEM); None: it stands in `client_cert`.
        timeout: seconds to connect, and between two bytes.
        total_timeout: seconds of a whole request; None: 900, or twice `timeout` if that is more.
        tries: how often a request is made before the server counts as away.
        patience: seconds that a server which is away, or throttles, is waited for; then the run stops, to be resumed.
    """

    key_env: str | None = None
    key_file: Path | None = None
    key_command: Annotated[list[str], Field(min_length=1)] | None = None
    basic_auth_env: str | None = None
    headers_env: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], str] | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    timeout: Seconds = 180.0
    total_timeout: Seconds | None = None
    tries: Count = 6
    patience: Seconds = 900.0

    @property
    def deadline(self) -> float:
        """Seconds of a whole request."""
        return max(900.0, 2 * self.timeout) if self.total_timeout is None else self.total_timeout

    @property
    def key_expires(self) -> bool:
        """Whether a key that was refused may be had anew."""
        return self.key_file is not None or self.key_command is not None

    @model_validator(mode="after")
    def _check_one_key(self) -> Self:
        named = [name for name in ("key_file", "key_command", "basic_auth_env") if getattr(self, name) is not None]
        if self.key_env is not None and "key_env" in self.model_fields_set:
            named = ["key_env", *named]
        if len(named) > 1:
            raise RecipeError(f"{' and '.join(named)} are given: an endpoint takes one of them.")
        if self.client_key is not None and self.client_cert is None:
            raise RecipeError("client_key is given without client_cert: name the certificate's file, too.")
        return self

    @model_validator(mode="after")
    def _check_addresses(self) -> Self:
        for name in ("base_url", "url"):
            found = getattr(self, name, None)
            for url in found if isinstance(found, list) else [found or ""]:
                if "@" in urlsplit(url).netloc:
                    raise RecipeError(
                        f"{name} holds a user or a password, which a run would store: take them out of it, and name "
                        "in basic_auth_env an environment variable that holds user:password."
                    )
        return self


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
    """An endpoint that draws from prompts.

    Attributes:
        keep_size: keep each sample as it was drawn, too, and vary that: true, where the endpoint draws at one known
            `size`; or height and width in pixels, to which what it draws is resized. Else variations are made of
            samples at `image_size`, and detail is lost in every iteration.
    """

    prompts: TextsByLabel
    image_size: Size
    keep_size: bool | Size = False
    base_url: str | None = None

    @model_validator(mode="after")
    def _check_drawn(self) -> Self:
        if self.keep_size is True and self.drawn is None:
            raise RecipeError(
                "keep_size: true needs one known size at which the endpoint draws: give size, or the pixels to keep "
                "(keep_size: 512)."
            )
        return self

    @property
    def kept(self) -> tuple[int, int] | None:
        """(height, width) at which samples are kept to be varied, beside `image_size`; None: they are not."""
        size = self.drawn if self.keep_size is True else self.keep_size or None
        return None if size == self.image_size else size

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

    @property
    def profile(self) -> Profile | None:
        """What is known of the server without asking it."""
        return None

    @property
    def asks(self) -> bool:
        """Whether the server is to be asked who it is."""
        return False

    @property
    def way(self) -> str | None:
        """The setting `variation`, of a kind that can vary samples in several ways."""
        return None

    def served_by(self, profile: Profile | None, named: bool = True) -> Self:
        """These settings, with the server's in place of those that are not stated.

        Args:
            profile: what is known of the server; None: nothing.
            named: by the recipe. A server that was recognised in mid-run is sent one parent a request all the same,
                because a run measures before its first request whether several come back mixed up.

        Raises:
            RecipeError: the server cannot vary samples, or not in this way.
        """
        if profile is None:
            return self
        way = self.way
        if way is not None and way not in profile.varies:
            has = " and ".join(f"variation: {name}" for name in profile.varies) or "none: use another server"
            raise RecipeError(
                f"variation: {profile.title} (server: {profile.server}) cannot vary a sample by '{way}'; it has {has}, "
                "or write server: null if it is another."
            )
        stated = {name: getattr(self, name) for name in self.model_fields_set}
        taken = profile.settings_for(stated)
        if not named:
            taken.pop("several_parents", None)
        return self.model_copy(update=taken)


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
