"""Sign a certificate with an Ed25519 key, and push an export to a hub.

The signature is an in-toto statement in a DSSE envelope beside the certificate. The envelope
follows https://github.com/secure-systems-lab/dsse (protocol 1.0.2), and the statement in it
https://in-toto.io/Statement/v1: the subjects of the statement are the certified files and the
certificate itself, its predicate is the certificate. Any DSSE tool checks the signature.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pe.data.bounded import read_bytes
from pe.errors import APIError, RecipeError, RunError, printable
from pe.plugins.devices import import_library
from pe.privacy.certificate_text import guarantee
from pe.privacy.covered import CERTIFICATES, SIGNED, sha256
from pe.store.certified import digests, is_export, read_json
from pe.store.durable import folder_lock, level_times, write_durably
from pe.store.export import examine
from pe.store.places import CERTIFICATE, CONFIDENTIAL

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:private-evolution-toolkit:certificate"


def sign(folder: Path, key: Path, passphrase: Callable[[], str]) -> str:
    """Sign the certificate of `folder` into `certificate.dsse.json`.

    An earlier signature is replaced. An evaluation, an extension or an export issues the
    certificate anew, unsigned.

    Args:
        folder: an export, or the folder of a finished run whose confidential side was purged.
        key: an Ed25519 private key, as PEM or as OpenSSH writes it, not in the folder that is to be
            handed over.
        passphrase: called to ask for the key's passphrase, if the key has one.

    Returns:
        The key's id: the SHA-256 of its public half, in hexadecimal.
    """
    if key.resolve().is_relative_to(folder.resolve()):
        raise RecipeError(
            f"`--sign-with`: {key} lies inside {folder}, which is to be handed over. Move the key "
            "elsewhere."
        )
    if (folder / CONFIDENTIAL).exists():
        raise RunError(
            f"{folder} has a {CONFIDENTIAL}/, which no signature covers. Sign an export instead."
        )
    secret: Ed25519PrivateKey = _load_key(key, "private", passphrase)
    # locked, so that what is signed is what was examined
    with folder_lock(folder):
        certificate, problems = examine(folder)
        if problems:
            raise RunError(
                f"{folder} cannot be signed, because its files no longer match its "
                f"certificate: {problems[0]}"
            )
        payload = json.dumps(_statement(folder, certificate), ensure_ascii=False).encode()
        keyid = _key_id(secret.public_key())
        signature = base64.b64encode(secret.sign(_encoding(PAYLOAD_TYPE, payload))).decode()
        envelope = {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [{"keyid": keyid, "sig": signature}],
        }
        write_durably(folder / SIGNED, (json.dumps(envelope) + "\n").encode())
        level_times(folder)
    return keyid


def verify_signed(folder: Path, key: Path) -> tuple[str, dict[str, Any], list[str]]:
    """Check that the holder of `key` signed the certificate of `folder`, and what `examine` checks.

    `key` is the signer's Ed25519 public key, as PEM or as OpenSSH writes it, received apart from
    `folder`.

    Returns:
        The key's id, the certificate ({} if it cannot be read), and one sentence for each problem.
    """
    public: Ed25519PublicKey = _load_key(key, "public")
    certificate, problems = examine(folder)
    if (folder / CONFIDENTIAL).exists():
        problems.append(f"'{CONFIDENTIAL}' is there, but no signature covers what is in it.")
    return (
        _key_id(public),
        certificate,
        [*_signature_problems(folder, public, certificate), *problems],
    )


def _signature_problems(
    folder: Path, key: Ed25519PublicKey, certificate: Mapping[str, Any]
) -> list[str]:
    if not (folder / SIGNED).is_file():
        return [f"It is not signed: it has no {SIGNED}."]
    try:
        payload = _signed_by(key, read_json(read_bytes(folder / SIGNED).decode(), folder / SIGNED))
    except (RunError, KeyError, TypeError, ValueError, AttributeError):
        return [f"'{SIGNED}' is damaged: ask its sender for it anew."]
    if payload is None:
        return [f"'{SIGNED}' was not signed by the key {_key_id(key)}, or was changed since."]
    try:
        subjects = {str(one["name"]): str(one["digest"]["sha256"]) for one in payload["subject"]}
    except (KeyError, TypeError):
        return [f"'{SIGNED}' is signed by the key, but is no statement about files."]
    files = _certificate_files(folder)
    differing = [name for name in sorted(CERTIFICATES) if subjects.get(name) != files.get(name)]
    if certificate and not differing and payload != _statement(folder, certificate):
        return [f"'{SIGNED}' is signed by the key, but does not say what {CERTIFICATE} says."]
    return [f"'{name}' is not what was signed." for name in differing]


def _statement(folder: Path, certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is signed: the SHA-256 of each file, and the certificate.

    The certificate's own two files are included.
    """
    files = digests(certificate) | _certificate_files(folder)
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())
        ],
        "predicateType": f"{PREDICATE}:{certificate['format']}",
        "predicate": dict(certificate),
    }


def _certificate_files(folder: Path) -> dict[str, str]:
    return {name: sha256(folder / name) for name in CERTIFICATES if (folder / name).is_file()}


def _encoding(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _signed_by(key: Ed25519PublicKey, envelope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the statement in `envelope`, or None if no signature in it is by `key`.

    The key ids in the envelope do not matter.
    """
    from cryptography.exceptions import InvalidSignature

    payload = _base64(envelope["payload"])
    if envelope["payloadType"] != PAYLOAD_TYPE:
        raise ValueError(envelope["payloadType"])
    for signature in envelope["signatures"]:
        try:
            key.verify(_base64(signature["sig"]), _encoding(PAYLOAD_TYPE, payload))
        except InvalidSignature:
            continue
        return read_json(payload.decode(), Path(SIGNED))
    return None


def _base64(text: str) -> bytes:
    """Decode standard or URL-safe base64 (DSSE allows both).

    Raises:
        ValueError: `text` is neither.
    """
    return base64.b64decode(text.translate(str.maketrans("-_", "+/")), validate=True)


def _key_id(key: Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(
        key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    ).hexdigest()


def _load_key(
    path: Path, half: Literal["private", "public"], passphrase: Callable[[], str] = str
) -> Any:
    """Load an Ed25519 key, as PEM or as OpenSSH writes it."""
    import_library("cryptography", "sign", "A signature")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    named = f"{'--key' if half == 'public' else '--sign-with'}: {path}"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecipeError(f"{named} cannot be read: {error.strerror}.") from error
    form = "ssh" if data.startswith(b"ssh-") or b"BEGIN OPENSSH" in data else "pem"
    load = getattr(serialization, f"load_{form}_{half}_key")
    refusal = f"{named} is not an Ed25519 {half} key"
    remedy = "docs/handing-on.md says how to make one."
    try:
        if half == "public":
            key = load(data)
        else:
            try:
                key = load(data, None)
            except TypeError:  # it has a passphrase
                key = load(data, passphrase().encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        why = "in PEM or OpenSSH's form" if half == "public" else "or its passphrase is another one"
        raise RecipeError(f"{refusal}, {why}. {remedy}") from error
    if not isinstance(key, ed25519.Ed25519PublicKey | ed25519.Ed25519PrivateKey):
        raise RecipeError(f"{refusal}, but {type(key).__name__.lstrip('_')}. {remedy}")
    return key


# An export, put on Hugging Face's hub as a data set.

_EMPTY = frozenset({".gitattributes"})
"""Files that the hub itself puts into a new repository."""


def push(folder: Path, to: str, *, public: bool = False) -> str:
    """Put the export in `folder` into the new or empty data-set repository `to`, in one commit.

    All that `examine` checks is checked first. Then the covered files, the certificate and its
    signature are pushed, and no other file. The token comes from HF_TOKEN or `hf auth login`, the
    hub's address from HF_ENDPOINT.

    Args:
        folder: the export.
        to: `owner/name`.
        public: everybody may read the repository at once, not only its owner.

    Returns:
        The repository's address.
    """
    if not is_export(folder):
        raise RunError(
            f"{folder} is not an export. Make one by `pe export RUN TO --format huggingface`."
        )
    certificate, problems = examine(folder)
    if problems:
        raise RunError(
            f"{folder} is not pushed, because its files no longer match its "
            f"certificate: {problems[0]}"
        )
    names = {*digests(certificate), *CERTIFICATES}
    if (folder / SIGNED).is_file():
        names.add(SIGNED)
    total = "no guarantee"
    if certificate["holds"]:
        total = guarantee(certificate["epsilon"], certificate["delta"])
    httpx2 = import_library("httpx2", "http", "Pushing to the hub")
    hub_client = import_library("huggingface_hub", "http", "Pushing to the hub")
    token = hub_client.get_token()
    if token is None:
        raise RecipeError("There is no token for the hub. Set HF_TOKEN, or call `hf auth login`.")
    hub = hub_client.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    try:
        address = str(hub.create_repo(to, repo_type="dataset", private=not public, exist_ok=True))
        repository = hub.repo_info(to, repo_type="dataset")
        if not (public or repository.private):
            raise APIError(f"{address} is public already. Add `--public`, or name a new one.")
        there = {one.rfilename for one in repository.siblings or ()} - _EMPTY
        if there:
            raise APIError(
                f"{address} has files already ({printable(sorted(there)[0])}). Name a new "
                "repository."
            )
        additions = [hub_client.CommitOperationAdd(name, folder / name) for name in sorted(names)]
        message = f"Add {printable(certificate['run'])} ({total})"
        hub.create_commit(to, additions, commit_message=message, repo_type="dataset")
    # of names and of the card's head: ValueError; of answers, and of HF_HUB_OFFLINE: OSError; of
    # uploads: RuntimeError
    except (ValueError, OSError, RuntimeError, httpx2.HTTPError) as error:
        raise _hub_error(error, to) from error
    return address


def _hub_error(error: Exception, to: str) -> APIError | RecipeError:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if isinstance(error, HFValidationError):
        return RecipeError(
            f"`--push`: '{printable(to)}' is not the name of a repository. Give owner/name."
        )
    if isinstance(error, HfHubHTTPError):
        reason = printable(error.server_message or "without a reason")
        status = error.response.status_code
        return APIError(
            f"The hub answered {status} ({reason}). Check that the token may write to "
            f"{printable(to)}."
        )
    first = str(error.__cause__ or error).split("\n")[0] or type(error).__name__
    return APIError(f"Nothing was committed to {printable(to)} ({printable(first)}). Push again.")
