"""Connections: proxies, authorities, addresses, redirects; and bodies, bounded in size and time, in
any encoding.
"""

import asyncio
import gc
import gzip
import json
import ssl
import subprocess
import warnings
import weakref
import zlib
from contextlib import nullcontext

import httpx2
import pytest
from pydantic import TypeAdapter, ValidationError

from adapters.chat import Chat
from adapters.http import Fault, Rejected, object_of
from adapters.http import client as client_module
from adapters.http.client import HostName, why_not_followed
from adapters.sdapi import SDAPI
from pe.errors import PEError, RecipeError, Unavailable
from pe.plugins.protocols import Failed
from tests.endpoints.asking import given, random
from tests.endpoints.hosted import Answering
from tests.endpoints.sd_server import SDServer

QUICK = {"key_env": None, "tries": 1, "timeout": 5, "patience": 0.1, "server": None}


def sdapi(url, **more):
    return SDAPI(**given(url, **QUICK | more))


def asked(url, **more):
    """What an adapter makes of one request; its connections are closed then."""
    api = sdapi(url, **more)
    try:
        return random(api)
    finally:
        del api
        gc.collect()


def reason(url, **more):
    """Why one sample is not there."""
    try:
        return asked(url, **more).missing[0].reason
    except PEError as error:
        return str(error)


def by_tls(certificate, **more):
    return {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1], **more}


def test_a_request_goes_through_the_proxy_of_the_environment_unless_no_proxy_names_its_host(
    serve, monkeypatch
):
    proxy = SDServer(None)
    monkeypatch.setenv("HTTP_PROXY", serve(proxy))
    assert len(asked("http://images.example").samples) == 1
    assert proxy.base == "http://images.example"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert len(asked(serve(SDServer(None))).samples) == 1
    assert len(proxy.script.requests) == 1


def test_a_generator_that_only_garbage_holds_closes_its_connections_before_they_are_collected(
    serve,
):
    """Here the collector meets the response, whose connection it is, long before the generator."""
    api = sdapi(serve(Answering({})))
    garbage = [api._client.ask("GET", "/sdapi/v1/options")]
    chain = [api]
    for _ in range(30):
        chain = [chain]
    garbage += [garbage, chain]
    pool = weakref.ref(api._client.pool)
    del api, chain
    gc.collect()  # which puts what it reaches in the order in which it reaches it
    assert not pool().is_closed
    del garbage
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gc.collect()
    assert told == []
    assert pool() is None or pool().is_closed


def test_the_key_goes_to_no_other_host_by_a_redirect(serve):
    elsewhere = Answering({})
    url = serve(Answering(b"", 307, location=f"{serve(elsewhere)}/v1?signed=1"))
    assert "redirects to 'http://127.0.0.1:" in (said := reason(url, key_env="THE_KEY"))
    assert "signed" not in said
    assert not elsewhere.came


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR", None])
def test_the_authorities_of_the_environment_are_trusted(
    variable, serve, certificate, monkeypatch, tmp_path
):
    if variable == "SSL_CERT_DIR":
        name = ["openssl", "x509", "-hash", "-noout", "-in", certificate[0]]
        found = subprocess.run(name, capture_output=True, text=True, check=True)
        (tmp_path / f"{found.stdout.strip()}.0").write_bytes(certificate[0].read_bytes())
        monkeypatch.setenv(variable, str(tmp_path))
    elif variable:
        monkeypatch.setenv(variable, str(certificate[0]))
    refused = "self-signed certificate.*Name its authority's file in SSL_CERT_FILE"
    expected = pytest.raises(Rejected, match=refused) if variable is None else nullcontext()
    with expected:
        assert len(asked(serve(SDServer(None), **by_tls(certificate))).samples) == 1


def test_a_certificate_s_fault_is_named_at_once(serve, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    url = serve(SDServer(None), **by_tls(certificate)).replace("127.0.0.1", "localhost")
    assert "not valid for 'localhost'" in (said := reason(url, patience=900))
    assert "give the address that its certificate is for" in said


def test_authorities_that_cannot_be_read_are_named(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/at/all.pem")
    with pytest.raises(
        RecipeError, match="SSL_CERT_FILE, SSL_CERT_DIR: no certificates can be read"
    ):
        asked("https://127.0.0.1:1")


def test_a_proxy_that_cannot_be_used_is_refused_without_its_password(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "ftp://me:canary-8@proxy.example:21")
    with pytest.raises(RecipeError, match="HTTP_PROXY") as error:
        asked("http://127.0.0.1:1")
    assert "canary-8" not in str(error.value)


def test_a_client_shows_its_certificate(serve, certificate, monkeypatch, tmp_path):
    own, key = certificate
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    tls = by_tls(certificate, ssl_ca_certs=str(own), ssl_cert_reqs=ssl.CERT_REQUIRED)
    url = serve(SDServer(None), **tls)
    assert len(asked(url, client_cert=own, client_key=key).samples) == 1
    with pytest.raises(Unavailable):
        asked(url)
    with pytest.raises(
        RecipeError, match=r"client_cert: .*own.pem with the key of .*own.pem cannot be used"
    ):
        asked(url, client_cert=own)


FOLLOWED = (
    "https://api.bfl.ai/v1?id=1",
    "https://delivery-eu1.bfl.ai/a.png",
    "https://x.replicate.delivery:443/x",
)
ODD = (
    *(
        "http://delivery-eu1.bfl.ai/a.png",
        "https://delivery-eu1.bfl.ai:8443/a.png",
        "https://notbfl.ai/a.png",
    ),
    *(
        "https://bfl.ai.evil.example/a.png",
        "https://user@bfl.ai/a.png",
        "https://bfl.ai@evil.example/a.png",
    ),
    *(
        "https://169.254.169.254/latest",
        "https://[::1]/a.png",
        "https://[bfl.ai/a.png",
        "https://bfl.ai:port/a.png",
    ),
    *("file:///etc/passwd", "/images/0.png", ""),
)


@pytest.mark.parametrize("url", [*FOLLOWED, *ODD])
def test_a_documented_host_is_followed_by_https_and_nothing_else_is(url):
    refusal = why_not_followed(url, "https://api.bfl.ai", ("bfl.ai", "replicate.delivery"))
    assert refusal.startswith("" if url in FOLLOWED else "named ")
    assert bool(refusal) == (url in ODD)
    assert "a.png" not in refusal


def test_the_host_of_the_recipe_is_followed_wherever_it_is_and_only_there():
    own = "http://127.0.0.1:8188"
    assert why_not_followed("http://127.0.0.1:8188/view?filename=a.png", own) == ""
    for other in ("http://127.0.0.1:8189/", "https://127.0.0.1:8188/", "http://127.0.0.2:8188/"):
        assert why_not_followed(other, own)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "a b.example", "https://a.example"])
def test_a_name_in_a_recipe_is_of_the_public_network(name):
    with pytest.raises(ValidationError):
        TypeAdapter(HostName).validate_python(name)


ZEROS = bytes(2**19)


BOMBS = {"gzip, gzip": gzip.compress(gzip.compress(ZEROS)), "deflate": zlib.compress(ZEROS)}


@pytest.mark.parametrize(
    ("encoding", "status"), [("gzip, gzip", 200), ("identity", 200), ("deflate", 503)]
)
def test_no_more_than_so_many_bytes_are_unpacked(encoding, status, serve, monkeypatch):
    monkeypatch.setattr(client_module, "MAX_BYTES", 2**18)
    body = BOMBS.get(encoding, ZEROS)
    assert "larger than 262144 bytes" in reason(
        serve(Answering(body, status, content_encoding=encoding))
    )


def test_what_cannot_be_unpacked_is_told_as_such_and_asked_for_once(serve):
    app = Answering(b"no gzip", content_encoding="gzip")
    assert "the answer cannot be unpacked: Error -3 while decompressing" in reason(
        serve(app), tries=3
    )
    assert app.came == ["POST"]


@pytest.mark.parametrize(
    ("body", "charset", "content"),
    [
        (b'{"a": "caf\xe9"}', "", {"a": "caf\udce9"}),  # no UTF-8: a paid answer is not lost
        (b'{"a": "caf\xe9"}', "; charset=iso-8859-1", {"a": "café"}),
        (json.dumps({"a": "é"}).encode("utf-16"), "", {"a": "é"}),
        (b'{"a": 1%b, "b": 12}' % (b"0" * 5000), "", {"a": None, "b": 12}),
        (b"[1]", "", "the answer is not a JSON object"),
        (b"[" * 1_000_000, "", r"\[\[\["),
        (b'data: {"a": 1}', "", "answered with an event stream"),
    ],
)
def test_an_object_is_read_in_whatever_encoding_it_came(body, charset, content):
    response = httpx2.Response(
        200, content=body, headers={"content-type": f"application/json{charset}"}
    )
    with pytest.raises(Fault, match=content) if isinstance(content, str) else nullcontext():
        assert object_of(response) == content


def test_a_text_that_holds_bytes_has_failed_and_was_paid(serve):
    text = b'{"choices": [{"message": {"content": "caf\xe9"}, "finish_reason": "stop"}]}'
    answer = random(Chat(base_url=serve(Answering(text)), model="m", prompts="a", key_env=None))
    assert answer.missing == {0: Failed("the endpoint sent bytes that are no UTF-8 in a text")}
    assert answer.usage.calls == 1


async def dripping(scope, receive, send):
    """Answers at once, but for bytes of the body, which take eight seconds."""
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"400")]}
    )
    for _ in range(160):
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("by_proxy", [False, True])
def test_a_whole_request_ends_after_total_timeout_though_bytes_still_come(
    by_proxy, serve, monkeypatch
):
    url = serve(dripping)
    if by_proxy:
        monkeypatch.setenv("HTTP_PROXY", url)
    with pytest.raises(Unavailable, match=r"no whole answer within total_timeout, 0.3 s"):
        asked("http://images.example" if by_proxy else url, total_timeout=0.3)
