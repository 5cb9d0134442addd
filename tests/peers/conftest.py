"""The servers, each started once for all tests, and a run over one that is killed on its way."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pe.engine.execution import RunContext, run_recipe
from pe.recipe.schema import Recipe
from tests.adapters.server.serving import free_port, served
from tests.durability.driver import forked
from tests.peers import models
from tests.peers.routes import KEYS, ROUTES, Route
from tests.peers.servers import PATIENCE, litellm_of, program, running


@pytest.fixture(scope="session", autouse=True)
def keys() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for name, key in KEYS.items():
            patched.setenv(name, key)
        yield


@pytest.fixture(scope="session")
def litellm(tmp_path_factory: pytest.TempPathFactory, keys: None) -> Iterator[str]:
    """LiteLLM's proxy over `pe serve small`, which draws characters of 28×28."""
    with served("small", "--replicas", "1") as behind:
        models = {
            "digits": {"model": "openai/small", "api_base": f"{behind.url}/v1", "api_key": "none"}
        }
        with litellm_of(tmp_path_factory.mktemp("litellm"), models) as url:
            yield url


@pytest.fixture(scope="session")
def xinference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Xinference with a tiny model under the name `tiny`."""
    port, folder = free_port(), tmp_path_factory.mktemp("xinference")
    url, model = f"http://127.0.0.1:{port}", models.tiny_stable_diffusion(folder / "model")
    command = [
        program("xinference", "bin/xinference-local"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    settings = {
        "XINFERENCE_AUTH_ADVANCED": "0",
        "XINFERENCE_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
    }
    with running(
        command,
        folder / "xinference.log",
        f"{url}/v1/models",
        XINFERENCE_DISABLE_METRICS="1",
        **settings,
    ):
        (folder / "home" / "cache" / "v2").mkdir(
            parents=True, exist_ok=True
        )  # 4.1 links a local model into it unmade
        spec = {
            "version": 2,
            "model_family": "stable_diffusion",
            "model_name": "tiny",
            "model_uri": model.as_uri(),
        }
        spec |= {
            "model_ability": ["text2image", "image2image"],
            "model_id": None,
            "model_revision": None,
        }
        spec |= {"default_generate_config": {"num_inference_steps": 4}}
        registration = {"model": json.dumps(spec | {"controlnet": []}), "persist": False}
        _post(f"{url}/v1/model_registrations/image", registration)
        launch = {
            "model_uid": "tiny",
            "model_name": "tiny",
            "model_type": "image",
            "enable_virtual_env": False,
        }
        _post(f"{url}/v1/models", launch)
        yield url


def _post(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            return
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode(errors='replace')}") from error


@pytest.fixture(scope="session")
def stable_diffusion_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """stable-diffusion.cpp's server with a blank model and a tiny autoencoder."""
    port, folder = free_port(), tmp_path_factory.mktemp("sd_cpp")
    model = models.blank_stable_diffusion(folder / "model")
    autoencoder = models.faithful_autoencoder(folder / "taesd.safetensors")
    command = [
        program("stable-diffusion.cpp", "build/bin/sd-server"),
        "-m",
        str(model),
        "--taesd",
        str(autoencoder),
    ]
    command += ["--listen-port", str(port), "--steps", "2", "--cfg-scale", "1"]
    with running(command, folder / "sd-server.log", f"http://127.0.0.1:{port}/v1/models"):
        yield f"http://127.0.0.1:{port}"


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
    while process.is_alive() and not (
        received.is_dir() and len(list(received.iterdir())) >= chunks
    ):
        process.join(0.02)
    process.kill()
    process.join(60)
    assert process.exitcode == -9
    return run


def _carry_out(content: dict[str, Any], run: Path) -> None:
    run_recipe(Recipe.parse(content, "the test"), run, RunContext())
