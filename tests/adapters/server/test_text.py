"""A server of a model that takes prompts, behind keys, with narrow limits; the last test ends it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from click.testing import CliRunner

from adapters.diffusion.text_to_image import TextToImage
from adapters.server.formats import ARRAYS, BatchRequest, pack_request, read_answer
from adapters.server_client import ServerClient
from pe.cli.plan import doctor
from pe.errors import RecipeError
from pe.plugins.protocols import GenerationAPI, RandomRequest, VariationRequest
from tests.adapters.server.asking import apart, generate, pixels, png, post
from tests.adapters.server.conftest import KEYS
from tests.adapters.server.serving import PATIENCE, Server

# of diffusers with numpy 2
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

FIRST, SECOND = KEYS
SECRET = "marmalade"
SIZE = 32


def sdk(server: Server, key: str = FIRST) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


def prompted(n: int, steps: int = 2, prompt: str = SECRET) -> BatchRequest:
    return BatchRequest(
        np.arange(n, dtype=np.uint64), None, steps, guidance=1, size=(SIZE, SIZE), prompts=(prompt,) * n
    )


def test_it_waits_for_a_proxy_that_is_slow_to_come(held_up: tuple[Server, Future[None]]) -> None:
    server, _ = held_up
    assert server.process.poll() is None


@pytest.mark.parametrize("key", [None, "", "wrong-key-of-the-tests", FIRST[:-1], FIRST + "x", "Ünïcödé-key-of-tests"])
def test_nothing_is_done_without_a_key_of_the_server(text: Server, key: str | None) -> None:
    header = None if key is None else key.encode("utf-8").decode("latin-1")
    for path in ("/v1/models", "/v1/models/x", "/metrics"):
        status, answer = text.get(path, header)
        assert (status, answer["error"]["type"]) == (401, "authentication_error")
    for path in ("/v1/images/generations", "/v1/images/edits", "/v1/batch/images"):
        assert post(text, path, b"", "application/json", header)[0] == 401
    assert text.get("/readyz")[0] == text.get("/openapi.json")[0] == 200  # of no use to a stranger


def test_it_starts_though_its_proxy_was_slow_to_come(text: Server) -> None:
    assert text.status("GET", "/readyz") == 200  # the fixture held the proxy up for longer than Ray's patience


def test_the_sdk_says_so_too(text: Server) -> None:
    with pytest.raises(openai.AuthenticationError):
        sdk(text, "wrong-key-of-the-tests").models.list()
    assert len(sdk(text).models.list().data) == len(sdk(text, SECOND).models.list().data) == 1


def test_prompts_sizes_guidance_and_negative_prompts_are_heeded(text: Server) -> None:
    def drawn(prompt: str = "a cat", size: Any = "32x32", **extra: Any) -> np.ndarray:
        answer = sdk(text).images.generate(prompt=prompt, size=size, extra_body={"seed": 3} | extra)
        assert answer.data is not None
        return pixels(answer.data[0])

    plain = drawn()
    assert plain.shape == (32, 32, 3)
    assert apart(drawn(), plain) <= 1
    assert drawn(size="48x32").shape == (32, 48, 3)
    for other in (
        drawn("a dog"),
        drawn(guidance_scale=6),
        drawn(negative_prompt="b"),
        drawn(num_inference_steps=4),
        drawn(seed=4),
    ):
        assert apart(other, plain) > 1


def test_an_edit_without_a_size_keeps_the_image_s_own(text: Server) -> None:
    image = np.random.default_rng(0).integers(0, 256, (33, 47, 3)).astype(np.uint8)
    for size, shape in ((openai.NOT_GIVEN, (32, 40)), ("32x48", (48, 32))):
        answer = sdk(text).images.edit(
            image=("a.png", png(image), "image/png"),
            prompt="a",
            size=size,
            extra_body={"strength": 0.5},  # type: ignore[arg-type]
        )
        assert answer.data is not None
        assert pixels(answer.data[0]).shape[:2] == shape


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"prompt": "a" * 4001}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": "a", "negative_prompt": "\udfff"}, "prompt"),
        ({"prompt": "a", "negative_prompt": "b", "guidance_scale": 1}, "negative_prompt"),
        ({"prompt": "a", "size": "33x32"}, "size"),
        ({"prompt": "a", "size": "128x128"}, "size"),
        ({"prompt": "a", "class_label": 1}, "class_label"),
        ({"prompt": "a", "n": 5}, "n"),
        ({"prompt": "a", "num_inference_steps": 9}, "num_inference_steps"),
    ],
)
def test_what_lies_beyond_the_limits_names_its_field(text: Server, content: dict[str, Any], param: str) -> None:
    status, answer, _ = generate(text, content, FIRST)
    assert (status, answer["error"]["param"]) == (400, param)


def test_the_client_answers_as_the_local_adapter_does(text: Server, text_model: Path) -> None:
    common: dict[str, Any] = {
        "prompts": {"a": "one {label}", "b": ["two", "three"]},
        "negative_prompt": {"a": "c", "b": ""},
        "steps": [4, 3],
        "guidance": [3.0, 2.0],
        "size": SIZE,
        "image_size": 16,
    }
    keyed = ServerClient(base_url=text.url, key_env="TEST_KEY", chunk=8, **common)
    local = TextToImage(model=str(text_model), device="cpu", batch_size=2, sampler="euler", **common)
    labels, seeds = tuple("abba"), np.random.default_rng(0).integers(0, 2**64, 4, dtype=np.uint64)

    def both(api: GenerationAPI) -> tuple[np.ndarray, np.ndarray, list[str]]:
        drawn = api.random_api(RandomRequest(labels, seeds, api.draw_conditions(labels, seeds ^ seeds[:1])))  # type: ignore[attr-defined]
        varied = api.variation_api(VariationRequest(drawn.samples, labels, drawn.conditions, seeds + 1, 0.7, 2))
        return drawn.samples.array, varied.samples.array, drawn.conditions["prompt"].tolist()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_KEY", SECOND)
        one = both(keyed)
    other = both(local)
    assert one[2] == other[2]
    assert apart(one[0], other[0]) <= 1
    assert apart(one[1], other[1]) <= 1


def test_a_model_that_takes_prompts_gets_some(text: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", FIRST)
    with pytest.raises(RecipeError, match="takes prompts"):
        ServerClient(base_url=text.url, key_env="TEST_KEY").random_api(RandomRequest(("a",), np.zeros(1, np.uint64)))


def test_a_key_has_no_more_under_way_than_it_may_and_others_are_let_in(text: Server) -> None:
    body = pack_request(prompted(16, steps=4))

    def ask(key: str) -> tuple[int, Any]:
        status, _, headers = post(text, "/v1/batch/images", body, ARRAYS, key)
        return status, headers.get("Retry-After")

    with ThreadPoolExecutor(8) as clients:
        asked = [clients.submit(ask, FIRST) for _ in range(7)]
        time.sleep(0.3)
        status, answer, _ = generate(text, {"prompt": "a", "size": "32x32"}, SECOND)
        answers = [each.result() for each in asked]
    assert status == 200, answer
    assert {each for each in answers if each[0] != 200} == {(429, "1")}
    assert 2 <= sum(status == 200 for status, _ in answers) < 7


def test_a_full_server_takes_no_more(text: Server) -> None:
    with ThreadPoolExecutor(4) as clients:
        asked = [
            clients.submit(post, text, "/v1/batch/images", pack_request(prompted(16, steps=4)), ARRAYS, key)
            for key in (FIRST, SECOND, FIRST, SECOND)
        ]
        answers = [each.result() for each in asked]
    refused = [headers["Retry-After"] for status, _, headers in answers if status == 429]
    assert refused
    assert set(refused) == {"2"}  # 40 images at once, so the third waits


def test_the_doctor_takes_a_key(text: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(doctor, ["--endpoint", f"{text.url}/v1"])
    assert (result.exit_code, "--key-env" in result.output) == (1, True)
    monkeypatch.setenv("A_KEY", FIRST)
    result = CliRunner().invoke(doctor, ["--endpoint", text.url, "--key-env", "A_KEY"])
    assert result.exit_code == 0, result.output


def test_no_log_holds_a_prompt_or_a_key(text: Server) -> None:
    long = " ".join([SECRET] * 60)  # longer than the model takes, of which diffusers would warn
    assert generate(text, {"prompt": long, "size": "32x32"}, FIRST)[0] == 200
    assert generate(text, {"prompt": SECRET, "size": "1x1"}, FIRST)[0] == 400
    for wrong in ({"prompt": [SECRET]}, {"prompt": "a", "n": SECRET}, {"prompt": "a", "image_url": SECRET}):
        status, answer, _ = generate(text, wrong, FIRST)
        assert (status, SECRET in str(answer)) == (400, False)
    logs = text.logs()
    assert '"message": "answered"' in logs
    for secret in (SECRET, *KEYS):
        assert secret not in logs


def test_it_ends_when_what_is_under_way_is_answered(text: Server) -> None:
    answers: list[tuple[int, bytes, Any]] = []
    body = pack_request(prompted(32, steps=4))
    under_way = threading.Thread(target=lambda: answers.append(post(text, "/v1/batch/images", body, ARRAYS, FIRST)))
    under_way.start()
    time.sleep(0.3)
    assert text.end() == 0
    under_way.join(PATIENCE)
    ((status, answer, _),) = answers
    assert status == 200
    assert len(read_answer(answer, 32).images) == 32
    deadline = time.monotonic() + 10
    while left := text.pids():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
