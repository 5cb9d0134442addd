"""Whole runs over an endpoint that speaks OpenAI's images API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pe.engine.execution import Surroundings, run_recipe
from pe.errors import APIError, RecipeError
from pe.recipe.schema import Recipe
from pe.store.writer import read_journal
from tests.adapters.openai_asking import CANARY, key, settings_for
from tests.durability.driver import make_private
from tests.endpoints.faults import CONTENT, TRANSPORT, Script
from tests.endpoints.openai_server import SIDE, OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Mean

__all__ = ["key"]  # a fixture


def recipe(folder: Path, url: str, population: int, **changes: object) -> Recipe:
    make_private(folder / "private.npz")
    return Recipe.parse(
        {
            "private": {"kind": "npz", "path": folder / "private.npz", "size": 4, "channels": 1, "classes": ["a", "b"]},
            "api": {"kind": "openai_images"}
            | settings_for(url, size=f"{SIDE}x{SIDE}", concurrency=8, tries=8, timeout=4.0),
            "embedding": {"kind": "object:tests.generators.Mean"},
            "privacy": {"noise_multiplier": 1, "delta": 1e-5},
            "evolution": {"iterations": 1, "population": population, "lookahead": 2, "attempts": 8},
        }
        | changes,
        "the test",
    )


def test_a_run_of_1000_images_over_a_server_with_every_fault_accounts_for_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(first=(*TRANSPORT, *CONTENT), share=0.03, faults=(*TRANSPORT, *CONTENT))
    with serving(OpenAIServer(script)) as url:
        run = run_recipe(recipe(tmp_path, url, 250), tmp_path / "run", Surroundings(embedding=Mean()))
    with read_journal(run) as journal:
        totals = journal.totals()
    assert len(run.synthetic) == 250
    assert all(script.seen[fault] for fault in (*TRANSPORT, *CONTENT))
    assert totals.usage.images == script.delivered
    assert totals.usage.calls == sum(script.seen.values())
    assert totals.usage.tokens == 10 * script.delivered
    # refused variations keep their parent or leave the mean; all others are there
    assert 1000 - totals.refused <= totals.answered <= 1000
    assert "adapters.http.policy: " in (run.confidential / "log.txt").read_text()
    output = "".join(capsys.readouterr())
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(CANARY.encode() in content for content in [*files, output.encode()])
    assert script.keys == {f"Bearer {CANARY}"}


def test_a_run_that_the_endpoint_rejects_stops_at_once_and_goes_on_when_that_is_mended(tmp_path: Path) -> None:
    async def closed(scope: dict, receive: object, send: Callable) -> None:
        body = b'{"error": {"message": "Incorrect API key provided: ' + CANARY.encode() + b'"}}'
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    with serving(closed) as url, pytest.raises(APIError, match=r"HTTP 401: Incorrect API key provided: \[key\]"):
        run_recipe(recipe(tmp_path, url, 20), tmp_path / "run", Surroundings(embedding=Mean()))
    assert CANARY not in (tmp_path / "run" / "confidential" / "log.txt").read_text()


def test_a_password_in_the_address_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    given = recipe(tmp_path, "http://me:canary-pw@127.0.0.1:1", 20)
    with pytest.raises(RecipeError, match="basic_auth_env"):
        run_recipe(given, tmp_path / "run", Surroundings(embedding=Mean()))
    assert not any(b"canary-pw" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_prompts_stay_with_the_samples(tmp_path: Path) -> None:
    script = Script()
    with serving(OpenAIServer(script)) as url:
        changed = recipe(tmp_path, url, 20)
        spec = changed.api.model_copy(update={"prompts": {"a": ["an a", "one a"], "b": "a b"}})
        run = run_recipe(changed.model_copy(update={"api": spec}), tmp_path / "run", Surroundings(embedding=Mean()))
    assert {body["prompt"] for body in script.requests if not body["parents"]} == {"an a", "one a", "a b"}
    for t in (0, 1):
        population = run.population(t)
        assert population is not None
        for label, prompt in zip(population.labels, population.conditions["prompt"], strict=True):
            assert prompt in (("an a", "one a"), ("a b",))[label]
