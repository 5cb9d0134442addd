"""The servers, each started once for all tests, and a run over one that is killed on its way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe.engine.execution import Surroundings, run_recipe
from pe.recipe.schema import Recipe
from tests.durability.driver import forked
from tests.peers import models, servers
from tests.peers.routes import KEYS, ROUTES, Route


@pytest.fixture(scope="session", autouse=True)
def keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for name, key in KEYS.items():
            patched.setenv(name, key)
        yield


@pytest.fixture(scope="session")
def litellm(tmp_path_factory: pytest.TempPathFactory, keys: None) -> Iterator[str]:
    with servers.litellm(tmp_path_factory.mktemp("litellm")) as url:
        yield url


@pytest.fixture(scope="session")
def xinference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("xinference")
    with servers.xinference(folder, models.tiny_stable_diffusion(folder / "model")) as url:
        yield url


@pytest.fixture(scope="session")
def stable_diffusion_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sd_cpp")
    model = models.blank_stable_diffusion(folder / "model")
    autoencoder = models.faithful_autoencoder(folder / "taesd.safetensors")
    with servers.stable_diffusion_cpp(folder, model, autoencoder) as url:
        yield url


@pytest.fixture(scope="session", params=ROUTES, ids=lambda route: route.name)
def route(request: pytest.FixtureRequest) -> Route:
    return request.param


@pytest.fixture
def url(route: Route, request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(route.server)


def killed(folder: Path, content: dict[str, Any], chunks: int) -> Path:
    """The folder of a run whose process was killed when it had received so many chunks."""
    run = folder / "run"
    received = run / "confidential" / "chunks"
    process = forked(_carry_out, content, run)
    while process.is_alive() and not (received.is_dir() and len(list(received.iterdir())) >= chunks):
        process.join(0.02)
    process.kill()
    process.join(60)
    assert process.exitcode == -9
    return run


def _carry_out(content: dict[str, Any], run: Path) -> None:
    run_recipe(Recipe.parse(content, "the test"), run, Surroundings())
