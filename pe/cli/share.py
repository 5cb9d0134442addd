"""`pe export`, `pe verify` and `pe purge`: the two sides of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pe.cli.options import PATH, asking, json_option, tell_next
from pe.cli.pages import print_result
from pe.errors import quoted

if TYPE_CHECKING:
    from pe.store.formats import Format
    from pe.store.run import Run

_FILES = 20
"""Most covered files that are printed."""


@click.command()
@click.argument("run", metavar="RUN|EXPORT", type=PATH)
@click.argument("to", type=PATH, required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "folder", "huggingface", "jsonl", "npz", "parquet", "webdataset"]),
    help="How the synthetic samples are written: docs/handing-on.md; default: npz.",
)
@click.option(
    "--sign-with",
    "key",
    type=PATH,
    help="Your Ed25519 private key, as PEM or as ssh-keygen writes it.",
)
@click.option(
    "--push",
    "repository",
    metavar="OWNER/NAME",
    help="A data-set repository of the hub, new or empty.",
)
@click.option(
    "--public", is_flag=True, help="With --push: everybody may read it at once; else only you."
)
def export(
    run: Path,
    to: Path | None,
    form: Format | None,
    key: Path | None,
    repository: str | None,
    public: bool,
) -> None:
    """Copy what may be shared of RUN to TO, a new folder.

    Copies the certificate, too. Without TO, signs or pushes an existing EXPORT. The signature is in
    certificate.dsse.json; anything that reissues the certificate (an export of an export, `pe
    extend`, `pe view --write`) removes the signature.

    --push takes your own token (HF_TOKEN, or `hf auth login`) and puts the certificate, its
    signature and what it covers on Hugging Face's hub, and nothing else.
    """
    from pe.store.signing import push, sign

    if to is None and (form is not None or (key is None and repository is None)):
        raise click.UsageError(
            "Name TO, a new folder. Only `--sign-with` and `--push` work without it, on an export."
        )
    if public and repository is None:
        raise click.UsageError("`--public` works only with `--push`.")
    # what is signed or pushed is the copy that was just made, if one is made
    whole = _open(run)
    folder = run if to is None else whole.export(to, form or "npz")
    if to is not None:
        click.echo(f"Exported to {folder}.")

    def passphrase() -> str:
        with asking("a key without a passphrase"):
            return str(click.prompt(f"Passphrase of {key}", hide_input=True, err=True))

    if key is not None:
        click.echo(f"Signed by the key {sign(folder, key, passphrase)}.")
    if repository is not None:
        click.echo(f"Pushed to {push(folder, repository, public=public)}.")
    tell_next(["verify", folder, *(["--key", "PUBLIC_KEY"] if key is not None else [])])


def _open(folder: Path) -> Run:
    """Open a run, with a warning if it has no noise."""
    from pe.privacy.certificate_text import NO_NOISE
    from pe.store.run import Run

    run = Run.open(folder)
    if run.noiseless:
        click.echo(f"warning: {NO_NOISE}", err=True)
    return run


@click.command()
@click.argument("run", type=PATH)
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(run: Path, yes: bool) -> None:
    """Delete RUN's folder `confidential/`.

    That is its journal, logs, private embeddings, and who ran it on which data.
    """
    from pe.store.machine import ELSEWHERE, is_ours
    from pe.store.run import Run
    from pe.store.run import purge as purge_run

    whole = Run.open(run)
    if not yes:
        with asking("`--yes`"):
            yes = click.confirm(
                f"Delete {whole.confidential} for good? File a copy of its audit-record.json first."
            )
    if not yes:
        click.echo("Nothing was deleted.")
        raise click.exceptions.Exit(1)
    # asked before the purge deletes what tells it
    own = is_ours(run)
    purge_run(whole)
    click.echo(
        f"Deleted {whole.confidential}. This does not erase what disks, snapshots and backups "
        "still hold."
    )
    if not own:
        click.echo(
            f"A list of unreadable private files was not searched, since {run} {ELSEWHERE}.",
            err=True,
        )


def tell_if_purged(folder: Path) -> None:
    """Say, on stderr, if a run that was purged before has a confidential side again."""
    from pe.store.places import PURGED

    if (folder / PURGED).is_file():
        click.echo(
            f"{folder} was purged before, but has a confidential/ again. Delete it by `pe purge "
            f"{quoted(folder)}`.",
            err=True,
        )


@contextmanager
def tell_if_unsigned(folder: Path) -> Iterator[None]:
    """Say at the end, on stderr, if `folder` has lost its signature.

    It has if its certificate was issued anew.
    """
    from pe.privacy.covered import SIGNED

    has_signature = (folder / SIGNED).is_file()
    try:
        yield
    finally:
        if has_signature and not (folder / SIGNED).is_file():
            click.echo(
                f"{folder} is no longer signed, since its certificate was issued anew. Sign again "
                "what you hand on, by `pe export`.",
                err=True,
            )


@click.command()
@click.argument("folder", metavar="RUN|FOLDER", type=PATH)
@click.option(
    "--key", type=PATH, help="The signer's Ed25519 public key, as PEM or as ssh-keygen writes it."
)
@json_option
def verify(folder: Path, key: Path | None, as_json: bool) -> None:
    """Check a certificate and its files, and with --key who signed it.

    FOLDER is an export. ε must follow from the releases, and every file have the hash that it was
    certified with. If there are many files, only their number is printed; certificate.md names
    them. Get the key directly from the signer, not from FOLDER. No network is needed. Exit status
    1 if anything is not as it was certified, or signed.
    """
    from pe.privacy.covered import SIGNED
    from pe.store.export import examine
    from pe.store.machine import ELSEWHERE, is_ours
    from pe.store.places import CONFIDENTIAL

    signer = ""
    if key is None:
        certificate, problems = examine(folder)
        # no signature covers it, so only this machine can vouch for it
        if (folder / CONFIDENTIAL).exists() and not is_ours(folder):
            problems.append(
                f"'{CONFIDENTIAL}' is there, and the run {ELSEWHERE}: nothing vouches for what is "
                "in it."
            )
    else:
        from pe.store.signing import verify_signed

        signer, certificate, problems = verify_signed(folder, key)
    print_result(
        ({"key": signer} if signer else certificate) | {"problems": problems},
        "verification",
        as_json,
        page="" if signer else _certificate_page(certificate),
        signer=signer,
        certificate=certificate,
    )
    if problems:
        raise click.exceptions.Exit(1)
    if key is None and not as_json and (folder / SIGNED).is_file():
        tell_next(["verify", folder, "--key", "PUBLIC_KEY"])


def _certificate_page(certificate: dict[str, Any]) -> str:
    """Return the page of a certificate. Anybody may have changed its files."""
    from pe.errors import printable
    from pe.privacy.certificate_text import certificate_markdown

    try:
        lines = certificate_markdown(certificate, _FILES).split("\n")
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return "# Privacy certificate: DAMAGED\n"
    return "\n".join(map(printable, lines))
