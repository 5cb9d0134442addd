"""A request that its server rejects (400, 413, 422) is a failure of its items, once the run has had
other answers.
"""

import time

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.http import retries
from adapters.openai_images import OpenAIImages
from pe.data.population import Members
from pe.dispatch.limits import Limits, Meter
from pe.errors import APIError, LimitReached
from pe.plugins.protocols import Answer, Failed
from pe.progress import Progress
from tests.dispatch.runs import dispatcher
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.hosted import on
from tests.endpoints.openai_server import OpenAIServer
from tests.endpoints.serving import serving
from tests.generators import Shades, images_of

LABELS = np.zeros(12, np.int32)
TOO_LONG = "This model's maximum context length is 4096 tokens. However, you requested 4600 tokens."


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(retries, "FIRST", 0.001)
    monkeypatch.setattr(retries, "MOST", 0.01)


class Short(ChatServer):
    """Rejects requests, with a status and words, where `rejects` says so of the message and its
    number.
    """

    def __init__(self, rejects, status=400, words=TOO_LONG, code="context_length_exceeded"):
        super().__init__(Script())
        self.rejects, self.rejected, self.asked = rejects, [], 0
        self._answer = (
            status,
            {"error": {"message": words, "type": "invalid_request_error", "code": code}},
        )

    @on("POST /v1/chat/completions")
    def complete(self, asked):
        message = str(asked.body["messages"][-1]["content"])
        self.asked += 1
        if self.rejects(message, self.asked):
            self.rejected.append(message)
            return self._answer
        return super().complete(asked)

    def _written(self, prompt, seed):
        return super()._written("", seed)  # new words, for a variation, too


class Told(Progress):
    """Keeps warnings."""

    def __init__(self):
        self.warnings = []

    def warn(self, message):
        self.warnings.append(message)


def chat(url, **settings):
    given = {
        "model": "m",
        "key_env": None,
        "prompts": "a review",
        "longest": 400,
        "seed_field": "seed",
    }
    return Chat(
        base_url=f"{url}/v1", **given | {"concurrency": 2, "variation": "paraphrase"} | settings
    )


def is_variation(message, number):
    return "\n\n" in message


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_variation_that_is_rejected_in_every_attempt_keeps_its_parent_and_the_others_are_made(
    tmp_path, status
):
    told = Told()
    with serving(server := Short(lambda *_: False, status)) as url:
        dispatch = dispatcher(tmp_path / "run", chat(url), progress=told)
        first = dispatch.random(LABELS)
        long = first.samples.strings[3]
        server.rejects = lambda message, _: long in message
        second = dispatch.variations(1, first, Members.offspring(np.arange(12)), 0.6)
    changed = [
        one != other
        for one, other in zip(first.samples.strings, second.samples.strings, strict=True)
    ]
    assert changed == [i != 3 for i in range(12)]
    assert len(server.rejected) == 5  # evolution.attempts
    assert told.warnings == [
        "Samples of population/1 that failed in all attempts, so that their parents take their "
        f"place: 1 (HTTP {status}: {TOO_LONG})"
    ]


def test_a_run_whose_only_open_item_is_rejected_ends_when_it_goes_on(tmp_path):
    with serving(server := Short(lambda *_: False)) as url:
        first = dispatcher(tmp_path / "run", chat(url)).random(LABELS)
        long = first.samples.strings[0]
        server.rejects = lambda message, _: long in message
        meter = Meter(Limits(max_images=12 + 11))  # it stops before all attempts are made
        with pytest.raises(LimitReached):
            dispatcher(tmp_path / "run", chat(url), meter=meter).variations(
                1, first, Members.offspring(np.arange(12)), 0.6
            )
        made = server.script.delivered
        second = dispatcher(tmp_path / "run", chat(url)).variations(
            1, first, Members.offspring(np.arange(12)), 0.6
        )
    assert second.samples.strings[0] == long
    assert server.script.delivered - made <= 1


def test_what_is_rejected_from_the_beginning_stops_the_run_in_the_server_s_words_and_soon(tmp_path):
    labels = np.zeros(60, np.int32)
    with serving(server := Short(lambda *_: True)) as url:
        with pytest.raises(
            APIError, match=r"HTTP 400: This model's maximum .*; `pe run RUN` goes on"
        ):
            dispatcher(tmp_path / "run", chat(url)).random(labels)
        assert server.asked <= 12
        server.rejects = lambda *_: False
        assert len(dispatcher(tmp_path / "run", chat(url)).random(labels).samples) == 60


def test_a_rejection_that_comes_before_the_first_answer_ends_no_run(tmp_path):
    class Slow(Short):
        def complete(self, asked):
            if self.asked in (1, 2, 3):
                time.sleep(0.2)
            return super().complete(asked)

        complete.routes = Short.complete.routes

    with serving(server := Slow(lambda _, number: number == 1)) as url:
        assert (
            len(dispatcher(tmp_path / "run", chat(url, concurrency=4)).random(LABELS).samples) == 12
        )
    assert len(server.rejected) == 1


def test_a_new_sample_whose_prompt_is_rejected_gets_another_prompt(tmp_path):
    prompts = ["a short prompt", "a long prompt"]
    with serving(server := Short(lambda message, _: "long" in message)) as url:
        made = dispatcher(tmp_path / "run", chat(url, prompts=prompts), attempts=12).random(LABELS)
    assert set(made.conditions["prompt"]) == {"a short prompt"}
    assert server.rejected


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Billing hard limit has been reached", "billing_hard_limit_reached"),
        (
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & "
            "Billing.",
            None,
        ),
    ],
)
def test_trouble_with_the_account_or_the_model_stops_the_run_at_once_though_others_were_answered(
    tmp_path, words, code
):
    answer = {"status": 400, "words": words, "code": code}
    with serving(server := Short(lambda _, number: number > 6, **answer)) as url:
        with pytest.raises(
            APIError, match=r"rejects the request with HTTP 400: .*; `pe run RUN` goes on"
        ):
            dispatcher(tmp_path / "run", chat(url)).random(np.zeros(40, np.int32))
        assert len(server.rejected) <= 6
        server.rejects = lambda *_: False
        assert (
            len(dispatcher(tmp_path / "run", chat(url)).random(np.zeros(40, np.int32)).samples)
            == 40
        )


def test_where_all_variations_are_rejected_before_votes_the_run_stops_after_the_attempts(tmp_path):
    with serving(server := Short(is_variation)) as url:
        dispatch = dispatcher(tmp_path / "run", chat(url))
        first = dispatch.random(LABELS)
        with pytest.raises(
            APIError, match=r"in 5 attempts: HTTP 400: This model's maximum context length"
        ):
            list(dispatch.lookahead(1, first, 1, 0.6))
        assert len(server.rejected) == 5 * 12
        with serving(ChatServer(Script())) as other:
            ahead = dispatcher(tmp_path / "run", chat(other)).lookahead(1, first, 1, 0.6)
            assert sum(len(samples) for _, samples in ahead) == 12


def test_after_votes_even_a_population_without_a_new_variation_is_made(tmp_path):
    told = Told()
    with serving(Short(is_variation)) as url:
        dispatch = dispatcher(tmp_path / "run", chat(url), progress=told)
        first = dispatch.random(LABELS)
        second = dispatch.variations(1, first, Members.offspring(np.arange(12)), 0.6)
    assert second.samples.strings == first.samples.strings
    assert TOO_LONG in told.warnings[-1]


class Crowded(Shades):
    """Rejects each request that holds an item of a certain parent, whole."""

    def variation_api(self, request):
        answer = super().variation_api(request)
        if not (request.samples.array[:, 0, 0, 0] == self.wrong).any():
            return answer
        rejected = dict.fromkeys(range(len(request)), Failed("HTTP 413: too large", rejected=True))
        return Answer(images_of(np.zeros(0)), missing=rejected)


def test_one_item_costs_the_others_of_its_request_no_sample(tmp_path):
    api = Crowded(max_chunk=8)
    dispatch = dispatcher(tmp_path / "run", api)
    first = dispatch.random(np.zeros(20, np.int32))
    shades = first.samples.array[:, 0, 0, 0]
    api.wrong = shades[5]
    second = dispatch.variations(1, first, Members.offspring(np.arange(20)), 0.5)
    same = (second.samples.array == first.samples.array).all(axis=(1, 2, 3))
    assert same[5]
    assert same.sum() == (shades == api.wrong).sum()


def test_images_are_no_other_than_texts_and_n_of_a_prompt_are_asked_for_one_by_one_after_a_rejection(
    tmp_path,
):
    class Small(OpenAIServer):
        """Takes no parent above a size, and no more than one image a request of variations."""

        @on("POST /v1/images/generations", "POST /v1/images/edits")
        def images(self, asked):
            if asked.file and int(asked.body["n"]) > 1:
                return 413, {"error": {"message": "The request is too large", "code": None}}
            return self._answer(asked.fault, asked.body, [asked.file] if asked.file else None)

    given = {
        "model": "m",
        "key_env": None,
        "prompts": "a",
        "image_size": 16,
        "server": None,
        "n": 4,
    }
    with serving(server := Small(Script())) as url:
        dispatch = dispatcher(tmp_path / "run", OpenAIImages(base_url=f"{url}/v1", **given))
        first = dispatch.random(LABELS)
        second = dispatch.variations(1, first, Members.offspring(np.repeat(np.arange(3), 4)), 0.6)
    assert (
        not (second.samples.array == first.samples.array[second.parents]).all(axis=(1, 2, 3)).any()
    )
    assert server.script.delivered == 24
