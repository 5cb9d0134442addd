"""Whole runs by OpenAI's Batch API: with faults of every kind, and killed while batches are at work."""

import json
import time

import pytest

from adapters.http import jobs as waiting
from adapters.http import openai_sdk as openai_batches
from adapters.http import policy as policy_module
from pe.engine.execution import Surroundings, run_recipe
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import begin_or_go_on, forked
from tests.endpoints.batch_server import LINES, BatchServer
from tests.endpoints.faults import Script
from tests.endpoints.serving import serving
from tests.lines import CANARY, content, installed

__all__ = ["installed"]  # a fixture

pytestmark = pytest.mark.usefixtures("installed")

TRANSPORT = ("429 milliseconds", "500", "503 html", "other json", "dropped", "html", "lost")
CONCURRENCY = 2
TEXTS = 20 + 40 + 20
"""S_0, the lookahead, S_1."""


def by_batch(url, **more):
    given = {"kind": "chat", "model": "m", "key_env": None, "base_url": f"{url}/v1", "concurrency": CONCURRENCY}
    given |= {"batch": 8, "poll": 0.002, "seed_field": "seed"}
    return given | {"prompts": "a review of a {label}"} | more


def test_a_run_with_every_fault_accounts_for_each_and_pays_for_no_text_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_module, "FIRST", 0.02)
    monkeypatch.setattr(policy_module, "MOST", 0.2)
    monkeypatch.setattr(waiting, "GRACE", 0.05)
    monkeypatch.setattr(openai_batches, "QUEUE", 0.02)
    script, lines = Script(share=0.1, faults=TRANSPORT), Script(first=LINES, share=0.2, faults=LINES)
    server = BatchServer(script, ("expired", "full", "cancelled"), lines)
    with serving(server) as url:
        given = content(tmp_path, by_batch(url, timeout=1.0, tries=20), attempts=9, lookahead=0)
        run = run_recipe(Recipe.parse(given, "the test"), tmp_path / "run", Surroundings())
    with read_journal(run) as journal:
        totals = journal.totals()
    assert all(lines.seen[fault] for fault in LINES)
    assert sum(script.seen[fault] > 0 for fault in TRANSPORT) > 3
    assert set(server.worked.values()) == {1}
    assert totals.usage.images == server.worked.total() - lines.seen["torn"]
    assert totals.usage.text_out == 30 * totals.usage.images
    assert totals.usage.calls >= server.submitted
    assert 40 - totals.refused <= totals.answered <= 40  # of S_0 and S_1
    assert CANARY not in json.dumps([batch.lines for batch in server.batches.values()])
    assert len(run.synthetic) == 20


def carry_out(folder, url):
    recipe = Recipe.parse(content(folder, by_batch(url)), "the test")
    begin_or_go_on(recipe, folder / "run", Surroundings())


def committed(folder):
    """What the run has paid for."""
    with read_journal(Run.open(folder / "run")) as journal:
        return journal.totals().usage


@pytest.mark.slow
def test_batches_at_work_when_a_run_is_killed_are_waited_for_and_not_paid_again(tmp_path):
    server = BatchServer(Script(), lines=Script(first=(*["500"] * 3, *[""] * 5, "500")))
    with serving(server) as url:
        for finished in (1, 2):  # the second time what has failed in the first batch is at work, and more has failed
            server.finished = finished
            process = forked(carry_out, tmp_path, url)
            while (server.held < CONCURRENCY or committed(tmp_path).calls < finished) and process.is_alive():
                time.sleep(0.02)
            process.kill()
            process.join(60)
            assert server.held >= CONCURRENCY
        server.finished = float("inf")
        again = forked(carry_out, tmp_path, url)
        again.join(100)
        assert again.exitcode == 0
    assert set(server.worked.values()) == {1}
    assert server.worked.total() == TEXTS == committed(tmp_path).images
    assert committed(tmp_path).calls == server.submitted
    assert len(Run.open(tmp_path / "run").synthetic) == 20
