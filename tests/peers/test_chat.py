"""The chat adapter over the server of transformers, with a tiny model of random weights, and over
LiteLLM's proxy.

LiteLLM mocks the texts of some models, and hands others on in OpenAI's format, batches too.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.http import Rejected
from pe.engine.execution import RunContext, resume_run
from pe.planning.parts import price_of
from pe.plugins.protocols import (
    Answer,
    Failed,
    JobNote,
    RandomRequest,
    Refused,
    Usage,
    VariationRequest,
)
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.adapters.language import tiny
from tests.adapters.server.serving import free_port
from tests.endpoints.chat_server import BatchServer
from tests.endpoints.faults import Script
from tests.endpoints.serving import serving
from tests.lines import content, installed
from tests.peers.conftest import killed
from tests.peers.routes import KEY_NAME
from tests.peers.servers import litellm_of, running

__all__ = ["installed"]  # a fixture

pytestmark = pytest.mark.timeout(1200)

MOCKED = {
    "mock": "A dull film, and long.",
    "long": "litellm.ContextWindowExceededError",
    "filtered": "Exception: content_filter_policy",
}
COMMON = {"prompts": "a {label} one", "max_tokens": 12}
TEXTS = 20 + 40 + 20
PRICE = {"million_tokens": {"text_in": 1000.0, "text_out": 2000.0}, "currency": "USD"}


@pytest.fixture(scope="module")
def transformers(tmp_path_factory):
    """The settings of an adapter to transformers' server, of the toolkit's own environment, pinned
    to a model.
    """
    port, folder = free_port(), tmp_path_factory.mktemp("transformers")
    (folder / "hf" / "hub").mkdir(parents=True)  # else its list of models is a 500
    (folder / "model").mkdir()
    model, url = tiny.causal(folder / "model"), f"http://127.0.0.1:{port}"
    command = [
        str(Path(sys.executable).with_name("transformers")),
        "serve",
        "--host",
        "127.0.0.1",
        "--device",
        "cpu",
    ]
    command += ["--port", str(port), model]
    with running(
        command, folder / "log", f"{url}/health", HF_HUB_OFFLINE="1", HF_HOME=str(folder / "hf")
    ):
        yield {"model": model, "base_url": f"{url}/v1", "key_env": None} | COMMON


@pytest.fixture(scope="module")
def behind():
    server = BatchServer(Script())
    with serving(server) as url:
        yield server, f"{url}/v1"


@pytest.fixture(scope="module")
def proxy(behind, tmp_path_factory, keys):
    """The settings of an adapter to LiteLLM's proxy."""
    models = {
        name: {"model": f"openai/{name}", "api_key": "none", "mock_response": said}
        for name, said in MOCKED.items()
    }
    models["m"] = {"model": "openai/m", "api_base": behind[1], "api_key": "none"}
    with litellm_of(tmp_path_factory.mktemp("litellm"), models, openai=behind[1]) as url:
        yield {"model": "m", "base_url": f"{url}/v1", "key_env": KEY_NAME, "tries": 1} | COMMON


@pytest.fixture
def server(behind):
    """What answers behind the proxy; its script is empty again afterwards."""
    yield behind[0]
    behind[0].script = Script()


def random(api: Chat, count: int = 1, seed: int = 7, job: JobNote | None = None) -> Answer:
    labels, seeds = ("film",) * count, np.arange(seed, seed + count, dtype=np.uint64)
    return api.random_api(
        RandomRequest(labels, seeds, api.draw_conditions(labels, seeds), job or JobNote())
    )


def test_texts_and_variations_of_transformers_come_with_their_tokens_counted(transformers):
    api = Chat(**transformers, system="Be brief.", temperature=1.2, top_p=0.9)
    parent = random(api)
    labels, seeds = ("film",), np.array([3], np.uint64)
    conditions = api.draw_conditions(labels, seeds)
    child = api.variation_api(VariationRequest(parent.samples, labels, conditions, seeds, 0.5))
    for answer in (parent, child):
        assert len(answer.samples) == 1, answer.missing
        assert answer.usage.text_in > 10
        assert answer.usage.text_out == 12
    seeded = Chat(**transformers, seed_field="seed", temperature=1.0)
    first, again, other = (random(seeded, seed=seed).samples.strings for seed in (1, 1, 2))
    assert first == again != other


def test_the_proxy_heeds_n_and_where_transformers_drops_it_the_texts_that_lack_are_failures(
    proxy, transformers
):
    answer = random(Chat(**proxy | {"model": "mock"}, n=2, variation="paraphrase"), 2)
    assert answer.samples.strings == [MOCKED["mock"]] * 2
    assert answer.usage == Usage(1, 2, tokens=30, text_in=10, text_out=20)
    answer = random(Chat(**transformers, n=2, variation="paraphrase"), 2)
    assert answer.missing[1].reason == "the endpoint sent 1 texts where 2 were asked for"


@pytest.mark.parametrize(
    ("served", "settings", "words"),
    [
        ("proxy", {"model": "other"}, "Invalid model name passed in model=other"),
        ("proxy", {"model": "mock", "key_env": "PEERS_WRONG"}, "rejects"),
    ],
)
def test_what_no_request_mends_stops_with_the_server_s_own_words_and_no_key(
    served, settings, words, request
):
    with pytest.raises(Rejected, match=words) as told:
        random(Chat(**request.getfixturevalue(served) | settings))
    assert "sk-another-key" not in str(told.value)


@pytest.mark.parametrize(
    ("served", "settings", "words"),
    [
        ("transformers", {"model": "other"}, "Server is pinned to"),
        ("transformers", {"extra": {"foo": 1}}, "Unexpected fields in the request"),
        ("proxy", {"model": "long"}, "ContextWindowExceededError"),
    ],
)
def test_a_request_that_a_server_rejects_has_failed_in_the_server_s_own_words(
    served, settings, words, request
):
    missing = random(Chat(**request.getfixturevalue(served) | settings)).missing[0]
    assert words in missing.reason
    assert missing.rejected


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("refusal", Refused("I can't.")),  # which the proxy moves to `provider_specific_fields`
        (
            "filter",
            Refused(
                "the endpoint's content filter withheld the text (finish_reason: content_filter)"
            ),
        ),
        ("empty", Failed("the model wrote nothing")),
    ],
)
def test_what_a_model_behind_the_proxy_withholds_is_an_outcome(proxy, server, fault, outcome):
    server.script = Script(first=(fault,))
    assert random(Chat(**proxy)).missing == {0: outcome}
    assert isinstance(
        random(Chat(**proxy | {"model": "filtered"})).missing[0], Refused
    )  # by the proxy's own policy


def test_a_batch_goes_through_the_proxy_and_is_found_again(proxy, server):
    before, note = server.submitted, JobNote()
    settings = proxy | {"seed_field": "seed", "batch": 4, "poll": 0.1}
    answer = random(Chat(**settings), 4, job=note)
    assert len(answer.samples) == 4, answer.missing
    assert answer.usage == Usage(1, 4, tokens=160, text_in=40, text_out=120)
    named = server.batches[note.job].said["metadata"]["private_evolution"]
    again = random(
        Chat(**settings), 4, job=JobNote(named, 1)
    )  # as after a kill before its id was noted
    assert again.samples.strings == answer.samples.strings
    assert server.submitted == before + 1


@pytest.mark.usefixtures("installed")
def test_a_run_that_is_killed_goes_on_and_pays_for_nothing_twice(proxy, tmp_path):
    api = {"kind": "chat", "concurrency": 2, "seed_field": "seed", "price": PRICE} | proxy
    run = killed(tmp_path, content(tmp_path, api) | {"limits": {"max_cost": 100}}, chunks=9)
    resume_run(run, RunContext())
    with read_journal(Run.open(run)) as journal:
        totals = journal.totals().usage
    assert totals.images == TEXTS
    assert len(Run.open(run).synthetic) == 20
    assert (totals.text_in, totals.text_out) == (10 * TEXTS, 30 * TEXTS)
    cost = price_of(Recipe.load(run / "recipe.yaml")).of(totals)
    assert cost == pytest.approx(TEXTS * (10 * 0.001 + 30 * 0.002))
