"""`pe sign` and `pe verify`: who vouches for a certificate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from pe.cli.asking import asking
from pe.cli.options import PATH, json_option


@contextmanager
def tell_if_unsigned(folder: Path) -> Iterator[None]:
    """Say so in the end, on stderr, if the certificate of `folder` was issued anew, which ends its signature."""
    from pe.privacy.covered import SIGNED

    signed = (folder / SIGNED).is_file()
    try:
        yield
    finally:
        if signed and not (folder / SIGNED).is_file():
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

    The signature lies beside it, in certificate.dsse.json. What issues the certificate anew (`pe export` of a copy,
    `pe report`) leaves it unsigned: sign last.
    """
    from pe.store.signing import sign as sign_folder

    def passphrase() -> str:
        with asking("a key without a passphrase"):
            return str(click.prompt(f"Passphrase of {key}", hide_input=True, err=True))

    click.echo(f"Signed by the key {sign_folder(folder, key, passphrase)}.")
    click.echo(f"Whoever has its public half checks it with: pe verify {folder} --key PUBLIC_KEY")


@click.command()
@click.argument("folder", type=PATH)
@click.option(
    "--key", type=PATH, required=True, help="The signer's Ed25519 public key, as PEM or as ssh-keygen writes it."
)
@json_option
def verify(folder: Path, key: Path, as_json: bool) -> None:
    """Check who signed FOLDER, and that nothing was changed.

    Get the key from the signer by another way than FOLDER. Needs no network. All that `pe privacy` checks is checked.
    """
    from pe.errors import printable
    from pe.store.signing import verify_signed

    keyid, certificate, problems = verify_signed(folder, key)
    if as_json:
        click.echo(json.dumps({"key": keyid, "problems": problems}))
    else:
        for problem in problems:
            click.echo(f"✗ {printable(problem)}")
        if not problems:
            click.echo(f"✓ Signed by the key {keyid}: every file is the one that was signed.")
            click.echo(f"{'✓' if certificate['holds'] else '!'} {printable(certificate['statement'])}")
    if problems:
        raise click.exceptions.Exit(1)
