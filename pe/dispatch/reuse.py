"""The lookahead's variations of the chosen parents, taken as their offspring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pe.data.population import Members

Items = npt.NDArray[np.int64]
NOBODY = -1


@dataclass(frozen=True, eq=False)
class Loan:
    """What a phase of offspring takes from the lookahead before it.

    Attributes:
        phase: the lookahead's.
        child: int64 (m,), the offspring that each of its m variations becomes; NOBODY where none.
    """

    phase: str
    child: Items

    @property
    def children(self) -> Items:
        """The offspring that are there already."""
        there: Items = self.child[self.child != NOBODY]
        return there


def lend(phase: str, made: npt.NDArray[np.bool_], k: int, members: Members) -> Loan:
    """Give the r-th offspring of each parent the r-th of its variations: without replacement, in their order.

    A parent with more offspring than variations leaves the rest without one.

    Args:
        phase: the lookahead's.
        made: bool (n·k,), whether variation j of candidate i, at i·k + j, is there.
        k: variations per candidate.
        members: whose offspring each item is; one that is kept gets nothing.
    """
    items = np.flatnonzero(~members.kept)
    parents = members.parents[items]
    variations = np.flatnonzero(made)
    owners = variations // k
    offspring = np.argsort(parents, kind="stable")
    first = np.searchsorted(parents[offspring], owners)  # the place of each owner's first offspring
    wanted = np.bincount(parents, minlength=len(made) // k)[owners]
    rank = np.arange(len(variations)) - np.searchsorted(owners, owners)
    taken = rank < wanted
    child = np.full(len(made), NOBODY, dtype=np.int64)
    child[variations[taken]] = items[offspring[(first + rank)[taken]]]
    return Loan(phase, child)
