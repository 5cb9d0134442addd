"""Options that several commands share."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import click

_LONGEST = 255
"""Bytes of a name on common file systems."""


class _NamedPath(click.Path):
    """A path that a disk takes and that is not empty: an empty one would be the folder that the user is in."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; name a file or a folder.", param, ctx)
        long = next((name for name in Path(value).parts if len(os.fsencode(name)) > _LONGEST), None)
        if long is not None:
            self.fail(f"the name {long[:20]}… is longer than {_LONGEST} bytes: choose a shorter one.", param, ctx)
        return super().convert(value, param, ctx)


PATH = _NamedPath(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout, nothing else.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress; warnings only.")


def _set_level(_context: click.Context, _option: click.Parameter, value: str) -> None:
    from pe.data.quiet import LOGGERS

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
