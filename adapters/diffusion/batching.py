"""How many images share a forward pass: as many as memory takes, found by trying."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BatchSize:
    """The batch size for one kind of job on one device.

    Attributes:
        size: images per batch now, ≥ 1.
        most: never more than this.
        growing: whether a batch that went well is followed by one twice as large.
    """

    size: int
    most: int
    growing: bool

    @classmethod
    def of(cls, given: int | None, most: int) -> BatchSize:
        """As given; without a number, found by growing from 1 to `most`."""
        return cls(1, most, growing=True) if given is None else cls(given, given, growing=False)

    def went_well(self, count: int) -> None:
        """After a batch of `count` images: the next may be larger, if this one was full."""
        if self.growing and count >= self.size:
            self.size = min(2 * self.size, self.most)
            self.growing = self.size < self.most

    def refused(self, count: int) -> bool:
        """After memory refused a batch of `count` images: half of it from now on.

        Growing by doubling, half is the size that went well before.

        Returns:
            Whether there is something smaller to try.
        """
        self.growing = False
        self.size = max(1, count // 2)
        return count > 1
