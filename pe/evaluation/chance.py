"""Whether a thing is more frequent among generated samples than chance brings it."""

from __future__ import annotations

LEVEL = 0.01
"""How often the answer would be yes, if generated samples were as held-out ones are."""


def beyond_chance(made_with: int, made: int, unseen_with: int, unseen: int) -> bool:
    """Whether a larger share of the generated than of the held-out samples has it, by Fisher's exact test, one-sided.

    Args:
        made_with: generated samples that have it.
        made: generated samples.
        unseen_with: held-out samples that have it.
        unseen: held-out samples.
    """
    from scipy.stats import hypergeom

    tail = hypergeom.sf(made_with - 1, made + unseen, made_with + unseen_with, made)
    return made_with > 0 and bool(tail < LEVEL)
