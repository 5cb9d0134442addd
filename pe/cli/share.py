"""`pe export`, `pe push` and `pe purge`: the two sides of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pe.cli.asking import asking
from pe.cli.options import PATH

if TYPE_CHECKING:
    from pe.store.formats import Format


@click.command()
@click.argument("run", type=PATH)
@click.option("--to", type=PATH, required=True, help="A new folder.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "folder", "huggingface", "jsonl", "npz", "parquet", "webdataset"]),
    default="npz",
    show_default=True,
    help="How the synthetic samples are written: docs/handing-on.md.",
)
def export(run: Path, to: Path, form: Format) -> None:
    """Copy what may be shared of RUN to a new folder.

    Its certificate is among that.
    """
    from pe.privacy.words import NO_NOISE
    from pe.store.run import Run

    if Run.open(run).noiseless:
        click.echo(f"warning: {NO_NOISE}", err=True)
    click.echo(f"Exported to {Run.open(run).export(to, form)}. Check it with: pe privacy {to}")


@click.command()
@click.argument("folder", type=PATH)
@click.option("--to", required=True, help="OWNER/NAME of a data-set repository, new or empty.")
@click.option("--public", is_flag=True, help="Everybody may read it at once; else only you.")
def push(folder: Path, to: str, public: bool) -> None:
    """Put FOLDER, an export, on Hugging Face's hub.

    By your own token (HF_TOKEN, or `hf auth login`). What the certificate covers goes there, and nothing else.
    """
    from pe.privacy.words import NO_NOISE
    from pe.store.hub import push as push_folder
    from pe.store.run import Run

    if Run.open(folder).noiseless:
        click.echo(f"warning: {NO_NOISE}", err=True)
    click.echo(f"Pushed to {push_folder(folder, to, public=public)}")


@click.command()
@click.argument("run", type=PATH)
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(run: Path, yes: bool) -> None:
    """Delete the confidential side of RUN.

    That is its journal, logs, private embeddings, and who ran it on which data.
    """
    from pe.store.purge import purge as purge_run
    from pe.store.run import Run

    opened = Run.open(run)
    if not yes:
        with asking("--yes"):
            yes = click.confirm(
                f"Delete {opened.confidential} for good, audit-record.json too, of which a copy should be filed?"
            )
    if not yes:
        click.echo("Nothing was deleted.")
        raise click.exceptions.Exit(1)
    purge_run(opened)
    click.echo(f"Deleted {opened.confidential}. What disks, snapshots and backups still hold is not erased by this.")


def tell_if_purged(folder: Path) -> None:
    """Say, on stderr, that a command made the confidential side of a run anew that was purged before."""
    from pe.store.places import PURGED

    if (folder / PURGED).is_file():
        click.echo(
            f"{folder} was purged before, and has a confidential/ again: `pe purge {folder}` deletes it.", err=True
        )
