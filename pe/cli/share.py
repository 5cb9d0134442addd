"""`pe export`, `pe push`, `pe purge`, `pe sign`, `pe verify` and `pe report`: the two sides of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import PATH, asking, json_option

if TYPE_CHECKING:
    from pe.store.formats import Format
    from pe.store.run import Run

_FILES = 20
"""Most covered files that are printed."""


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

    The certificate is copied, too.
    """
    click.echo(f"Exported to {_open(run).export(to, form)}. Check it with: pe verify {to}")


@click.command()
@click.argument("folder", type=PATH)
@click.option("--to", required=True, help="OWNER/NAME of a data-set repository, new or empty.")
@click.option("--public", is_flag=True, help="Everybody may read it at once; else only you.")
def push(folder: Path, to: str, public: bool) -> None:
    """Put FOLDER, an export, on Hugging Face's hub.

    Your own token is used (HF_TOKEN, or `hf auth login`). Nothing but the certificate and what it covers goes there.
    """
    from pe.store.signing import push as push_folder

    _open(folder)
    click.echo(f"Pushed to {push_folder(folder, to, public=public)}")


def _open(folder: Path) -> Run:
    """Open a run, with a warning if it has no noise."""
    from pe.privacy.words import NO_NOISE
    from pe.store.run import Run

    run = Run.open(folder)
    if run.noiseless:
        click.echo(f"warning: {NO_NOISE}", err=True)
    return run


@click.command()
@click.argument("run", type=PATH)
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(run: Path, yes: bool) -> None:
    """Delete the confidential side of RUN.

    That is its journal, logs, private embeddings, and who ran it on which data.
    """
    from pe.store.run import Run
    from pe.store.run import purge as purge_run

    whole = Run.open(run)
    if not yes:
        with asking("--yes"):
            yes = click.confirm(
                f"Delete {whole.confidential} for good, audit-record.json too, of which a copy should be filed?"
            )
    if not yes:
        click.echo("Nothing was deleted.")
        raise click.exceptions.Exit(1)
    purge_run(whole)
    click.echo(f"Deleted {whole.confidential}. What disks, snapshots and backups still hold is not erased by this.")


def tell_if_purged(folder: Path) -> None:
    """Say, on stderr, if a run that was purged before has a confidential side again."""
    from pe.store.places import PURGED

    if (folder / PURGED).is_file():
        click.echo(
            f"{folder} was purged before, and has a confidential/ again: `pe purge {folder}` deletes it.", err=True
        )


@contextmanager
def tell_if_unsigned(folder: Path) -> Iterator[None]:
    """Say at the end, on stderr, if the certificate of `folder` was issued anew, and so has lost its signature."""
    from pe.privacy.covered import SIGNED

    has_signature = (folder / SIGNED).is_file()
    try:
        yield
    finally:
        if has_signature and not (folder / SIGNED).is_file():
            click.echo(
                f"{folder} is no longer signed, since its certificate was issued anew: sign what you hand on again, "
                "by `pe sign`.",
                err=True,
            )


@click.command()
@click.argument("folder", type=PATH)
@click.option("--key", type=PATH, required=True, help="Your Ed25519 private key, as PEM or as ssh-keygen writes it.")
def sign(folder: Path, key: Path) -> None:
    """Sign the certificate of FOLDER, an export.

    The signature lies beside it, in certificate.dsse.json. A command that issues the certificate anew
    (`pe export` of a copy, `pe report`) leaves it unsigned: sign last.
    """
    from pe.store.signing import sign as sign_folder

    def passphrase() -> str:
        with asking("a key without a passphrase"):
            return str(click.prompt(f"Passphrase of {key}", hide_input=True, err=True))

    click.echo(f"Signed by the key {sign_folder(folder, key, passphrase)}.")
    click.echo(f"Whoever has its public half checks it with: pe verify {folder} --key PUBLIC_KEY")


@click.command()
@click.argument("folder", metavar="RUN|FOLDER", type=PATH)
@click.option("--key", type=PATH, help="The signer's Ed25519 public key, as PEM or as ssh-keygen writes it.")
@json_option
def verify(folder: Path, key: Path | None, as_json: bool) -> None:
    """Check the certificate of RUN or FOLDER, an export; with --key, who signed it.

    ε must follow from the releases, and every file have the hash that it was certified with. If there are many files,
    only their number is printed; certificate.md names them. Get the key from the signer by another way than FOLDER.
    No network is needed. Exit status 1 if anything is not as it was certified, or signed.
    """
    from pe.errors import printable
    from pe.store.export import examine

    answer: dict[str, Any]
    if key is None:
        certificate, problems = examine(folder)
        answer, page = certificate, _certificate_page(certificate)
        promise = "ε follows from the releases" if certificate.get("holds") else "It promises nothing: NO GUARANTEE"
        page_if_good = [f"✓ {promise}, and every file is as it was certified."]
    else:
        from pe.store.signing import verify_signed

        keyid, certificate, problems = verify_signed(folder, key)
        answer, page = {"key": keyid}, []
        page_if_good = [
            f"✓ Signed by the key {keyid}: every file is the one that was signed.",
            f"{'✓' if certificate.get('holds') else '!'} {certificate.get('statement')}",
        ]
    if as_json:
        click.echo(json.dumps(answer | {"problems": problems}))
    else:
        for line in [*page, *(f"✗ {problem}" for problem in problems), *([] if problems else page_if_good)]:
            click.echo(printable(line))
    if problems:
        raise click.exceptions.Exit(1)


def _certificate_page(certificate: dict[str, Any]) -> list[str]:
    """Return the lines of a certificate, of which the files may have been changed by anybody."""
    from pe.privacy.words import certificate_markdown

    try:
        return certificate_markdown(certificate, _FILES).split("\n")
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return ["# Privacy certificate: DAMAGED", ""]


@click.command()
@click.argument("run_folder", metavar="RUN", type=PATH)
@click.option("--confidential", is_flag=True, help="Write the owner's page, into confidential/, not the shareable one.")
def report(run_folder: Path, confidential: bool) -> None:
    """Write RUN's report, one HTML file that needs nothing else.

    It may be shared; with --confidential, it may not.
    """
    from pe.engine.report import write_report

    with tell_if_unsigned(run_folder):
        click.echo(str(write_report(run_folder, confidential=confidential)))
