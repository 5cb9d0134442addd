"""What a check of `pe doctor --gpu` is and what it finds; checks are entry points of the group `pe.gpu_checks`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Size = Literal["tiny", "small", "real"]
"""Of the shapes that a check takes: for tests on a processor, for a quick look at a GPU, and as in use."""

Figure = float | int | str


@dataclass(frozen=True)
class Found:
    """What a check found.

    Attributes:
        state: fail: something is not as claimed; skipped: this machine has not what the check needs.
        reason: of a failure or a skip, one sentence; empty otherwise.
        figures: what was measured, in the order in which a person reads it.
    """

    state: Literal["pass", "fail", "skipped"] = "pass"
    reason: str = ""
    figures: Mapping[str, Figure] = field(default_factory=dict)


def judged(figures: Mapping[str, Figure], faults: list[str]) -> Found:
    """A pass with these figures, or a failure for the first of the faults; further ones are counted."""
    if not faults:
        return Found(figures=figures)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return Found("fail", faults[0] + more, figures)


@dataclass(frozen=True)
class GPUCheck:
    """A check, which runs in a process of its own.

    Attributes:
        run: what it does, on a device of torch (`cuda:0`; in tests `cpu`), with shapes of this size. It may raise:
            that is a failure.
        seconds: after which it is killed and has failed.
    """

    run: Callable[[str, Size], Found]
    seconds: float = 120.0
