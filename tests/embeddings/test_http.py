"""Embeddings from an endpoint, against a real server on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.responses import RedirectResponse

from adapters.http import policy as policy_module
from embeddings.http import HTTPEmbedding
from pe.data.images import Images
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import APIError, ContractError, RecipeError, Unavailable
from pe.plugins.embed import embed_block
from pe.privacy.certificate import verify
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests.durability.driver import make_private
from tests.endpoints.faults import Script
from tests.endpoints.sd_server import EmbeddingServer
from tests.endpoints.serving import serving
from tests.generators import Shades

CANARY = "canary-99"
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 6, 6, 3)).astype(np.uint8)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def embedding(
    stack: ExitStack,
    script: Script,
    changed: dict[str, object] | None = None,
    refused: int | None = None,
    status: int = 400,
    patience: float = 900.0,
) -> HTTPEmbedding:
    url = stack.enter_context(serving(EmbeddingServer(script, changed, refused, status)))
    settings = {"key_env": "THE_KEY", "timeout": 1.0, "patience": patience}
    return HTTPEmbedding(url=f"{url}/v1/embeddings", trusted_with_private_data=True, model="m", **settings)


def test_vectors_come_in_the_order_of_the_images(stack: ExitStack) -> None:
    script = Script(first=("500", "dropped", ""))
    vectors = embedding(stack, script).embed(Images(PIXELS))
    np.testing.assert_allclose(vectors, PIXELS.mean(axis=(1, 2)), rtol=1e-6)
    assert vectors.dtype == np.float32
    assert script.keys == {f"Bearer {CANARY}"}
    assert script.requests[0]["model"] == "m"


@pytest.mark.parametrize(
    "place", ["/v1/embeddings/", "/v1/embeddings/?version=2", "/", "", "/v1/embeddings?dim=a%2Fb/"]
)
def test_the_address_is_asked_to_the_letter_and_a_redirect_named(stack: ExitStack, place: str) -> None:
    """Of an endpoint whose address has a slash at its end, or a query."""
    server, asked = EmbeddingServer(Script()), []

    async def at_place(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            query = scope["query_string"].decode()
            asked.append(scope["raw_path"].decode() + (f"?{query}" if query else ""))
            if asked[-1] != (place or "/"):
                await RedirectResponse(place)(scope, receive, send)
                return
            scope = {**scope, "path": "/v1/embeddings", "raw_path": b"/v1/embeddings", "query_string": b""}
        await server(scope, receive, send)

    url = stack.enter_context(serving(at_place))
    given = {"trusted_with_private_data": True, "key_env": None, "timeout": 5.0, "tries": 1}
    assert len(HTTPEmbedding(url=url + place, **given).embed(Images(PIXELS))) == 5
    assert set(asked) == {place or "/"}
    with pytest.raises(APIError, match=r"redirects to .* name that address in the recipe"):
        HTTPEmbedding(url=f"{url}/elsewhere", **given).embed(Images(PIXELS))


@pytest.mark.parametrize("changed", [{"index": 0}, {"embedding": "no"}, {"embedding": [[1.0]]}])
def test_vectors_that_are_not_one_per_image_are_refused(stack: ExitStack, changed: dict[str, object]) -> None:
    with pytest.raises(ContractError):
        embedding(stack, Script(), changed).embed(Images(PIXELS))


def test_an_endpoint_that_is_down_is_one_sentence(stack: ExitStack) -> None:
    with pytest.raises(Unavailable, match=r"fails on blank samples: HTTP 500: scripted"):
        embedding(stack, Script(first=("500",) * 999), patience=0.2).embed(Images(PIXELS))


def test_an_image_that_is_refused_or_breaks_the_endpoint_gets_no_vector_and_the_others_theirs(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    pixels = PIXELS.copy()
    pixels[:, 0, 0, 0] = (1, 2, 3, 4, 5)
    for status in (400, 500):
        script = Script()
        vectors = embed_block(embedding(stack, script, refused=3, status=status), Images(pixels))
        assert np.isnan(vectors[2]).all()
        kept = [0, 1, 3, 4]
        np.testing.assert_allclose(vectors[kept], pixels[kept].mean(axis=(1, 2)), rtol=1e-6)
        assert "image 2 shows a scar" in caplog.text
        assert {len(request["input"]) for request in script.requests} == {5}, "a request of another size"
        caplog.clear()


def test_an_endpoint_that_refuses_black_images_too_is_at_fault_and_says_so(stack: ExitStack) -> None:
    with pytest.raises(APIError, match=r"rejects the request with HTTP 400: image 0 shows a scar"):
        embed_block(embedding(stack, Script(), refused=0), Images(np.zeros((2, 4, 4, 3), np.uint8)))


def test_an_outage_costs_no_image_its_vector(stack: ExitStack) -> None:
    with pytest.raises(Unavailable, match=r"gave no answer for .*HTTP 503.*`pe resume RUN` goes on"):
        embed_block(embedding(stack, Script(first=("503 html",) * 999), patience=0.2), Images(PIXELS))
    for away in (6, 30):
        over = embed_block(embedding(stack, Script(first=("503 html",) * away)), Images(PIXELS))
        np.testing.assert_allclose(over, PIXELS.mean(axis=(1, 2)), rtol=1e-6)
    script = Script(first=(*("500",) * 6, "", *("503 html",) * 999))
    with pytest.raises(Unavailable):  # away again once blank images had an answer
        embed_block(embedding(stack, script, patience=0.2), Images(PIXELS))


def test_a_vector_that_is_not_finite_is_none_and_the_others_stand(stack: ExitStack) -> None:
    pixels = PIXELS.copy()
    pixels[3, 0, 0, 0] = 7
    vectors = embedding(stack, Script(), {"infinite": 7}).embed(Images(pixels))
    assert np.isfinite(vectors).all(axis=1).tolist() == [True, True, True, False, True]


def test_an_endpoint_whose_vectors_are_never_finite_is_told_before_the_generator_is_asked(
    stack: ExitStack, tmp_path: Path
) -> None:
    make_private(tmp_path / "private.npz")
    url = stack.enter_context(serving(EmbeddingServer(Script(), {"embedding": [float(10**39)]})))
    api = Shades()
    with pytest.raises(ContractError, match=r"HTTPEmbedding\.embed gives no finite vector for any of 32"):
        run_by(url, tmp_path, api)
    assert not api.asked


def test_an_endpoint_that_is_down_is_told_before_there_is_a_run(stack: ExitStack, tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    url = stack.enter_context(serving(EmbeddingServer(Script(first=("500",) * 999))))
    api = Shades()
    with pytest.raises(Unavailable, match="fails on blank samples"):
        run_by(url, tmp_path, api, patience=0.2)
    assert not api.asked
    assert not (tmp_path / "run").exists()


def test_private_images_go_nowhere_unless_the_recipe_says_so() -> None:
    with pytest.raises(RecipeError, match=r"every PRIVATE image to api\.example: state embedding\.trusted_with"):
        HTTPEmbedding(url="https://api.example/v1/embeddings")


def run_by(url: str, tmp_path: Path, api: Shades | None = None, **settings: float) -> Run:
    spec = {"kind": "http", "url": f"{url}/v1/embeddings", "trusted_with_private_data": True} | settings
    private = {"kind": "npz", "path": tmp_path / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]}
    content = {
        "private": private,
        "api": {"kind": "object:tests.generators.Shades"},
        "embedding": spec,
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 10, "lookahead": 0},
    }
    return run_recipe(Recipe.parse(content, "the test"), tmp_path / "run", Surroundings(api=api or Shades()))


def test_what_is_said_of_a_private_image_stands_in_the_confidential_log_alone(
    stack: ExitStack, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    images = np.full((40, 4, 4, 1), 100, np.uint8)
    images[17, 0, 0] = 77
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a", "b"] * 20))
    refused = EmbeddingServer(Script(), refused=77)
    run = run_by(stack.enter_context(serving(refused)), tmp_path)
    assert "shows a scar" in (run.folder / "confidential" / "log.txt").read_text()
    assert capfd.readouterr() == ("", "")


def test_an_evaluation_keeps_what_is_said_of_an_image_in_the_confidential_log(stack: ExitStack, tmp_path: Path) -> None:
    images = np.full((40, 4, 4, 1), 100, np.uint8)
    images[17, 0, 0] = 77
    np.savez(tmp_path / "private.npz", images=images, labels=np.array(["a", "b"] * 20))
    run = run_by(stack.enter_context(serving(EmbeddingServer(Script(), refused=77))), tmp_path)
    log = run.folder / "confidential" / "log.txt"
    log.unlink()
    pe = Path(sys.executable).with_name("pe")
    command = [pe, "evaluate", run.folder, "--test", tmp_path / "private.npz", "--metrics", "memorisation"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "HTTPEmbedding.embed gave no finite vector for an image: see the log." in told.stderr
    assert "scar" not in told.stdout + told.stderr
    assert "shows a scar" in log.read_text()


def test_the_certificate_states_who_sees_the_private_images(stack: ExitStack, tmp_path: Path) -> None:
    url = stack.enter_context(serving(EmbeddingServer(Script())))
    make_private(tmp_path / "private.npz")
    run = run_by(url, tmp_path)
    host = url.removeprefix("http://")
    certificate = json.loads((run.folder / "certificate.json").read_text())
    assert certificate["private_data_sent_to"] == host
    assert f"sent to {host}, un-noised" in certificate["not_covered"][0]
    assert not verify(certificate, run.folder)
    assert f"sent to {host}" in (run.folder / "certificate.md").read_text()
