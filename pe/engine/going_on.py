"""What goes on with work that stopped, as its user types it: a command, or a call from Python."""

from __future__ import annotations

from pathlib import Path


def to_resume(folder: Path, key: str, python: bool) -> str:
    """What goes on with the run in `folder`.

    Args:
        folder: the run's directory.
        key: of the recipe, dotted, the limit to raise; "": none.
        python: whether the user is in Python.
    """
    return f"pe.resume('{folder}'{_changes(key)})" if python else f"pe resume {folder}{_option(key)}"


def to_extend(folder: Path, count: int, degree: float, key: str, python: bool) -> str:
    """What goes on with an extension; other arguments as of `to_resume`."""
    if python:
        return f"pe.extend('{folder}', {count}, degree={degree:g}{_changes(key)})"
    return f"pe extend {folder} -n {count} --degree {degree:g}{_option(key)}"


def _option(key: str) -> str:
    return f" --set {key}=…" if key else ""


def _changes(key: str) -> str:
    return f", changes={{'{key}': …}}" if key else ""
