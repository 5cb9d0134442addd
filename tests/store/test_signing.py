"""A signature says who vouches for a folder; another implementation of DSSE says so, too."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from pe.errors import RecipeError, RunError
from pe.store.certified import read_certificate, reissue
from pe.store.signing import sign, verify_signed
from tests.cli.typed import pe as command

SIGNED = "certificate.dsse.json"
PAGE = Path(__file__).parents[2] / "docs" / "handing-on.md"


def no_passphrase():
    raise AssertionError("nothing asks for a passphrase")


def write_keys(folder, name="key", encryption=None, form=PrivateFormat.PKCS8):
    """A private key, and its public half beside it as NAME.pub."""
    secret = Ed25519PrivateKey.generate()
    path = folder / name
    path.write_bytes(secret.private_bytes(Encoding.PEM, form, encryption or NoEncryption()))
    ssh = form is PrivateFormat.OpenSSH
    public = (
        (Encoding.OpenSSH, PublicFormat.OpenSSH)
        if ssh
        else (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    path.with_suffix(".pub").write_bytes(secret.public_key().public_bytes(*public))
    return path


@pytest.fixture(scope="module")
def made(plain, tmp_path_factory):
    """An export and the key that signed it."""
    folder = tmp_path_factory.mktemp("signed")
    sign(plain.export(folder / "out"), write_keys(folder), no_passphrase)
    return folder


@pytest.fixture
def signed(made, tmp_path):
    shutil.copy(made / "key", tmp_path)
    shutil.copy(made / "key.pub", tmp_path)
    return Path(shutil.copytree(made / "out", tmp_path / "out"))


def problems(folder, key=None):
    return verify_signed(folder, key or folder.parent / "key.pub")[2]


def test_an_export_is_signed_as_it_is_made_or_later(plain, tmp_path):
    write_keys(tmp_path)
    for words in (
        ["export", plain.folder, "out", "--sign-with", "key"],
        ["export", "out", "--sign-with", "key"],
    ):
        told = command(*words, cwd=tmp_path)
        assert told.stdout.endswith("\nnext: pe verify out --key PUBLIC_KEY\n"), told.stderr
        assert command("verify", "out", "--key", "key.pub", cwd=tmp_path).stdout.startswith(
            "✓ Signed by the key "
        )
        (tmp_path / "out" / SIGNED).unlink()
    for words, sentence in (
        (
            ["out"],
            "Name TO, a new folder. Only `--sign-with` and `--push` work without it, on an export",
        ),
        (["out", "--push", "a/b", "--format", "csv"], "Name TO, a new folder"),
        (["out", "two", "--public"], "`--public` works only with `--push`"),
    ):
        assert sentence in command("export", *words, cwd=tmp_path).stderr


def test_another_implementation_verifies_the_envelope(signed):
    text = (signed / SIGNED).read_text()
    keyid = json.loads(text)["signatures"][0]["keyid"]
    key = SSlibKey.from_crypto(
        load_pem_public_key((signed.parent / "key.pub").read_bytes()), keyid=keyid
    )
    envelope = Envelope.from_dict(json.loads(text))
    assert list(envelope.verify([key], 1)) == [keyid]
    (found,) = problems(
        signed, write_keys(signed.parent, "other").with_suffix(".pub")
    )  # another key has not signed it
    assert re.fullmatch(
        rf"'{SIGNED}' was not signed by the key [0-9a-f]{{64}}, or was changed since\.", found
    )
    statement = json.loads(envelope.payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicate"] == read_certificate(signed)
    schema = PAGE.with_name(
        f"certificate-{statement['predicateType'].rpartition(':')[2]}.schema.json"
    )
    jsonschema.validate(statement["predicate"], json.loads(schema.read_text()))
    envelope.payload = envelope.payload.replace(b"synthetic.npz", b"synthetic.npy", 1)
    with pytest.raises(VerificationError):
        envelope.verify([key], 1)


def test_a_flipped_byte_in_any_file_is_named(signed):
    names = [path.relative_to(signed).as_posix() for path in signed.rglob("*") if path.is_file()]
    assert {SIGNED, "certificate.json", "certificate.md", "synthetic.npz"} < set(names)
    assert any(name.startswith("releases/") for name in names)
    for name in names:
        content = (signed / name).read_bytes()
        (signed / name).write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        assert any(f"'{name}'" in problem for problem in problems(signed)), name
        (signed / name).write_bytes(content)
    assert problems(signed) == []


def test_files_with_a_certificate_made_to_match_are_found_out(signed):
    """`pe verify` without a key is content with them: the certificate is self-issued."""
    content = (signed / SIGNED).read_bytes()
    (signed / "synthetic.npz").write_bytes(b"others")
    reissue(signed, ["synthetic.npz"])
    assert problems(signed) == [f"It is not signed: it has no {SIGNED}."]
    (signed / SIGNED).write_bytes(content)
    assert problems(signed) == [
        "'certificate.json' is not what was signed.",
        "'certificate.md' is not what was signed.",
    ]


@pytest.mark.parametrize(
    "change", [{"predicate": {}}, {"subject": []}, {"subject": 3}, {"_type": "x"}]
)
def test_a_statement_of_something_else_is_no_signature_under_the_certificate(signed, change):
    envelope = json.loads((signed / SIGNED).read_text())
    payload = json.dumps(json.loads(base64.b64decode(envelope["payload"])) | change).encode()
    kind = envelope["payloadType"].encode()
    secret = load_pem_private_key((signed.parent / "key").read_bytes(), None)
    signature = secret.sign(b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload))
    envelope["payload"] = base64.b64encode(payload).decode()
    envelope["signatures"] = [{"keyid": "", "sig": base64.urlsafe_b64encode(signature).decode()}]
    (signed / SIGNED).write_text(json.dumps(envelope))
    assert problems(signed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"payload": "?", "payloadType": "", "signatures": []}',
        '{"payload": 1}',
        "[" * 200_000,
    ],
)
def test_a_damaged_envelope_is_one_sentence(signed, text):
    (signed / SIGNED).write_text(text)
    assert problems(signed) == [f"'{SIGNED}' is damaged: ask its sender for it anew."]


def test_what_is_not_as_certified_or_has_a_confidential_side_is_neither_signed_nor_verified(signed):
    (signed / "confidential").mkdir()
    with pytest.raises(
        RunError, match=r"has a confidential/, which no signature covers. Sign an export"
    ):
        sign(signed, signed.parent / "key", no_passphrase)
    assert problems(signed) == ["'confidential' is there, but no signature covers what is in it."]
    (signed / "confidential").rmdir()
    (signed / "synthetic.npz").write_bytes(b"others")
    with pytest.raises(
        RunError,
        match=r"cannot be signed, because its files no longer match its certificate: 'synthetic\.npz' was changed",
    ):
        sign(signed, signed.parent / "key", no_passphrase)


def test_names_that_are_none_and_files_that_are_no_files_are_problems_and_forge_no_line(signed):
    os.mkfifo(signed / "pipe")
    (signed / "x\x1b[2J\n✓ Signed by the key").write_text("x")
    certificate = read_certificate(signed)
    certificate["covered"].append({"file": "n" * 300, "sha256": "0"})
    (signed / "certificate.json").write_text(json.dumps(certificate))
    found = problems(signed)
    assert "'pipe' is there but not covered." in found
    assert f"'{'n' * 300}' is covered but missing." in found
    result = command("verify", "out", "--key", "key.pub", cwd=signed.parent)
    assert (result.returncode, result.stderr) == (1, "")
    assert not any(line.startswith("✓") for line in result.stdout.splitlines())
    assert "\x1b" not in result.stdout
    (signed / "certificate.json").write_bytes(b"\xff")
    assert any(
        "certificate.json is damaged: restore it from a copy." in problem
        for problem in problems(signed)
    )


def test_keys_of_ssh_and_keys_with_a_passphrase_sign(signed):
    ssh = write_keys(signed.parent, "ssh", form=PrivateFormat.OpenSSH)
    sign(signed, ssh, no_passphrase)
    assert problems(signed, ssh.with_suffix(".pub")) == []
    for form in (PrivateFormat.PKCS8, PrivateFormat.OpenSSH):
        locked = write_keys(signed.parent, "locked", BestAvailableEncryption(b"horse"), form)
        sign(signed, locked, lambda: "horse")
        assert problems(signed, locked.with_suffix(".pub")) == []
    with pytest.raises(RecipeError, match="or its passphrase is another one"):
        sign(signed, locked, lambda: "mule")


def test_other_keys_are_refused(signed):
    secret = generate_private_key(SECP256R1())
    path = signed.parent / "p256"
    path.write_bytes(secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(RecipeError, match="p256 is not an Ed25519 private key"):
        sign(signed, path, no_passphrase)
    with pytest.raises(RecipeError, match="key is not an Ed25519 public key"):
        problems(signed, signed.parent / "key")
    with pytest.raises(RecipeError, match="cannot be read: No such file"):
        problems(signed, signed.parent / "none")
    inside = shutil.copy(signed.parent / "key", signed / "key")
    with pytest.raises(RecipeError, match=r"is to be handed over. Move the key elsewhere"):
        sign(signed, Path(inside), no_passphrase)


def test_the_forty_lines_of_the_page_find_what_the_certificate_states(signed):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(block.splitlines()) <= 42
    check = [sys.executable, "-c", block, signed, signed.parent / "key.pub"]
    told = subprocess.run(check, capture_output=True, text=True, timeout=60, check=True).stdout
    found, stated = map(
        float, re.fullmatch(r"At most ε = (\S+) at δ = 1e-05; .* (\S+)\.\n", told).groups()
    )
    assert stated <= found < stated * 1.01
    release = next((signed / "releases").iterdir())
    release.write_bytes(release.read_bytes() + b"x")
    spoilt = subprocess.run(check, capture_output=True, text=True, timeout=60)
    assert spoilt.returncode == 1
    assert spoilt.stderr == f"releases/{release.name} is not what was signed\n"
