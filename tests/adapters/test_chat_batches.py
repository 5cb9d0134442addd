"""What the chat adapter makes of OpenAI's Batch API, over a scripted server, and runs by it: with
faults, killed.
"""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from adapters import openai_batches
from adapters.chat import Chat
from adapters.http import Rejected
from pe.data.samples import Conditions
from pe.data.texts import Texts
from pe.engine.execution import RunContext, run_recipe
from pe.errors import RecipeError, Unavailable
from pe.plugins.protocols import Failed, JobNote, RandomRequest, Refused, Usage, VariationRequest
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import begin_or_go_on, forked
from tests.endpoints.asking import CANARY, impatient, serve
from tests.endpoints.chat_server import LINES, BatchServer, ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.serving import serving
from tests.lines import CANARY as PRIVATE
from tests.lines import content, installed

__all__ = ["impatient", "installed", "serve"]  # fixtures


@pytest.fixture(autouse=True)
def quick(impatient, monkeypatch):
    monkeypatch.setattr(openai_batches, "QUEUE", 0.02)


@pytest.fixture
def make(serve):
    def made(*faults, outcomes=(), lines=(), **settings):
        server = BatchServer(Script(first=faults), outcomes, Script(first=lines))
        return over(serve(server), **settings), server

    return made


def over(url, **settings):
    given = {"model": "m", "prompts": "a review of a {label}", "key_env": "THE_KEY"}
    given |= {"batch": 100, "poll": 0.002, "timeout": 1.0, "seed_field": "seed"}
    return Chat(**given | {"base_url": f"{url}/v1"} | settings)


def random(api, count=4, job=None):
    seeds = np.arange(count, dtype=np.uint64) + np.uint64(1 << 40)
    labels = ("film", "food")[:count] * -(-count // 2)
    return api.random_api(
        RandomRequest(labels, seeds, api.draw_conditions(labels, seeds), job or JobNote())
    )


def test_a_batch_holds_any_prompts_and_each_answer_finds_its_own_whatever_its_place(make):
    api, server = make(temperature=1.2, max_tokens=99, system="You write.", extra={"top_k": 5})
    assert (api.capabilities.max_chunk, api.capabilities.shares, api.capabilities.one_by_one) == (
        100,
        "nothing",
        True,
    )
    answer = random(api)
    (batch,) = server.batches.values()
    bodies = [line["body"] for line in batch.lines]
    prompts = [body["messages"][-1]["content"] for body in bodies]
    assert len(set(prompts)) == 2
    assert answer.conditions["prompt"].tolist() == prompts
    wanted = [
        server._written(prompt, body["seed"]) for prompt, body in zip(prompts, bodies, strict=True)
    ]
    assert answer.samples.strings == [text.strip('"\n') for text in wanted]
    assert answer.usage == Usage(1, 4, tokens=160, text_in=40, text_out=120)
    single, plain = make(
        batch=None, temperature=1.2, max_tokens=99, system="You write.", extra={"top_k": 5}
    )
    random(single, 1)
    assert plain.script.requests == bodies[:1]
    assert server.script.keys == {f"Bearer {CANARY}"}


def test_variations_of_different_parents_share_a_batch(make):
    api, server = make(length_sigma=0)
    parents = ["the film was long and dull", "a warm night with old music and good food"]
    conditions = Conditions({"prompt": np.array(["a", "b"])})
    request = VariationRequest(
        Texts.of(parents), ("film", "food"), conditions, np.arange(2, dtype=np.uint64), 0.5
    )
    answer = api.variation_api(request)
    asked = [
        line["body"]["messages"][-1]["content"]
        for line in next(iter(server.batches.values())).lines
    ]
    assert [text.split("\n\n")[1].split().count("_") for text in asked] == [
        3,
        5,
    ]  # of 6 and 9 words
    for text, parent in zip(answer.samples.strings, parents, strict=True):
        assert len(text.split()) == len(parent.split())
        assert "_" not in text
    assert api.variation_api(replace(request, degree=0.0)).usage == Usage(0)
    assert server.submitted == 1


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("refusal", Refused("I can't.")),
        ("policy", Refused("scripted: policy")),
        ("500", Failed("HTTP 500: scripted: 500")),
        ("expired", Failed("batch_expired: This request could not be executed in time.")),
        ("absent", Failed("the batch batch_000 holds no answer to the request")),
        ("invalid", Failed("HTTP 400: scripted: invalid", rejected=True)),
    ],
)
def test_what_becomes_of_one_request_of_a_batch_is_its_own(make, fault, outcome):
    api, server = make(lines=("", fault, ""))
    answer = random(api)
    assert dict(answer.missing) == {1: outcome}
    assert len(answer.samples) == 3
    assert (answer.usage.calls, server.submitted) == (1, 1)


@pytest.mark.parametrize("outcome", ["expired", "cancelled"])
def test_a_batch_that_ends_before_its_time_gives_what_it_has(make, outcome):
    api, _ = make(outcomes=(outcome,))
    answer = random(api)
    assert len(answer.samples) == 2
    assert (answer.usage.images, answer.usage.text_out) == (2, 60)
    assert {i: miss.retryable for i, miss in answer.missing.items()} == {2: True, 3: True}


def test_a_batch_that_the_endpoint_does_not_take_stops_the_run_and_is_not_waited_for_again(make):
    api, server = make(outcomes=("failed",))
    note = JobNote()
    with pytest.raises(Rejected, match=r"does not take the batch: invalid_model: scripted: failed"):
        random(api, job=note)
    assert not note.job
    assert len(random(api, job=note).samples) == 4
    assert server.submitted == 2


def test_a_batch_for_which_the_queue_is_full_is_submitted_again_later(make):
    api, server = make(outcomes=("full", "full"))
    assert len(random(api).samples) == 4
    assert server.submitted == 3


# Of upload, creation, two looks, the answers and the errors.
@pytest.mark.parametrize(
    ("place", "fault"), [*zip(range(6), ["500", "html", "lost"] * 2, strict=True)]
)
def test_a_fault_at_any_request_of_a_batch_heals_and_nothing_is_paid_twice(make, place, fault):
    api, server = make(*[""] * place, fault, lines=("500",))
    assert len(random(api).samples) == 3
    assert server.script.seen[fault] == 1
    assert server.submitted == 1
    assert set(server.worked.values()) == {1}


def test_a_batch_whose_number_was_lost_is_found_by_our_name_among_all_that_are_listed(make):
    api, server = make()
    for _ in range(3):
        random(api)
    server.script._first = ["", "lost"]
    kept: list[str] = []
    answer = random(api, job=JobNote(keep=kept.append))
    assert len(answer.samples) == 4
    assert [name.partition("-")[0] for name in kept] == ["pe", "batch_003"]
    for _ in range(5):
        random(api)
    again = JobNote(kept[0], calls=1, keep=kept.append)  # killed before the number came
    assert random(api, job=again).samples.strings == answer.samples.strings
    assert (again.job, again.calls, server.submitted) == ("batch_003", 1, 9)


def test_a_batch_is_noted_before_it_is_submitted_and_a_noted_one_is_waited_for(make):
    api, server = make()
    kept: list[tuple[str, int]] = []
    random(api, job=JobNote(keep=lambda job: kept.append((job[:6], server.submitted))))
    assert [count for _, count in kept] == [0, 1]
    answer = random(api, job=JobNote("batch_000", calls=1))
    assert answer.usage == Usage(1, 4, tokens=160, text_in=40, text_out=120)
    assert server.submitted == 1


def test_a_batch_that_the_endpoint_has_forgotten_is_submitted_again_and_counted(make, caplog):
    api, server = make()
    answer = random(api, job=JobNote("batch_999", calls=1))
    assert (answer.usage.calls, server.submitted) == (2, 1)
    assert "submitted again" in caplog.text


def test_answers_that_cannot_be_had_for_now_stop_the_run_and_their_batch_stays_noted(make):
    api, server = make(tries=3, patience=0.5)
    note = JobNote()
    server.script._first = ["", "", "", "", *["500", ""] * 999]  # at each try, after a look
    with pytest.raises(Unavailable, match=r"the last fault: HTTP 500: scripted"):
        random(api, job=note)
    server.script._first.clear()
    assert len(random(api, job=note).samples) == 4
    assert server.submitted == 1


def test_a_server_without_batches_is_one_clear_error(serve):
    api = over(serve(ChatServer()))
    with pytest.raises(
        Rejected, match=r"127\.0\.0\.1:\d+ has no Batch API \(POST /files .*404.*Remove `batch`"
    ):
        random(api)


def test_azure_takes_batches_by_its_v1_api():
    with pytest.raises(RecipeError, match="needs Azure's v1 API"):
        over("http://127.0.0.1:9", azure_api_version="2024-10-21")


TRANSPORT = ("429 milliseconds", "500", "503 html", "other json", "dropped", "html", "lost")
CONCURRENCY = 2
TEXTS = 20 + 40 + 20
"""S_0, the lookahead, S_1."""


def by_batch(url, **more):
    given = {
        "kind": "chat",
        "model": "m",
        "key_env": None,
        "base_url": f"{url}/v1",
        "concurrency": CONCURRENCY,
    }
    given |= {"batch": 8, "poll": 0.002, "seed_field": "seed"}
    return given | {"prompts": "a review of a {label}"} | more


def test_a_run_with_every_fault_accounts_for_each_and_pays_for_no_text_twice(tmp_path, installed):
    script, lines = (
        Script(share=0.1, faults=TRANSPORT),
        Script(first=LINES, share=0.2, faults=LINES),
    )
    server = BatchServer(script, ("expired", "full", "cancelled"), lines)
    with serving(server) as url:
        given = content(tmp_path, by_batch(url, timeout=1.0, tries=20), attempts=9, lookahead=0)
        run = run_recipe(Recipe.parse(given, "the test"), tmp_path / "run", RunContext())
    with read_journal(run) as journal:
        totals = journal.totals()
    assert all(lines.seen[fault] for fault in LINES)
    assert sum(script.seen[fault] > 0 for fault in TRANSPORT) > 3
    assert set(server.worked.values()) == {1}
    assert totals.usage.images == server.worked.total() - lines.seen["torn"]
    assert totals.usage.text_out == 30 * totals.usage.images
    assert totals.usage.calls >= server.submitted
    assert 40 - totals.refusals <= totals.answers <= 40  # of S_0 and S_1
    assert PRIVATE not in json.dumps([batch.lines for batch in server.batches.values()])
    assert len(run.synthetic) == 20


def carry_out(folder, url):
    recipe = Recipe.parse(content(folder, by_batch(url)), "the test")
    begin_or_go_on(recipe, folder / "run", RunContext())


def committed(folder):
    """What the run has paid for."""
    with read_journal(Run.open(folder / "run")) as journal:
        return journal.totals().usage


@pytest.mark.slow
def test_batches_at_work_when_a_run_is_killed_are_waited_for_and_not_paid_again(
    tmp_path, installed
):
    server = BatchServer(Script(), lines=Script(first=(*["500"] * 3, *[""] * 5, "500")))
    with serving(server) as url:
        for finished in (
            1,
            2,
        ):  # the second time what has failed in the first batch is at work, and more has failed
            server.finished = finished
            process = forked(carry_out, tmp_path, url)
            while (
                server.held < CONCURRENCY or committed(tmp_path).calls < finished
            ) and process.is_alive():
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
