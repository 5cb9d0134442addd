"""Foreign servers, each a process in a session of its own, in an environment that
install.sh made.
"""

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.adapters.server.serving import free_port
from tests.cluster.processes import end_session, wait_until

ENVIRONMENTS = Path(__file__).parents[2] / ".venv-peers"
KEY = "sk-a-key-of-the-tests-0123456789"
PATIENCE = 300.0
"""Seconds for a start, on a machine that does other things, too."""


@contextmanager
def litellm_of(
    folder: Path, models: Mapping[str, Mapping[str, str]], openai: str = ""
) -> Iterator[str]:
    """LiteLLM's proxy with these models; it hands files and batches on to the API at `openai`."""
    port, config = free_port(), folder / "litellm.yaml"
    command = [
        program("litellm", "bin/litellm"),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    listed = [{"model_name": name, "litellm_params": given} for name, given in models.items()]
    files = (
        [{"custom_llm_provider": "openai", "api_base": openai, "api_key": "none"}] if openai else []
    )
    config.write_text(json.dumps({"model_list": listed, "files_settings": files}))
    settings, url = (
        {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        f"http://127.0.0.1:{port}",
    )
    if openai:  # batches go by these, and not by files_settings
        settings |= {"OPENAI_BASE_URL": openai, "OPENAI_API_KEY": "none"}
    with running(command, folder / "litellm.log", f"{url}/health/liveliness", **settings):
        yield url


def python_of(environment: str) -> str:
    return program(environment, "bin/python")


def program(environment: str, path: str) -> str:
    found = ENVIRONMENTS / environment / path
    assert found.exists(), f"{found} is not there: `make test-peers` installs it."
    return str(found)


@contextmanager
def running(command: list[str], log: Path, ready: str, **settings: str) -> Iterator[None]:
    """The command, from when `ready` answers until the end of the block."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    } | settings
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
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
