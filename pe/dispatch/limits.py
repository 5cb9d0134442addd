"""The limits of a run, and the meter that says before each request if it may be made."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event

from pe.errors import Interrupted, LimitReached, PEError
from pe.plugins.price import Price
from pe.plugins.protocols import NOTHING, Usage
from pe.store.journal import Totals

MEANINGFUL = 20


@dataclass(frozen=True)
class Limits:
    """Limits at which a run stops, resumable. None: no limit."""

    max_images: int | None = None  # images that the generator makes over the whole run
    max_cost: float | None = None  # cost over the whole run, in the price's currency
    # wall-clock time during which one process asks the generator, however many requests are under
    # way. Private work does not count: where a run stops does not depend on it. A resumed run
    # counts from 0
    max_seconds: float | None = None
    max_concurrency: int | None = None  # requests under way at once
    # share of the items asked for that may be refused; fewer than MEANINGFUL items count as
    # MEANINGFUL
    max_refused: float | None = None


class LimitToRaise(LimitReached):
    """A limit at which a run stops again, however often it is resumed, until the limit is raised.

    Attributes:
        key: the limit's key in the recipe, dotted.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


@dataclass
class Meter:
    """Says, before each request, if it may be made."""

    limits: Limits = field(default_factory=Limits)  # of the run
    price: Price = field(default_factory=Price)  # of requests and samples
    # set from outside (a signal) to stop at the next chunk's boundary
    stop: Event = field(default_factory=Event)
    # the tokens and pixels of a sample, where they are known before the first answer
    expected: Usage = NOTHING
    _before: float = 0.0
    _since: float | None = None

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Count the block's time as time of asking the generator (`max_seconds`)."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._before = self._seconds()
            self._since = None

    def _seconds(self) -> float:
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)

    def stop_reason(self) -> PEError | None:
        """Return why nothing more may be asked or waited for, or None if work goes on."""
        if self.stop.is_set():
            return Interrupted("Stopped as asked, with everything that was answered committed.")
        limit = self.limits.max_seconds
        if limit is not None and self._seconds() > limit:
            return LimitReached(f"limits.max_seconds = {limit:g} is reached.")
        return None

    def refusal(self, totals: Totals, calls: int, images: int) -> PEError | None:
        """Return why the next request may not be made, or None if it may.

        Args:
            totals: committed so far.
            calls: requests under way, and the one in question.
            images: images under way, and those in question.
        """
        limits = self.limits
        items = totals.answers + totals.refusals
        reason = self.stop_reason()
        if reason is not None:
            return reason
        images_made = totals.usage.images
        if limits.max_images is not None and images_made + images > limits.max_images:
            return LimitToRaise(
                f"limits.max_images = {limits.max_images} is reached: {images_made} samples are "
                "made, and the next request, with those under way, would make them "
                f"{images_made + images}.",
                "limits.max_images",
            )
        share = totals.refusals / max(items, MEANINGFUL)
        if limits.max_refused is not None and share > limits.max_refused:
            return LimitToRaise(
                f"refusals.max_share = {limits.max_refused:g} is reached ({totals.refusals} of "
                f"{items} samples asked for were refused): change the prompts in a new run, or "
                "raise the share.",
                "refusals.max_share",
            )
        # An answer may not state its pixels: its images then count as expected.
        pixels = max(totals.usage.megapixels, images_made * self.expected.megapixels)
        before = replace(self.expected, images=1)
        if images_made:
            before = replace(totals.usage, megapixels=pixels)
        cost = self.price.of(totals.usage) + self.price.of_next(before, calls, images)
        if limits.max_cost is not None and cost > limits.max_cost:
            limit = f"{limits.max_cost:g} {self.price.currency}"
            return LimitToRaise(
                f"limits.max_cost = {limit} is reached: {self.spending(totals)} are spent, and the "
                f"next request, with those under way, would make them {cost:.2f}.",
                "limits.max_cost",
            )
        return None

    def spending(self, totals: Totals) -> str:
        """Return the cost of `totals` as text, or "" if everything is free."""
        if self.price.free:
            return ""
        return f"{self.price.of(totals.usage):.2f} {self.price.currency}"
