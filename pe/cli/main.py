"""The `pe` command: finds its subcommands through entry points and turns errors into sentences."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from contextlib import suppress
from typing import TextIO

import click

from pe.errors import PEError, nearest_name, printable
from pe.plugins.registry import load, plugins
from pe.version import MIXED, __version__

# the shell's status after SIGPIPE; 1 is that of `pe verify` for a run that is not as certified
_UNREAD = 141
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Make", ("demo", "init", "explain", "plan", "probe", "run", "extend")),
    ("Look", ("view",)),
    ("Judge", ("evaluate",)),
    ("Share", ("export", "verify", "purge")),
    ("Numbers and machine", ("epsilon", "ledger", "serve", "doctor")),
)
_FORMER = {
    "audit": "doctor --attack",
    "calibrate": "epsilon --epsilon ε",
    "compare": "view RUN RUN",
    "privacy": "verify RUN",
    "push": "export EXPORT --push OWNER/NAME",
    "report": "view RUN --write",
    "resume": "run RUN",
    "sign": "export EXPORT --sign-with KEY",
    "status": "view RUN --text",
    "watch": "view RUN",
}
"""Commands that are gone → what to type in their place."""


class PluginGroup(click.Group):
    """A group whose commands are the entry points of `pe.commands`.

    The help shows them by what they are for.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all installed commands, sorted."""
        return list(plugins("pe.commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command `cmd_name`, or None."""
        if cmd_name not in plugins("pe.commands"):
            return None
        command = load("pe.commands", cmd_name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, a section for each group. Those of other packages come last."""
        names = self.list_commands(ctx)
        own = {name for _, members in _GROUPS for name in members}
        others = [name for name in names if name not in own]
        width = max(map(len, names), default=0)
        for title, members in (*_GROUPS, ("Of other packages", others)):
            rows = []
            for name in members:
                command = self.get_command(ctx, name)
                # an installation may lack some of them
                if command is not None:
                    text = command.get_short_help_str(formatter.width - 6 - width)
                    rows.append((name.ljust(width), text))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` begin with.

        For an unknown one, fail and name the nearest or the new one.
        """
        names = self.list_commands(ctx)
        if args[0] in _FORMER and args[0] not in names:
            raise click.UsageError(f"`pe {args[0]}` is now `pe {_FORMER[args[0]]}`.")
        if not args[0].startswith("-") and args[0] not in names:
            ctx.fail(f"No such command '{args[0]}'; {nearest_name(args[0], names)}")
        return super().resolve_command(ctx, args)


@click.group(cls=PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pe")
def pe() -> None:
    """Private Evolution: differentially private synthetic data from any generator you can call."""


def _show_warning(message: Warning | str, *_place: object, **_more: object) -> None:
    """Print a library's or a source's warning as one line.

    The place in our code that gave it is left out.
    """
    click.echo(f"warning: {printable(str(message))}", err=True)


def main() -> None:
    """Run the command line. For an error print one sentence and exit with the error's status."""
    # another library's `pe/__init__.py` may have replaced ours
    if not hasattr(sys.modules["pe"], "__version__"):
        _tell(f"pe: {MIXED}")
        sys.exit(2)
    stdout = sys.stdout
    for stream in (stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console in Latin-1 has no ε
    warnings.showwarning = _show_warning
    try:
        status = _run()
        if stdout is not None:
            stdout.flush()
    except (OSError, SystemExit) as error:
        if isinstance(error, SystemExit) and error.code != 1:
            raise
        status = _status_after(error, stdout)
    sys.exit(status)


def _run() -> int:
    """Run the command. Return its exit status."""
    try:
        status = pe(standalone_mode=False)
    except PEError as error:
        _tell("\n  ".join([f"pe: {error}", *getattr(error, "__notes__", ())]))
        return error.exit_status
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        context = error.ctx if isinstance(error, click.UsageError) else None
        click.UsageError(printable(error.format_message()), context).show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        _tell("pe: interrupted.")
        return 130
    return status if isinstance(status, int) else 0


def _status_after(error: OSError | SystemExit, stdout: TextIO | None) -> int:
    """Print a system error and return the exit status.

    Click and rich exit with 1 if nobody reads the pipe.
    """
    unwritten = None
    try:
        if stdout is not None:
            stdout.flush()
    except OSError as fault:
        unwritten = fault
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more as it ends
    if isinstance(error, SystemExit) or isinstance(unwritten, BrokenPipeError):
        return _UNREAD
    if unwritten is not None:
        _tell(f"pe: What is printed cannot be written: {unwritten.strerror}.")
    else:
        place = f"{error.filename}: " if error.filename else ""
        is_full = getattr(error, "errno", 0) == errno.EMFILE
        remedy = "raise `ulimit -n`" if is_full else "check the disk, or the machine"
        _tell(f"pe: {printable(f'{place}{error.strerror or error}')}: {remedy}.")
    return 2


def _tell(sentence: str) -> None:
    with suppress(OSError):  # nobody can be told that stderr is full
        click.echo(sentence, err=True)
