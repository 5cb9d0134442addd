"""What is said of a list that does not fit the number of iterations."""

from __future__ import annotations

from typing import Any


def check_length(name: str, value: Any, iterations: int, extra: int = 0, only_list: bool = False) -> None:
    """Refuse a list that has not one entry per iteration, and `extra` ones for S_0; what is no list fits any number.

    Args:
        name: of the list's key; of another section than `evolution` with that section's.
        value: the list, or one number.
        iterations: T.
        extra: 1 where S_0 has an entry, too.
        only_list: whether it cannot be one number.

    Raises:
        ValueError: what is wrong, and the ways to mend it.
    """
    if not isinstance(value, list) or len(value) == iterations + extra:
        return
    key = "evolution.iterations" if "." in name else "iterations"
    entries = "1 entry" if len(value) == 1 else f"{len(value)} entries"
    fitting = f"{iterations + extra} ({'S_0 and ' * extra}one per iteration)"
    ways = [f"give it {fitting}"] if only_list else [f"give {name} one number"]
    ways += [fitting] if not only_list and iterations + extra > 1 else []
    if len(value) >= extra:
        ways.append(f"set {key} to {len(value) - extra}")
    raise ValueError(f"{name} has {entries}, and {key} is {iterations}: {', or '.join(ways)}")
