"""The chat adapter over LiteLLM's proxy: models that it mocks, and OpenAI's format on the other side, batches too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.http import Rejected
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.planning.build import price_of
from pe.plugins.protocols import Answer, Failed, JobNote, RandomRequest, Refused, Usage
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.durability.driver import forked
from tests.endpoints.batch_server import BatchServer
from tests.endpoints.faults import Script
from tests.endpoints.serving import serving
from tests.lines import content, installed
from tests.peers import servers
from tests.peers.conftest import Findings, cell
from tests.peers.routes import KEY_NAME

__all__ = ["installed"]  # a fixture

pytestmark = pytest.mark.timeout(1200)

MOCKED = {
    "mock": "A dull film, and long.",
    "long": "litellm.ContextWindowExceededError",
    "filtered": "Exception: content_filter_policy",
}
TEXTS = 20 + 40 + 20
NAME = "LiteLLM's proxy"
PRICE = {"million_tokens": {"text_in": 1000.0, "text_out": 2000.0}, "currency": "USD"}


@pytest.fixture(scope="module")
def behind() -> Iterator[tuple[BatchServer, str]]:
    server = BatchServer(Script())
    with serving(server) as url:
        yield server, f"{url}/v1"


@pytest.fixture(scope="module")
def served(
    behind: tuple[BatchServer, str], tmp_path_factory: pytest.TempPathFactory, keys: None
) -> Iterator[dict[str, Any]]:
    """The settings of an adapter to the proxy."""
    _, address = behind
    models = {
        name: {"model": f"openai/{name}", "api_key": "none", "mock_response": said} for name, said in MOCKED.items()
    }
    models["m"] = {"model": "openai/m", "api_base": address, "api_key": "none"}
    with servers.litellm_of(tmp_path_factory.mktemp("litellm"), models, openai=address) as url:
        yield {"base_url": f"{url}/v1", "key_env": KEY_NAME, "prompts": "a {label} one", "max_tokens": 12, "tries": 1}


@pytest.fixture
def server(behind: tuple[BatchServer, str]) -> Iterator[BatchServer]:
    """What answers behind the proxy; its script is empty again afterwards."""
    yield behind[0]
    behind[0].script = Script()


def random(api: Chat, count: int = 1, job: JobNote | None = None) -> Answer:
    labels, seeds = ("film",) * count, np.arange(7, 7 + count, dtype=np.uint64)
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds), job or JobNote()))


def test_a_mocked_text_comes_with_its_tokens_counted(served: dict[str, Any], chat_findings: Findings) -> None:
    answer = random(Chat(**served, model="mock", n=2, variation="paraphrase"), 2)
    assert answer.samples.strings == [MOCKED["mock"]] * 2  # it heeds n
    assert answer.usage == Usage(1, 2, tokens=30, text_in=10, text_out=20)
    chat_findings[NAME] |= {"tokens": "counted", "`n`": "heeded, where the host behind it does"}


@pytest.mark.parametrize(
    ("case", "model", "words"),
    [
        ("a prompt that is too long", "long", "ContextWindowExceededError"),
        ("another model", "other", "Invalid model name passed in model=other"),
    ],
)
def test_what_the_proxy_rejects_stops_with_its_own_words(
    served: dict[str, Any], case: str, model: str, words: str, chat_findings: Findings
) -> None:
    with pytest.raises(Rejected, match=words) as told:
        random(Chat(**served, model=model))
    chat_findings[NAME][case] = cell(told.value)


def test_a_wrong_key_stops_and_is_not_shown(served: dict[str, Any], chat_findings: Findings) -> None:
    with pytest.raises(Rejected) as told:
        random(Chat(**served | {"key_env": "PEERS_WRONG"}, model="mock"))
    assert "sk-another-key" not in str(told.value)
    chat_findings[NAME]["a wrong key"] = cell(told.value)


def test_a_content_policy_of_the_proxy_is_a_refusal(served: dict[str, Any], chat_findings: Findings) -> None:
    missing = random(Chat(**served, model="filtered")).missing[0]
    assert isinstance(missing, Refused)
    chat_findings[NAME]["an error of a content policy"] = f"refused: {cell(missing.reason)}"


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("refusal", Refused("I can't.")),  # which the proxy moves to `provider_specific_fields`
        ("filter", Refused("the endpoint's content filter withheld the text (finish_reason: content_filter)")),
        ("empty", Failed("the model wrote nothing")),
    ],
)
def test_what_a_model_behind_the_proxy_withholds_is_an_outcome(
    served: dict[str, Any], server: BatchServer, fault: str, outcome: Refused | Failed, chat_findings: Findings
) -> None:
    server.script = Script(first=(fault,))
    assert random(Chat(**served, model="m")).missing == {0: outcome}
    chat_findings[NAME][f"of a model behind it: {fault}"] = f"{type(outcome).__name__.lower()}: {outcome.reason}"


def test_pe_doctor_looks_at_it(served: dict[str, Any], chat_findings: Findings) -> None:
    (found,) = Chat.look(served | {"model": "m"})
    assert found.state == "ok", found
    chat_findings[NAME]["`pe doctor`"] = "finds the model"


def test_a_batch_goes_through_the_proxy_and_is_found_again(
    served: dict[str, Any], server: BatchServer, chat_findings: Findings
) -> None:
    before, note = server.submitted, JobNote()
    settings = served | {"model": "m", "seed_field": "seed", "batch": 4, "poll": 0.1}
    answer = random(Chat(**settings), 4, note)
    assert len(answer.samples) == 4, answer.missing
    assert answer.usage == Usage(1, 4, tokens=160, text_in=40, text_out=120)
    named = server.batches[note.job].said["metadata"]["private_evolution"]
    again = random(Chat(**settings), 4, JobNote(named, 1))  # as after a kill before its id was noted
    assert again.samples.strings == answer.samples.strings
    assert server.submitted == before + 1
    chat_findings[NAME]["a batch"] = "handed on; after a kill found again by its name, and submitted once"


def carry_out(folder: Path, served: dict[str, Any]) -> None:
    """Begin the run, or go on with it."""
    if (folder / "run").exists():
        resume_run(folder / "run", Surroundings())
    else:
        given = {"kind": "chat", "model": "m", "concurrency": 2, "seed_field": "seed", "price": PRICE} | served
        given = content(folder, given) | {"limits": {"max_cost": 100}}
        run_recipe(Recipe.parse(given, "the test"), folder / "run", Surroundings())


@pytest.mark.usefixtures("installed")
def test_a_run_counts_its_cost_and_asks_for_nothing_twice(
    served: dict[str, Any], server: BatchServer, tmp_path: Path, chat_findings: Findings
) -> None:
    chunks = tmp_path / "run" / "confidential" / "chunks"
    first = forked(carry_out, tmp_path, served)
    while first.is_alive() and not (chunks.is_dir() and len(list(chunks.iterdir())) >= 9):
        first.join(0.02)
    first.kill()
    first.join(60)
    again = forked(carry_out, tmp_path, served)
    again.join(600)
    assert again.exitcode == 0
    run = Run.open(tmp_path / "run")
    with read_journal(run) as journal:
        totals = journal.totals().usage
    assert (totals.images, totals.text_in, totals.text_out) == (TEXTS, 10 * TEXTS, 30 * TEXTS)
    assert price_of(Recipe.load(run.folder / "recipe.yaml")).of(totals) == pytest.approx(
        TEXTS * (10 * 0.001 + 30 * 0.002)
    )
    chat_findings[NAME]["a run of 20"] = "killed, resumed, every text and its cost counted once"
