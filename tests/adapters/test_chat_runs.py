"""Whole runs over an endpoint of chat completions: with faults, and killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapters.http import policy as policy_module
from pe.cli.main import pe as command
from pe.data.texts import Texts
from pe.engine.execution import Surroundings, run_recipe
from pe.errors import PEError
from pe.recipe.schema import Recipe
from pe.store.writer import read_journal
from tests.endpoints.chat_server import CONTENT, ChatServer
from tests.endpoints.faults import TRANSPORT, Script
from tests.endpoints.serving import serving
from tests.lines import CANARY, content, installed

__all__ = ["installed"]  # a fixture

pytestmark = pytest.mark.usefixtures("installed")

TEXTS = 20 + 40 + 20
"""S_0, the lookahead, S_1."""


def api(url: str, **more: object) -> dict[str, object]:
    given = {"kind": "chat", "model": "m", "key_env": None, "base_url": f"{url}/v1", "concurrency": 4}
    attributes = {"tone": ["warm", "cool"], "topic": {"film": ["comedy", "drama"], "food": ["bread"]}}
    return given | {"prompts": "a {tone} review of a {label}: {topic}", "attributes": attributes} | more


def test_a_run_over_a_server_with_every_fault_accounts_for_each_and_sends_no_private_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)
    faults = (*TRANSPORT, *CONTENT)
    script = Script(first=faults, share=0.2, faults=faults)
    price = {"million_tokens": {"text_in": 1, "text_out": 4}}
    with serving(ChatServer(script)) as url:
        given = content(tmp_path, api(url, timeout=1.0, tries=8, price=price), attempts=9)
        run = run_recipe(
            Recipe.parse(given | {"limits": {"max_cost": 1}}, "the test"), tmp_path / "run", Surroundings()
        )
    with read_journal(run) as journal:
        totals = journal.totals()
    assert all(script.seen[fault] for fault in faults)
    assert CANARY in (tmp_path / "private.csv").read_text()
    assert CANARY not in json.dumps(script.requests)
    assert totals.usage.images == script.delivered
    assert totals.usage.calls == sum(script.seen.values())
    assert totals.usage.text_out == 30 * script.delivered
    assert TEXTS - totals.refused <= totals.answered <= TEXTS
    found = run.population(0)
    assert found is not None
    assert isinstance(found.samples, Texts)
    assert set(found.conditions) == {"prompt", "tone", "topic"}
    assert set(found.conditions["topic"][found.labels == 1]) == {"bread"}
    assert len(run.synthetic) == 20


class Deaf(ChatServer):
    """Writes the same in place of every variation."""

    def _written(self, prompt: str, seed: int) -> str:
        return super()._written("a review", 0) if "\n\n" in prompt else super()._written(prompt, seed)


@pytest.mark.parametrize("server", [ChatServer, Deaf])
def test_a_run_tries_whether_blanks_are_heeded(tmp_path: Path, server: type[ChatServer]) -> None:
    script = Script()
    with serving(server(script)) as url:
        given = content(tmp_path, api(url, seed_field="seed", concurrency=1), iterations=2, degree=[0.5, 0.2])
        given |= {"limits": {"max_images": 16}}  # those of the try
        with pytest.raises(PEError) as stopped:
            run_recipe(Recipe.parse(given, "the test"), tmp_path / "run", Surroundings())
    assert script.delivered == 16
    found = json.loads((tmp_path / "run" / "degree.json").read_text())
    assert found["follows"] == (server is ChatServer)
    assert ("limits.max_images" in str(stopped.value)) == (server is ChatServer)


def test_the_plan_tells_the_cost_by_the_expected_tokens_and_stays_within_the_money(tmp_path: Path) -> None:
    def cost(more: dict[str, object], changes: dict[str, object]) -> float | None:
        price = {"million_tokens": {"text_in": 1, "text_out": 10}}
        given = content(tmp_path, api("http://127.0.0.1:9", price=price, **more)) | {"limits": {"max_cost": 2}}
        given["private"]["declared_size"] = 5000
        (tmp_path / "recipe.json").write_text(json.dumps(given | changes))
        result = CliRunner().invoke(command, ["plan", str(tmp_path / "recipe.json"), "--json"], catch_exceptions=False)
        return json.loads(result.output)["cost"]

    known = {"expected_tokens": {"text_in": 100, "text_out": 200}}
    assert cost({}, {}) is None
    assert cost(known, {}) == pytest.approx(TEXTS * (100 * 1 + 200 * 10) / 1e6)
    assert 1 < cost(known, {"evolution": "auto"}) <= 2
