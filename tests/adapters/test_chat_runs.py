"""Whole runs over an endpoint of chat completions: with faults, and killed."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from adapters.http import policy as policy_module
from pe.cli.main import pe as command
from pe.data.texts import Texts
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.errors import PEError
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import forked
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
    assert CANARY in (tmp_path / "private.tsv").read_text()
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
    """Writes a text of its own, whatever is asked for."""

    def _written(self, prompt: str, seed: int) -> str:
        return super()._written("a review", seed + len(self.script.requests))


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


def carry_out(folder: Path, url: str) -> None:
    """Begin the run, or go on with it."""
    if (folder / "run").exists():
        resume_run(folder / "run", Surroundings())
    else:
        run_recipe(Recipe.parse(content(folder, api(url)), "the test"), folder / "run", Surroundings())


def test_a_run_that_is_killed_asks_for_nothing_that_it_had_received(tmp_path: Path) -> None:
    script = Script()
    with serving(ChatServer(script)) as url:
        process = forked(carry_out, tmp_path, url)
        while script.delivered < TEXTS // 2 and process.is_alive():
            time.sleep(0.001)
        process.kill()
        process.join(60)
        assert not (tmp_path / "run" / "certificate.json").exists()
        again = forked(carry_out, tmp_path, url)
        again.join(100)
        assert again.exitcode == 0
    run = Run.open(tmp_path / "run")
    with read_journal(run) as journal:
        assert journal.totals().usage.images == TEXTS
    assert script.delivered <= TEXTS + 2 * (4 + 1)  # what was under way when it was killed


def test_the_plan_tells_the_price_by_the_tokens_that_the_recipe_expects(tmp_path: Path) -> None:
    price = {"million_tokens": {"text_in": 1, "text_out": 10}}
    planned = {}
    for name, expected in (("unknown", {}), ("known", {"expected_tokens": {"text_in": 100, "text_out": 200}})):
        given = content(tmp_path, api("http://127.0.0.1:9", price=price, **expected)) | {"limits": {"max_cost": 1}}
        (tmp_path / "recipe.json").write_text(json.dumps(given))
        result = CliRunner().invoke(command, ["plan", str(tmp_path / "recipe.json"), "--json"])
        assert result.exit_code == 0, result.output
        planned[name] = json.loads(result.output)
    assert planned["unknown"]["cost"] is None
    assert planned["known"]["cost"] == pytest.approx(TEXTS * (100 * 1 + 200 * 10) / 1e6)


def test_the_planner_stays_within_the_money_by_the_expected_tokens(tmp_path: Path) -> None:
    price = {"million_tokens": {"text_in": 1, "text_out": 10}}
    expected = {"text_in": 100, "text_out": 200}
    given = content(tmp_path, api("http://127.0.0.1:9", price=price, expected_tokens=expected))
    given["private"]["declared_size"] = 5000
    given |= {"evolution": "auto", "limits": {"max_cost": 2}}
    (tmp_path / "recipe.json").write_text(json.dumps(given))
    result = CliRunner().invoke(command, ["plan", str(tmp_path / "recipe.json"), "--json"])
    assert result.exit_code == 0, result.output
    assert 1 < json.loads(result.output)["cost"] <= 2
