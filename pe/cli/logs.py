"""The `--log-level` option, the same for all commands that write a log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def log_level_option(command: Command) -> Command:
    """Add `--log-level`: how much goes to the run's confidential log file."""
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        expose_value=False,
        callback=_set_level,
        help="How much the run's confidential/log.txt holds.",
    )(command)


def _set_level(_context: click.Context, _option: click.Parameter, value: str) -> None:
    logging.getLogger("pe").setLevel(value.upper())
