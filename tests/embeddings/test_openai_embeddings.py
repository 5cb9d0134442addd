"""Text embeddings by OpenAI's API, through its SDK, against a real server on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from adapters.http import policy as policy_module
from embeddings.http import OpenAIEmbeddings
from pe.data.images import Images
from pe.data.texts import Texts
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import ContractError, RecipeError, Unavailable
from pe.planning.build import object_kind
from pe.plugins.embed import embed_block, try_embedding
from pe.plugins.registry import load
from pe.privacy.certificate import verify
from pe.recipe.schema import Recipe
from pe.store.run import Run
from tests import lines
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.embeddings_server import TextEmbeddingsServer, vector_of
from tests.endpoints.faults import TRANSPORT, Script
from tests.endpoints.serving import serving
from tests.lines import installed

__all__ = ["installed"]  # a fixture

CANARY = "sk-canary-90d1"
TEXTS = Texts.of(["the film was good", "a warm night of music", "the food was not cold", "", "new place"])
WANTED = np.stack([vector_of(text or ".") for text in TEXTS.strings])
Make = Callable[..., tuple[OpenAIEmbeddings, Script]]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", CANARY)
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def make(stack: ExitStack) -> Make:
    """An embedding, and the script of the server that it talks to."""

    def made(*faults: str, server: dict[str, object] | None = None, **settings: object):
        script = Script(first=faults)
        url = stack.enter_context(serving(TextEmbeddingsServer(script, **server or {})))
        given = {"model": "m", "trusted_with_private_data": True, "key_env": "THE_KEY", "timeout": 1.0}
        return OpenAIEmbeddings(**given | {"base_url": f"{url}/v1"} | settings), script

    return made


@pytest.mark.parametrize("given", [{}, {"encoding_format": "float"}, {"server": {"plain": True}}])
def test_vectors_come_in_the_order_of_the_texts_whichever_way_they_are_written(make: Make, given: dict) -> None:
    embedding, script = make(**given)
    vectors = embedding.embed(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, WANTED)
    (body,) = script.requests
    form = given.get("encoding_format", "base64")
    assert body == {"model": "m", "input": [text or "." for text in TEXTS.strings], "encoding_format": form}
    assert script.keys == {f"Bearer {CANARY}"}


def test_every_fault_of_a_connection_is_retried_by_the_one_policy(make: Make) -> None:
    embedding, script = make(*TRANSPORT, tries=12, timeout=0.3)
    np.testing.assert_array_equal(embedding.embed(TEXTS), WANTED)
    assert sum(script.seen.values()) == len(TRANSPORT) + 1
    down, _ = make(*["500"] * 999, patience=0.2)
    with pytest.raises(Unavailable, match="fails on blank samples: HTTP 500: scripted"):
        down.embed(TEXTS)


def test_dimensions_and_further_fields_are_sent_and_another_length_is_refused(make: Make) -> None:
    embedding, script = make(dimensions=4, extra={"truncate": True})
    np.testing.assert_array_equal(embedding.embed(TEXTS), WANTED[:, :4])
    assert (script.requests[0]["dimensions"], script.requests[0]["truncate"]) == (4, True)
    deaf, _ = make(dimensions=400)
    with pytest.raises(ContractError, match=r"answers with \d+ numbers; dimensions asks for 400"):
        deaf.embed(TEXTS)


@pytest.mark.parametrize(
    "changed", [{"index": 0}, {"embedding": "no"}, {"embedding": "AAAA"}, {"embedding": [[1.0]]}, {"embedding": None}]
)
def test_vectors_that_are_not_one_per_text_are_refused(make: Make, changed: dict[str, object]) -> None:
    with pytest.raises(ContractError, match=r"not answer with one vector per text|not one per text"):
        make(server={"changed": changed})[0].embed(TEXTS)


def test_a_text_that_the_endpoint_refuses_gets_no_vector_and_the_others_theirs(make: Make) -> None:
    embedding, script = make(server={"refused": "cold"})
    vectors = embed_block(embedding, TEXTS)
    assert np.isnan(vectors).any(axis=1).tolist() == [False, False, True, False, False]
    np.testing.assert_array_equal(vectors[[0, 1, 4]], WANTED[[0, 1, 4]])
    assert {len(body["input"]) for body in script.requests} == {5}, "a request of another size"


def test_a_server_whose_vectors_depend_on_the_request_is_refused_before_a_run(make: Make) -> None:
    try_embedding(make()[0], Texts, (300,))
    with pytest.raises(ContractError, match="another vector when the others in its block change"):
        try_embedding(make(server={"mixes": True})[0], Texts, (300,))


def test_samples_of_another_modality_are_refused(make: Make) -> None:
    with pytest.raises(ContractError, match="takes texts, not Images"):
        make()[0].embed(Images(np.zeros((1, 4, 4, 3), np.uint8)))


@pytest.mark.parametrize(("given", "host"), [({}, r"api\.openai\.com"), ({"base_url": "http://h:8/v1"}, "h:8")])
def test_private_texts_go_nowhere_unless_the_recipe_says_so(given: dict[str, object], host: str) -> None:
    with pytest.raises(RecipeError, match=rf"every PRIVATE text to {host}: state embedding\.trusted_with_private"):
        OpenAIEmbeddings(model="m", **given)


def test_a_recipe_names_it() -> None:
    assert load("pe.embeddings", "openai_embeddings") is OpenAIEmbeddings


def run_by(embedding: OpenAIEmbeddings, stack: ExitStack, tmp_path: Path) -> Run:
    url = stack.enter_context(serving(ChatServer(Script())))
    api = {"kind": "chat", "model": "m", "key_env": None, "base_url": f"{url}/v1", "prompts": "a {label}"}
    given = lines.content(tmp_path, api, lookahead=0) | {"embedding": {"kind": object_kind(embedding)}}
    return run_recipe(Recipe.parse(given, "the test"), tmp_path / "run", Surroundings(embedding=embedding))


@pytest.mark.usefixtures("installed")
def test_the_certificate_states_who_sees_the_private_texts(make: Make, stack: ExitStack, tmp_path: Path) -> None:
    embedding, script = make()
    run = run_by(embedding, stack, tmp_path)
    certificate = json.loads((run.folder / "certificate.json").read_text())
    host = embedding.info.hosts[0]
    assert certificate["private_data_sent_to"] == host
    assert f"The private records themselves were sent to {host}, un-noised" in certificate["not_covered"][0]
    assert not verify(certificate, run.folder)
    assert lines.CANARY in json.dumps(script.requests)
    assert embedding.batch_size in {len(body["input"]) for body in script.requests}


@pytest.mark.usefixtures("installed")
def test_an_endpoint_that_is_down_is_told_before_there_is_a_run(make: Make, stack: ExitStack, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="fails on blank samples"):
        run_by(make(*["500"] * 999, patience=0.2)[0], stack, tmp_path)
    assert not (tmp_path / "run").exists()
