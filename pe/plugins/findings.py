"""What `pe doctor` finds out, and the method by which a plug-in lets it look at an endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable


@dataclass(frozen=True)
class Finding:
    """One line of `pe doctor`."""

    state: Literal["ok", "missing", "problem"]
    what: str
    remedy: str = ""


@runtime_checkable
class LooksAtEndpoint(Protocol):
    """A generator's class that can look at its endpoint without asking for a sample."""

    def look(self, settings: Mapping[str, Any]) -> Iterator[Finding]:
        """Whether it can be reached, takes the key, who answers and what that server heeds.

        Args:
            settings: of a recipe's `api`; of those the address and what tells who asks.
        """
