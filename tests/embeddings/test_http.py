"""Embeddings from an endpoint, against a real server on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from adapters.http import policy as policy_module
from embeddings.http import HTTPEmbedding
from pe.data.samples import Images
from pe.engine.execute import Surroundings, run_recipe
from pe.errors import APIError, ContractError, RecipeError
from pe.privacy.verify import verify
from pe.recipe.schema import Recipe
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


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def embedding(stack: ExitStack, script: Script, changed: dict[str, object] | None = None) -> HTTPEmbedding:
    url = stack.enter_context(serving(EmbeddingServer(script, changed)))
    return HTTPEmbedding(
        url=f"{url}/v1/embeddings", trusted_with_private_data=True, model="m", key_env="THE_KEY", timeout=1.0
    )


def test_vectors_come_in_the_order_of_the_images(stack: ExitStack) -> None:
    script = Script(first=("500", "dropped", ""))
    vectors = embedding(stack, script).embed(Images(PIXELS))
    np.testing.assert_allclose(vectors, PIXELS.mean(axis=(1, 2)), rtol=1e-6)
    assert vectors.dtype == np.float32
    assert script.keys == {f"Bearer {CANARY}"}
    assert script.requests[0]["model"] == "m"


@pytest.mark.parametrize(
    "changed", [{"index": 0}, {"embedding": [float(10**39)]}, {"embedding": "no"}, {"embedding": [[1.0]]}]
)
def test_vectors_that_are_not_one_per_image_are_refused(stack: ExitStack, changed: dict[str, object]) -> None:
    with pytest.raises(ContractError):
        embedding(stack, Script(), changed).embed(Images(PIXELS))


def test_an_endpoint_that_is_down_is_one_sentence(stack: ExitStack) -> None:
    with pytest.raises(APIError, match=r"gave no embeddings in 6 calls: HTTP 500: scripted"):
        embedding(stack, Script(first=("500",) * 9)).embed(Images(PIXELS))


def test_private_images_go_nowhere_unless_the_recipe_says_so() -> None:
    with pytest.raises(RecipeError, match=r"every PRIVATE image to api\.example: state embedding\.trusted_with"):
        HTTPEmbedding(url="https://api.example/v1/embeddings")


def test_the_certificate_states_who_sees_the_private_images(stack: ExitStack, tmp_path: Path) -> None:
    url = stack.enter_context(serving(EmbeddingServer(Script())))
    make_private(tmp_path / "private.npz")
    spec = {"kind": "http", "url": f"{url}/v1/embeddings", "trusted_with_private_data": True}
    private = {"kind": "npz", "path": tmp_path / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]}
    content = {
        "private": private,
        "api": {"kind": "object:tests.generators.Shades"},
        "embedding": spec,
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": 10, "lookahead": 0},
    }
    run = run_recipe(Recipe.parse(content, "the test"), tmp_path / "run", Surroundings(api=Shades()))
    host = url.removeprefix("http://")
    certificate = json.loads((run.folder / "certificate.json").read_text())
    assert certificate["private_data_sent_to"] == host
    assert f"sent to {host}, un-noised" in certificate["not_covered"][0]
    assert not verify(certificate, run.folder)
    assert f"sent to {host}" in (run.folder / "certificate.md").read_text()
