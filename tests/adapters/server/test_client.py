"""The client adapter: what the server makes is what the local adapter makes, and nothing is asked for twice."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.diffusion.pixel import PixelSpace
from adapters.server_client import ServerClient
from pe.engine.execution import Surroundings, resume_run, run_recipe
from pe.errors import APIError, RecipeError
from pe.plugins.protocols import Answer, GenerationAPI, RandomRequest, VariationRequest
from pe.recipe.schema import Recipe
from pe.store.run import Run
from pe.store.writer import read_journal
from tests.adapters.server.asking import apart
from tests.adapters.server.serving import Server
from tests.durability.driver import SameNoise, forked, make_private
from tests.generators import Mean

CLASSES: dict[str | int, Any] = {"a": "7", "b": ["A", 3]}
LABELS = tuple("abab" * 5)
SEEDS = np.random.default_rng(0).integers(0, 2**64, len(LABELS), dtype=np.uint64)


def client(server: Server, **settings: Any) -> ServerClient:
    return ServerClient(**({"base_url": server.url, "classes": CLASSES, "steps": 4} | settings))


def varied(api: GenerationAPI, parents: Answer, degree: float, iteration: int = 1) -> Answer:
    return api.variation_api(
        VariationRequest(parents.samples, LABELS, parents.conditions, SEEDS + 1, degree, iteration)
    )


@pytest.fixture(scope="module")
def locally() -> tuple[PixelSpace, Answer]:
    """The local adapter, and what it draws: loaded and drawn while the server starts."""
    local = PixelSpace(model="small", classes=CLASSES, steps=4, device="cpu", batch_size=7)
    return local, local.random_api(RandomRequest(LABELS, SEEDS))


def test_it_answers_as_the_local_adapter_does(locally: tuple[PixelSpace, Answer], small: Server) -> None:
    remote, (local, same) = client(small), locally
    assert isinstance(remote, GenerationAPI)
    drawn = remote.random_api(RandomRequest(LABELS, SEEDS))
    assert apart(drawn.samples.array, same.samples.array) <= 1
    np.testing.assert_array_equal(drawn.conditions["api_class"], same.conditions["api_class"])
    for degree in (0, 0.5, 1):
        one, other = (varied(api, same, degree) for api in (remote, local))
        assert apart(one.samples.array, other.samples.array) <= 1
        assert (one.usage is None or one.usage.calls) == (degree > 0)
    staged = client(small, steps=[4, 6])
    assert apart(staged.random_api(RandomRequest(LABELS, SEEDS)).samples.array, same.samples.array) <= 1
    six = varied(PixelSpace(model="small", classes=CLASSES, steps=6, device="cpu"), same, 0.5)
    assert apart(varied(staged, same, 0.5, iteration=2).samples.array, six.samples.array) <= 1
    assert staged.describe_degree(0.5, 2) == "noised and denoised, the last 3 of 6 steps"


def test_what_cannot_be_made_is_missing_with_its_reason(small: Server) -> None:
    api = client(small)
    parents = api.random_api(RandomRequest(LABELS, SEEDS))
    missing = varied(api, parents, 0.1).missing
    assert sorted(missing) == list(range(len(LABELS)))
    assert "leaves no denoising step" in missing[0].reason


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"classes": {"a": "cat", "b": 1}}, "no class named 'cat'"),
        ({"classes": {"a": 62, "b": 1}}, "62 classes"),
        ({"classes": {"a": 1}}, "none for the label 'b'"),
        ({"steps": 51}, "num_inference_steps lies from 1 to 50"),
        ({"classes": None, "prompts": "a cat"}, "knows no words"),
    ],
)
def test_what_the_model_cannot_do_is_said_in_one_sentence(small: Server, settings: dict[str, Any], said: str) -> None:
    with pytest.raises((RecipeError, APIError), match=said):
        client(small, **settings).random_api(RandomRequest(LABELS, SEEDS))


def test_of_several_servers_one_that_is_not_there_costs_nothing_but_time(small: Server) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        api = client(small, base_url=[nobody, small.url])
        assert api.info.hosts == (nobody.removeprefix("http://"), small.url.removeprefix("http://"))
        for _ in range(2):
            assert len(api.random_api(RandomRequest(LABELS, SEEDS)).samples) == len(LABELS)


POPULATION, LOOKAHEAD = 40, 2
IMAGES = POPULATION * (1 + LOOKAHEAD + 1)


def carry_out(folder: Path, api: dict[str, Any], name: str = "run", population: int = POPULATION) -> None:
    """Begin the run, or go on with it."""
    private = {
        "kind": "npz",
        "path": folder / "private.npz",
        "size": 28,
        "channels": 1,
        "resize": "stretch",
        "classes": ["a", "b"],
    }
    content = {
        "private": private,
        "api": api,
        "embedding": {"kind": "object:tests.generators.Mean"},
        "privacy": {"noise_multiplier": 1, "delta": 1e-5},
        "evolution": {"iterations": 1, "population": population, "lookahead": LOOKAHEAD, "degree": 0.5},
    }
    surroundings = Surroundings(embedding=Mean(), noise=SameNoise())
    if (folder / name).exists():
        resume_run(folder / name, surroundings)
    else:
        run_recipe(Recipe.parse(content, "the test"), folder / name, surroundings)


def received(folder: Path) -> int:
    with read_journal(Run.open(folder / "run")) as journal:
        return journal.totals().usage.images


def remote(server: Server, concurrency: int = 4) -> dict[str, Any]:
    return {
        "kind": "diffusion_server",
        "base_url": server.url,
        "steps": 4,
        "classes": CLASSES,
        "chunk": 5,
        "concurrency": concurrency,
    }


def test_a_run_over_the_server_is_the_local_run(small: Server, tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    carry_out(tmp_path, remote(small), population=12)
    local = {"kind": "pixel_diffusion", "model": "small", "steps": 4, "classes": CLASSES, "device": "cpu"}
    carry_out(tmp_path, local, "local", population=12)
    one, other = Run.open(tmp_path / "run"), Run.open(tmp_path / "local")
    assert apart(one.synthetic.samples.array, other.synthetic.samples.array) <= 1
    np.testing.assert_array_equal(one.synthetic.parents, other.synthetic.parents)


@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_asks_for_nothing_twice(small: Server, tmp_path: Path) -> None:
    make_private(tmp_path / "private.npz")
    before = small.images_made()
    process = forked(carry_out, tmp_path, remote(small))
    while process.is_alive() and not ((tmp_path / "run").exists() and received_so_far(tmp_path) >= IMAGES // 3):
        time.sleep(0.02)
    process.kill()
    process.join(60)
    there, made = received(tmp_path), small.images_made() - before
    assert IMAGES // 3 <= there <= made < IMAGES
    carry_out(tmp_path, remote(small))
    assert received(tmp_path) == IMAGES
    in_all = made + IMAGES - there  # what had not been received, and no more
    assert small.images_made(at_least=before + in_all) - before == in_all


def received_so_far(folder: Path) -> int:
    try:
        return received(folder)
    except Exception:  # the run is only beginning
        return 0
