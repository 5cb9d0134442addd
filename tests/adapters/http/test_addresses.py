"""Which addresses that a host names are followed."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from adapters.http.client import Addresses, HostName

HOSTED = Addresses("https://api.bfl.ai", ("bfl.ai", "replicate.delivery"))


@pytest.mark.parametrize(
    "url",
    [
        "https://api.bfl.ai/v1/get_result?id=1",
        "https://delivery-eu1.bfl.ai/a.png?sig=1",
        "https://replicate.delivery/x/out.png",
        "https://pbxt.replicate.delivery:443/x",
    ],
)
def test_a_documented_host_is_followed_by_https(url: str) -> None:
    assert HOSTED.refusal(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://delivery-eu1.bfl.ai/a.png",
        "https://delivery-eu1.bfl.ai:8443/a.png",
        "https://bfl.ai.evil.example/a.png",
        "https://notbfl.ai/a.png",
        "https://user@bfl.ai/a.png",
        "https://bfl.ai@evil.example/a.png",
        "https://127.0.0.1/a.png",
        "https://169.254.169.254/latest",
        "https://[::1]/a.png",
        "https://localhost/a.png",
        "https://[bfl.ai/a.png",
        "https://bfl.ai:port/a.png",
        "file:///etc/passwd",
        "/images/0.png",
        "",
        None,
    ],
)
def test_nothing_else_is(url: object) -> None:
    refusal = HOSTED.refusal(url)
    assert refusal.startswith("named ")
    assert "a.png" not in refusal


def test_the_host_of_the_recipe_is_followed_wherever_it_is_and_only_there() -> None:
    own = Addresses("http://127.0.0.1:8188")
    assert own.refusal("http://127.0.0.1:8188/view?filename=a.png") == ""
    for other in ("http://127.0.0.1:8189/", "https://127.0.0.1:8188/", "http://127.0.0.2:8188/"):
        assert own.refusal(other)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "a b.example", "https://a.example"])
def test_a_name_in_a_recipe_is_of_the_public_network(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(HostName).validate_python(name)
