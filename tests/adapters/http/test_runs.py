"""Whole runs over endpoints behind a proxy, an authority of one's own, a client certificate, a key that expires."""

from __future__ import annotations

import gc
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pe
from pe.engine.execution import Surroundings, run_recipe
from pe.recipe.schema import Recipe
from tests.adapters.http.test_environment import by_tls
from tests.durability.driver import make_private
from tests.endpoints.authority import Authority
from tests.endpoints.faults import Script
from tests.endpoints.guard import Guarded, printing
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.sd_server import SDServer
from tests.endpoints.serving import serving
from tests.generators import Mean

POPULATION, SIDE = 200, 8
IMAGES = 2 * POPULATION
"""S_0, and a variation of each of its parents."""

EXPIRES = 30
"""Requests after which a key is refused."""

SERVERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "openai_images": (OpenAIServer, {"model": "m", "n": 10}),
    "sdapi": (SDServer, {"batch": 10}),
}


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def run(tmp_path: Path, script: Script) -> Callable[..., pe.Run]:
    """Run over the endpoint at an address; every image of it is made once, and as many samples come out as asked."""

    def run(kind: str, url: str, **settings: Any) -> pe.Run:
        make_private(tmp_path / "private.npz")
        private = {"kind": "npz", "path": tmp_path / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]}
        api = {"kind": kind, "base_url": f"{url}/v1" if kind == "openai_images" else url, "key_env": None}
        api |= {"prompts": "a {label}", "image_size": SIDE, "concurrency": 4, "tries": 1}
        content = {
            "private": private,
            "api": api | SERVERS[kind][1] | settings,
            "embedding": {"kind": "object:tests.generators.Mean"},
            "privacy": {"noise_multiplier": 1, "delta": 1e-5},
            "evolution": {"iterations": 1, "population": POPULATION},
        }
        done = run_recipe(Recipe.parse(content, "the test"), tmp_path / "run", Surroundings(embedding=Mean()))
        gc.collect()  # the endpoint's connections are closed before its server is
        assert len(done.synthetic) == POPULATION
        assert script.delivered == IMAGES
        return done

    return run


def server(kind: str, script: Script) -> Any:
    return SERVERS[kind][0](script, side=SIDE)


def test_a_run_through_a_proxy(run: Callable[..., pe.Run], script: Script, seen: list[str]) -> None:
    with serving(server("openai_images", script)) as url:
        run("openai_images", url)
    assert all(each.startswith(f"POST {url}/") for each in seen)
    assert len(seen) == sum(script.seen.values())


def test_a_run_over_a_server_whose_authority_is_one_s_own_tunnels_through_the_proxy(
    run: Callable[..., pe.Run],
    script: Script,
    seen: list[str],
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
    with serving(server("sdapi", script), **by_tls(authority)) as url:
        run("sdapi", url)
    assert set(seen) == {f"CONNECT {url.removeprefix('https://')}"}


def test_a_run_over_a_server_that_lets_in_who_shows_a_certificate(
    run: Callable[..., pe.Run], script: Script, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.root))
    shown = by_tls(authority, ssl_ca_certs=str(authority.root), ssl_cert_reqs=ssl.CERT_REQUIRED)
    with serving(server("openai_images", script), **shown) as url:
        run("openai_images", url, client_cert=authority.client[0], client_key=authority.client[1])


@pytest.mark.parametrize(("kind", "held"), [("openai_images", "key_command"), ("sdapi", "key_file")])
def test_a_run_whose_key_expires_halfway_and_is_written_nowhere(
    kind: str, held: str, run: Callable[..., pe.Run], script: Script, tmp_path: Path
) -> None:
    file, runs = tmp_path / "key", tmp_path / "runs"
    file.write_text("key-1")
    guard = Guarded(server(kind, script), "Bearer key-1", "Bearer key-2", expires=EXPIRES)

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if len(guard.came) == EXPIRES - 1:  # one who renews keys does it before they expire
            (tmp_path / "new").write_text("key-2")
            (tmp_path / "new").rename(file)
        await guard(scope, receive, send)

    with serving(app) as url:
        done = run(kind, url, **{held: file if held == "key_file" else printing(runs)})
    sent = [each["authorization"] for each in guard.came]
    assert set(sent) == {"Bearer key-1", "Bearer key-2"}
    assert held == "key_file" or runs.read_text() == "2"
    written = [path.read_bytes() for path in done.folder.rglob("*") if path.is_file()]
    assert not any(key in content for content in written for key in (b"key-1", b"key-2"))
