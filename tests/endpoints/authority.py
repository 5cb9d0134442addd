"""A certificate authority of our own, which signs for 127.0.0.1 and for a client."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Authority:
    """PEM files.

    Attributes:
        root: the authority's certificate.
        server: (certificate, key) of 127.0.0.1.
        client: (certificate, key) of a client.
    """

    root: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]

    @classmethod
    def make(cls, folder: Path) -> Authority:
        x509 = pytest.importorskip("cryptography.x509")
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        def signed(name: str, issuer: tuple[object, object] | None) -> tuple[object, object]:
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
            signer, by = issuer or (None, None)
            now, signing = datetime.now(UTC), by or key
            identifier = x509.SubjectKeyIdentifier.from_public_key
            certificate = (
                x509.CertificateBuilder()
                .subject_name(subject)
                .issuer_name(signer.subject if signer else subject)
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - timedelta(hours=1))
                .not_valid_after(now + timedelta(hours=1))
                .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
                .add_extension(
                    x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
                )
                .add_extension(identifier(key.public_key()), critical=False)
                .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
                .sign(signing, hashes.SHA256())
            )
            return certificate, key

        def stored(name: str, certificate: object, key: object) -> tuple[Path, Path]:
            paths = folder / f"{name}.pem", folder / f"{name}.key"
            paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
            kind = serialization.PrivateFormat.PKCS8
            plain = serialization.NoEncryption()
            paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, kind, plain))
            return paths

        root = signed("our authority", None)
        return cls(
            stored("root", *root)[0], stored("server", *signed("server", root)), stored("client", *signed("me", root))
        )
