"""A run whose server goes away three times ends as if it never had, with and without kills, and
pays nothing twice.
"""

import time
from typing import Any

import pytest

from adapters.http import retries
from embeddings.tfidf import TfIdf
from pe.engine.execution import RunContext
from pe.planning.parts import object_kind
from pe.recipe.schema import Recipe
from tests.durability.driver import PRIVATE, SameNoise, begin_or_go_on, forked, make_private
from tests.endpoints.chat_server import ChatServer
from tests.endpoints.faults import Script
from tests.endpoints.outages import Away
from tests.endpoints.sd_server import SDServer
from tests.endpoints.serving import serving
from tests.generators import Mean

POPULATION = 12
SAMPLES = 3 * POPULATION
"""S_0, and S_1 and S_2."""

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "texts": (ChatServer, {"kind": "chat", "model": "m", "longest": 400, "seed_field": "seed"}),
    "images": (
        lambda script: SDServer(script, side=4),
        {"kind": "sdapi", "server": None, "image_size": 4, "channels": 1},
    ),
}


def carry_out(folder, kind, url):
    """Begin the run, or go on with it."""
    retries.FIRST, retries.MOST = 0.02, 0.1
    api = {
        "base_url": url + "/v1" * (kind == "texts"),
        "key_env": None,
        "prompts": "a",
        "concurrency": 2,
        "tries": 2,
    }
    source: dict[str, Any] = {"kind": "npz", "size": 4, "channels": 1}
    if kind == "texts":
        source = {"kind": "text_table", "label_column": "label", "longest": 60}
    embedding = TfIdf() if kind == "texts" else Mean()
    content = {
        "private": source
        | {
            "path": folder / PRIVATE[kind],
            "classes": ["a", "b"],
            "ledger_file": folder.with_name("ledger.json"),
        },
        "api": api | KINDS[kind][1],
        "embedding": {"kind": object_kind(embedding)},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {
            "iterations": 2,
            "population": POPULATION,
            "lookahead": 0,
            "measure_degree": "never",
        },
    }
    context = RunContext(embedding=embedding, noise=SameNoise())
    begin_or_go_on(Recipe.parse(content, "the test"), folder / "run", context)


@pytest.mark.parametrize(
    ("kind", "killed", "fault"), [("texts", False, "dropped"), ("images", True, "503 html")]
)
def test_three_outages_change_no_byte_and_nothing_is_paid_twice(tmp_path, kind, killed, fault):
    plain, folder, script = tmp_path / "plain", tmp_path / "outages", Script()
    for each in (plain, folder):
        each.mkdir()
        make_private(each / PRIVATE[kind])
    with serving(KINDS[kind][0](Script())) as url:
        carry_out(plain, kind, url)
    away = Away(KINDS[kind][0](script), every=SAMPLES // 4, seconds=0.5, fault=fault)
    with serving(away) as url:
        process = forked(carry_out, folder, kind, url)
        for outage in range(1, 4 if killed else 0):
            while away.gone < outage:
                assert process.is_alive()
                time.sleep(0.01)
            time.sleep(0.2)  # by now all that was answered is committed, and the run waits
            process.kill()
            process.join(60)
            process = forked(carry_out, folder, kind, url)
        process.join(100)
        assert process.exitcode == 0
    assert away.gone == 3
    assert away.asked > 3
    assert script.delivered == SAMPLES
    assert len({(each / "run" / "synthetic.npz").read_bytes() for each in (folder, plain)}) == 1
