"""An environment that names no proxy and no authority; a certificate; and no long waits between
tries.
"""

import subprocess

import pytest

from tests.endpoints.asking import impatient, serve

__all__ = ["impatient", "serve"]


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 that vouches for itself, and its key: PEM files."""
    folder = tmp_path_factory.mktemp("certificate")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    files = folder / "own.pem", folder / "own.key"
    subprocess.run([*new, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files
