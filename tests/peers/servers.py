"""Foreign servers, each a process in a session of its own, in an environment that install.sh made."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.adapters.server.serving import free_port, served
from tests.cluster.processes import end_session, wait_until

ENVIRONMENTS = Path(__file__).parents[2] / ".venv-peers"
KEY = "sk-a-key-of-the-tests-0123456789"
PATIENCE = 300.0
"""Seconds for a start, on a machine that does other things, too."""


@contextmanager
def litellm(folder: Path) -> Iterator[str]:
    """LiteLLM's proxy over `pe serve small`, which draws characters of 28×28."""
    with served("small", "--replicas", "1") as behind:
        models = {"digits": {"model": "openai/small", "api_base": f"{behind.url}/v1", "api_key": "none"}}
        with litellm_of(folder, models) as url:
            yield url


@contextmanager
def litellm_of(folder: Path, models: Mapping[str, Mapping[str, str]], openai: str = "") -> Iterator[str]:
    """LiteLLM's proxy with these models; it hands files and batches on to the API at `openai`."""
    port, config = free_port(), folder / "litellm.yaml"
    command = [_program("litellm", "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    listed = [{"model_name": name, "litellm_params": given} for name, given in models.items()]
    files = [{"custom_llm_provider": "openai", "api_base": openai, "api_key": "none"}] if openai else []
    config.write_text(json.dumps({"model_list": listed, "files_settings": files}))
    settings, url = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, f"http://127.0.0.1:{port}"
    if openai:  # batches go by these, and not by files_settings
        settings |= {"OPENAI_BASE_URL": openai, "OPENAI_API_KEY": "none"}
    with running(command, folder / "litellm.log", f"{url}/health/liveliness", **settings):
        yield url


@contextmanager
def xinference(folder: Path, model: Path) -> Iterator[str]:
    """Xinference with the model in a folder, under the name `tiny`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [_program("xinference", "bin/xinference-local"), "--host", "127.0.0.1", "--port", str(port)]
    settings = {"XINFERENCE_AUTH_ADVANCED": "0", "XINFERENCE_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    with running(command, folder / "xinference.log", f"{url}/v1/models", XINFERENCE_DISABLE_METRICS="1", **settings):
        (folder / "home" / "cache" / "v2").mkdir(parents=True, exist_ok=True)  # 4.1 links a local model into it unmade
        spec = {"version": 2, "model_family": "stable_diffusion", "model_name": "tiny", "model_uri": model.as_uri()}
        spec |= {"model_ability": ["text2image", "image2image"], "model_id": None, "model_revision": None}
        spec |= {"default_generate_config": {"num_inference_steps": 4}}
        registration = {"model": json.dumps(spec | {"controlnet": []}), "persist": False}
        _post(f"{url}/v1/model_registrations/image", registration)
        launch = {"model_uid": "tiny", "model_name": "tiny", "model_type": "image", "enable_virtual_env": False}
        _post(f"{url}/v1/models", launch)
        yield url


@contextmanager
def stable_diffusion_cpp(folder: Path, model: Path, autoencoder: Path) -> Iterator[str]:
    """stable-diffusion.cpp's server with the model in a folder and a tiny autoencoder."""
    port = free_port()
    program = _program("stable-diffusion.cpp", "build/bin/sd-server")
    command = [program, "-m", str(model), "--taesd", str(autoencoder), "--listen-port", str(port), "--steps", "2"]
    url = f"http://127.0.0.1:{port}"
    with running([*command, "--cfg-scale", "1"], folder / "sd-server.log", f"{url}/v1/models"):
        yield url


@contextmanager
def transformers_serve(folder: Path, model: str) -> Iterator[str]:
    """The server of transformers, of the toolkit's own environment, pinned to the model in a folder."""
    port, program = free_port(), Path(sys.executable).with_name("transformers")
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", model]
    (folder / "hf" / "hub").mkdir(parents=True)  # else its list of models is a 500
    url = f"http://127.0.0.1:{port}"
    with running(command, folder / "serve.log", f"{url}/health", HF_HUB_OFFLINE="1", HF_HOME=str(folder / "hf")):
        yield url


def python_of(environment: str) -> str:
    return _program(environment, "bin/python")


def _program(environment: str, path: str) -> str:
    found = ENVIRONMENTS / environment / path
    assert found.exists(), f"{found} is not there: `make test-peers` installs it."
    return str(found)


@contextmanager
def running(command: list[str], log: Path, ready: str, **settings: str) -> Iterator[None]:
    """The command, from when `ready` answers until the end of the block."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until(lambda: process.poll() is not None or _answers(ready), PATIENCE)
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        end_session(process.pid)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=20):
            return True
    except OSError:
        return False


def _post(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            return
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode(errors='replace')}") from error
