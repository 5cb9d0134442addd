"""The chat adapter over the server of transformers, with a tiny model of random weights behind it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.chat import Chat
from adapters.http import Rejected
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.plugins.protocols import Answer, RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.adapters.language import tiny
from tests.durability.driver import forked
from tests.lines import content, installed
from tests.peers import servers
from tests.peers.conftest import Findings, cell

__all__ = ["installed"]  # a fixture

pytestmark = pytest.mark.timeout(1200)

TEXTS = 20 + 40 + 20
NAME = "transformers serve"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The settings of an adapter to it."""
    folder = tmp_path_factory.mktemp("transformers")
    (folder / "model").mkdir()
    model = tiny.causal(folder / "model")
    with servers.transformers_serve(folder, model) as url:
        yield {"model": model, "base_url": f"{url}/v1", "key_env": None, "prompts": "a {label} one", "max_tokens": 12}


def random(api: Chat, seed: int = 7) -> Answer:
    seeds, labels = np.array([seed], np.uint64), ("film",)
    return api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))


def test_texts_and_variations_come_with_their_tokens_counted(served: dict[str, Any], chat_findings: Findings) -> None:
    api = Chat(**served, system="Be brief.", temperature=1.2, top_p=0.9)
    parent = random(api)
    labels, seeds = ("film",), np.array([3], np.uint64)
    conditions = api.draw_conditions(labels, seeds)
    child = api.variation_api(VariationRequest(parent.samples, labels, conditions, seeds, 0.5))
    for answer in (parent, child):
        assert len(answer.samples) == 1, answer.missing
        assert answer.usage.text_in > 10
        assert answer.usage.text_out == 12
    chat_findings[NAME]["tokens"] = "counted"


def test_equal_seeds_give_equal_texts_where_the_server_is_sent_them(
    served: dict[str, Any], chat_findings: Findings
) -> None:
    api = Chat(**served, seed_field="seed", temperature=1.0)
    first, again, other = (random(api, seed).samples.strings for seed in (1, 1, 2))
    assert first == again != other
    chat_findings[NAME]["`seed_field: seed`"] = "equal seeds give equal texts, other seeds others"


@pytest.mark.parametrize(
    ("case", "settings", "words"),
    [
        ("another model", {"model": "other"}, "Server is pinned to"),
        ("an unknown field", {"extra": {"foo": 1}}, "Unexpected fields in the request"),
    ],
)
def test_what_the_server_rejects_stops_with_its_own_words(
    served: dict[str, Any], case: str, settings: dict[str, Any], words: str, chat_findings: Findings
) -> None:
    with pytest.raises(Rejected, match=words) as told:
        random(Chat(**served | settings))
    chat_findings[NAME][case] = cell(told.value, {served["model"]: "MODEL"})


def test_n_is_dropped_and_the_texts_that_lack_are_failures(served: dict[str, Any], chat_findings: Findings) -> None:
    api = Chat(**served, n=2, variation="paraphrase")
    labels, seeds = ("film",) * 2, np.arange(2).astype(np.uint64)
    answer = api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds)))
    assert answer.missing[1].reason == "the endpoint sent 1 texts where 2 were asked for"
    chat_findings[NAME]["`n`"] = "ignored: the texts that lack have failed"


def test_pe_doctor_looks_at_it(served: dict[str, Any], chat_findings: Findings) -> None:
    (found,) = Chat.look(served)
    assert found.state == "ok", found
    chat_findings[NAME]["`pe doctor`"] = "finds the model"


def carry_out(folder: Path, served: dict[str, Any]) -> None:
    """Begin the run, or go on with it."""
    if (folder / "run").exists():
        resume_run(folder / "run", Surroundings())
    else:
        given = content(folder, {"kind": "chat", "concurrency": 2} | served)
        run_recipe(Recipe.parse(given, "the test"), folder / "run", Surroundings())


@pytest.mark.usefixtures("installed")
def test_a_run_that_is_killed_goes_on_and_asks_for_nothing_twice(
    served: dict[str, Any], tmp_path: Path, chat_findings: Findings
) -> None:
    chunks = tmp_path / "run" / "confidential" / "chunks"
    first = forked(carry_out, tmp_path, served)
    while first.is_alive() and not (chunks.is_dir() and len(list(chunks.iterdir())) >= 9):
        time.sleep(0.02)
    first.kill()
    first.join(60)
    again = forked(carry_out, tmp_path, served)
    again.join(600)
    assert again.exitcode == 0
    run = Run.open(tmp_path / "run")
    with read_journal(run) as journal:
        assert journal.totals().usage.images == TEXTS
    assert len(run.synthetic) == 20
    chat_findings[NAME]["a run of 20"] = "killed, resumed, every text counted once"
