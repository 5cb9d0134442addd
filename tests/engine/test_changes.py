"""Settings that may change when a run goes on, because they do not change what its samples mean."""

import pytest

from pe.engine.execution import RunContext, resume_run, run_recipe, stored_recipe
from pe.errors import APIError
from pe.planning.forecast import differences
from pe.recipe.schema import Recipe
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.hosted import on
from tests.endpoints.serving import serving

CHAT = {
    "kind": "chat",
    "model": "m",
    "base_url": "http://127.0.0.1:1/v1",
    "key_env": None,
    "prompts": "a review",
}
IMAGES = CHAT | {"kind": "openai_images", "image_size": 8}
LOCAL = {"kind": "causal_lm", "model": "m", "prompts": "a review"}
SERVER = {
    "kind": "diffusion_server",
    "base_url": "http://127.0.0.1:1",
    "prompts": "a review",
    "size": 8,
}
TOKENS = {"text_in": 9, "text_out": 9}
EMBEDDING = {"kind": "openai_embeddings", "model": "e", "trusted_with_private_data": True}


def recipe(api, embedding):
    texts = {"kind": "text_table", "path": "reviews.csv"}
    private = texts if embedding else {"kind": "folder", "path": "images", "size": 8}
    content = {
        "private": private,
        "api": {"price": {"call": 0}, **api},
        "embedding": embedding or {"kind": "pixels"},
    }
    return Recipe.parse(
        content | {"privacy": {"epsilon": 1, "delta": 1e-5}, "limits": {"max_images": 9}},
        "the test",
    )


@pytest.mark.parametrize(
    ("api", "changes"),
    [
        (
            CHAT,
            {
                "max_tokens": 99,
                "max_tokens_field": "max_completion_tokens",
                "seed_field": "seed",
                "timeout": 9,
            },
        ),
        (
            CHAT | {"variation": "paraphrase"},
            {"n": 2, "expected_tokens": TOKENS, "azure_api_version": "2024-10-21"},
        ),
        (LOCAL, {"max_tokens": 99, "chunk": 8, "batch_size": 2}),
        (LOCAL | {"kind": "masked_lm"}, {"chunk": 8}),
        (
            IMAGES,
            {
                "n": 2,
                "seed_field": "seed",
                "response_format": None,
                "azure_api_version": "2024-10-21",
            },
        ),
        (SERVER, {"chunk": 8, "base_url": "http://127.0.0.1:2"}),
    ],
    ids=lambda given: given.get("kind", ""),
)
def test_what_only_says_how_samples_are_asked_for_may_change(api, changes):
    embedding = EMBEDDING if api["kind"] in ("chat", "causal_lm", "masked_lm") else None
    assert differences(recipe(api, embedding), recipe(api | changes, embedding)) == []


@pytest.mark.parametrize(
    "change", [{"model": "n"}, {"temperature": 0.5}, {"cut": False}, {"system": "a"}, {"batch": 9}]
)
def test_what_changes_a_sample_may_not(change):
    assert differences(recipe(CHAT, EMBEDDING), recipe(CHAT | change, EMBEDDING))


def test_an_embedding_s_requests_may_become_smaller_and_its_model_no_other():
    smaller = {"batch_size": 4, "encoding_format": "float", "azure_api_version": "2024-10-21"}
    assert differences(recipe(CHAT, EMBEDDING), recipe(CHAT, EMBEDDING | smaller)) == []
    assert differences(recipe(CHAT, EMBEDDING), recipe(CHAT, EMBEDDING | {"model": "other"}))


class Full(ChatServer):
    """Rejects variations for which the answer may be long."""

    @on("POST /v1/chat/completions")
    def complete(self, asked):
        if "\n\n" in asked.body["messages"][-1]["content"] and asked.body["max_tokens"] > 100:
            return 400, {
                "error": {
                    "message": "This model's maximum context length is 200 tokens.",
                    "code": None,
                }
            }
        return super().complete(asked)


def test_a_run_whose_variations_do_not_fit_goes_on_with_fewer_tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.csv").write_text("text\n" + "the room was warm and quiet\n" * 20)
    with serving(server := Full(Script())) as url:
        api = CHAT | {"base_url": f"{url}/v1", "longest": 200, "price": {"call": 0}}
        source = {
            "kind": "text_table",
            "path": "reviews.csv",
            "longest": 200,
            "ledger_file": "ledger.json",
        }
        evolution = {
            "iterations": 1,
            "population": 6,
            "degree": 0.5,
            "lookahead": 1,
            "measure_degree": "never",
        }
        sections = {
            "embedding": {"kind": "tfidf"},
            "privacy": {"epsilon": 4, "delta": 1e-3},
            "limits": {"max_images": 99},
        }
        wanted = Recipe.parse(
            {"private": source, "api": api, "evolution": evolution} | sections, "the test"
        )
        with pytest.raises(APIError, match="HTTP 400: This model's maximum context length"):
            run_recipe(wanted, tmp_path / "run", RunContext())
        run = resume_run(
            tmp_path / "run", RunContext(), stored_recipe(tmp_path / "run", ("api.max_tokens=64",))
        )
    assert len(run.synthetic) == 6
    assert server.script.delivered == 6 + 6 + 6
