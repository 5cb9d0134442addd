"""Options that several commands share."""

from __future__ import annotations

import logging

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout, nothing else.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress; warnings only.")


def _set_level(_context: click.Context, _option: click.Parameter, value: str) -> None:
    from pe.engine.logs import LOGGERS

    for name in LOGGERS:
        logging.getLogger(name).setLevel(value.upper())


log_level_option = click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    expose_value=False,
    callback=_set_level,
    help="How much the run's confidential/log.txt holds.",
)
