"""Foreign servers, each a process in a session of its own, in an environment that install.sh made."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.adapters.server.serving import Asked, Servers

ENVIRONMENTS = Path(__file__).parents[2] / ".venv-peers"
KEY = "sk-a-key-of-the-tests-0123456789"
PATIENCE = 300.0
"""Seconds for a start, on a machine that does other things, too."""


@contextmanager
def litellm(folder: Path) -> Iterator[str]:
    """LiteLLM's proxy over `pe serve small`, which draws characters of 28×28."""
    served = Servers()
    try:
        behind = served.running(Asked("small", ("--replicas", "1"))).url
        models = {"digits": {"model": "openai/small", "api_base": f"{behind}/v1", "api_key": "none"}}
        with litellm_of(folder, models) as url:
            yield url
    finally:
        served.stop()


@contextmanager
def litellm_of(folder: Path, models: Mapping[str, Mapping[str, str]], openai: str = "") -> Iterator[str]:
    """LiteLLM's proxy with these models; it hands files and batches on to the API at `openai`."""
    port, config = free_port(), folder / "litellm.yaml"
    command = [*_program("litellm", "bin/litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    listed = [{"model_name": name, "litellm_params": given} for name, given in models.items()]
    files = [{"custom_llm_provider": "openai", "api_base": openai, "api_key": "none"}] if openai else []
    config.write_text(json.dumps({"model_list": listed, "files_settings": files}))
    settings, url = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}, f"http://127.0.0.1:{port}"
    if openai:  # batches go by these, and not by files_settings
        settings |= {"OPENAI_BASE_URL": openai, "OPENAI_API_KEY": "none"}
    with _running(command, folder / "litellm.log", f"{url}/health/liveliness", **settings):
        yield url


@contextmanager
def xinference(folder: Path, model: Path) -> Iterator[str]:
    """Xinference with the model in a folder, under the name `tiny`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [*_program("xinference", "bin/xinference-local"), "--host", "127.0.0.1", "--port", str(port)]
    settings = {"XINFERENCE_AUTH_ADVANCED": "0", "XINFERENCE_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    with _running(command, folder / "xinference.log", f"{url}/v1/models", XINFERENCE_DISABLE_METRICS="1", **settings):
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
    command = [*program, "-m", str(model), "--taesd", str(autoencoder), "--listen-port", str(port), "--steps", "2"]
    url = f"http://127.0.0.1:{port}"
    with _running([*command, "--cfg-scale", "1"], folder / "sd-server.log", f"{url}/v1/models"):
        yield url


@contextmanager
def transformers_serve(folder: Path, model: str) -> Iterator[str]:
    """The server of transformers, of the toolkit's own environment, pinned to the model in a folder."""
    port, program = free_port(), Path(sys.executable).with_name("transformers")
    command = [str(program), "serve", "--host", "127.0.0.1", "--port", str(port), "--device", "cpu", model]
    (folder / "hf" / "hub").mkdir(parents=True)  # else its list of models is a 500
    url = f"http://127.0.0.1:{port}"
    with _running(command, folder / "serve.log", f"{url}/health", HF_HUB_OFFLINE="1", HF_HOME=str(folder / "hf")):
        yield url


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _program(environment: str, path: str) -> list[str]:
    found = ENVIRONMENTS / environment / path
    assert found.exists(), f"{found} is not there: `make test-peers` installs it."
    return [str(found)]


@contextmanager
def _running(command: list[str], log: Path, ready: str, **settings: str) -> Iterator[None]:
    """The command, from when `ready` answers until the end of the block."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_for(process, ready, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _kill_session(process.pid)


def _wait_for(process: subprocess.Popen[bytes], ready: str, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(ready, timeout=20):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"the server did not start: {log.read_text(errors='replace')[-3000:]}")


def _kill_session(session: int) -> None:
    """Kill what a server left behind."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session:
                    os.kill(int(entry.name), signal.SIGKILL)
            except ProcessLookupError:
                continue


def _post(url: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            return
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode(errors='replace')}") from error
