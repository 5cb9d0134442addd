"""The `pe` command: finds its subcommands through entry points and turns errors into sentences."""

from __future__ import annotations

import sys
import warnings
from typing import TextIO

import click

from pe.errors import PEError, nearest_name, printable
from pe.plugins.registry import load, plugins
from pe.version import MIXED, __version__


class PluginGroup(click.Group):
    """A group whose commands are the entry points of `pe.commands`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All installed commands, sorted."""
        return list(plugins("pe.commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command `cmd_name`; None when there is none."""
        if cmd_name not in plugins("pe.commands"):
            return None
        command = load("pe.commands", cmd_name)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with; of an unknown one the nearest is named."""
        known = self.list_commands(ctx)
        if not args[0].startswith("-") and args[0] not in known:
            ctx.fail(f"No such command '{args[0]}'; {nearest_name(args[0], known)}")
        return super().resolve_command(ctx, args)


@click.group(cls=PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pe")
def pe() -> None:
    """Private Evolution: differentially private synthetic data from any generator you can call."""


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A library's or a source's warning as one line, without the place in our code that gave it."""
    click.echo(f"warning: {printable(str(message))}", err=True)


def main() -> None:
    """Run the command line; a PEError ends in its one sentence and its exit status."""
    if not hasattr(sys.modules["pe"], "__version__"):  # another library's `pe/__init__.py` has replaced ours
        sys.exit(f"pe: {MIXED}")
    warnings.showwarning = _show_warning
    try:
        status = pe(standalone_mode=False)
    except PEError as error:
        click.echo("\n  ".join([f"pe: {error}", *getattr(error, "__notes__", ())]), err=True)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        told = click.UsageError(printable(error.format_message()), context)
        told.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("pe: interrupted.", err=True)
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)
